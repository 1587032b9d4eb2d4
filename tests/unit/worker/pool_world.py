"""Any app, and a pool process that runs messages of it in each way there is, before a real server.

What a message's task does is in its payload, so one body serves all tasks: `perform` reads it. Everything that a task,
a handler or a receiver can see is noted by ticket, and what a run leaves on the server is read from there.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from unittest.mock import patch

from celery import Celery, current_task, signals
from celery._state import _task_stack
from redis import Redis
from redis.exceptions import ConnectionError as ConnectionLost

from bridge.app.effects import Effects
from bridge.app.installation import install
from bridge.consumer import writer as writers
from bridge.consumer.deadline import now_ns
from bridge.consumer.writer import OutcomeWriter
from bridge.link.connections import Wire
from bridge.protocol.names import BUNDLE_TASK, HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS
from bridge.protocol.outcomes import decode
from bridge.testing import handle
from bridge.worker.guard import shared_page
from bridge.worker.guard.shared_page import SharedPage
from bridge.worker.pool import bundles, calls, light_tracer
from bridge.worker.pool.execute import Execution
from tests.unit.worker.kept_outcomes import LIFE, heads
from tests.unit.worker.odd_ends import ERRORS, RESULTS

BASE = 1_000_000
#: Fences of one run.
SPAN = 10
QUEUE = "q"
#: A payload: what a task does, and how it ends.
Script = dict[str, Any]


#: The fields of states that other programs wrote.
SEEDS: dict[str, Any] = {
    "fields": {"a": " 1", "many": "[1, 2]", "z": "1.0", "é": "12345678901234567890123"},
    "large": {"z": json.dumps("x" * 70)},
    "broken": {"a": "{no"},
    "no hash": None,
}

BASES = ("none", "call", "before", "handlers", "all")


@dataclass
class Notes:
    """What was seen of one ticket."""

    seen: list[Any] = field(default_factory=list)
    #: Message -> the tokens of the effects that were taken.
    tokens: dict[str, list[str]] = field(default_factory=dict)
    #: Message -> the state when the body ended.
    states: dict[str, Any] = field(default_factory=dict)
    #: Message -> the state when the body began.
    begun: dict[str, Any] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)


@dataclass
class Report:
    """What one way of running messages left. All by ticket, where the order between tickets may differ."""

    notes: dict[str, Notes] = field(default_factory=dict)
    #: Message -> (kind, error, whether there is a traceback, delay ms) of its outcome.
    outcomes: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    #: How often each fence has an outcome.
    times: dict[int, int] = field(default_factory=dict)
    #: Message -> kind and text of its event.
    events: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    #: Ticket -> the tokens of the effects that were applied.
    applied: dict[str, list[str]] = field(default_factory=dict)
    #: Ticket -> the sums that effects made.
    sums: dict[str, dict[str, str]] = field(default_factory=dict)
    states: dict[str, Any] = field(default_factory=dict)
    #: Ticket -> whether its state has a time to live.
    mortal: dict[str, bool] = field(default_factory=dict)
    #: Message -> its stored result.
    results: dict[str, Any] = field(default_factory=dict)
    #: Task and ticket of the messages that tasks pushed.
    pushed: list[tuple[str, str]] = field(default_factory=list)
    calls: int = 0
    ended: str = ""


@dataclass(frozen=True)
class Message:
    task: str
    script: Script


class Breaking(Wire):
    """A connection that breaks when it is told to. ``faults``: what happens to each write of this process."""

    faults: Iterator[str | None] = iter(())
    fault: str | None = None

    def _send(self, packed: Sequence[bytes]) -> None:
        self.fault = next(Breaking.faults, None)
        if self.fault == "not sent":
            self.close()
            raise ConnectionLost("not sent")
        super()._send(packed)

    def answer(self) -> Any:
        fault, self.fault = self.fault, None
        reply = super().answer()
        if fault == "reply lost":
            self.close()
            raise ConnectionLost("no reply")
        return reply


class PoolWorld:
    """An app and its pool process. ``tasks``: name -> options; ``conf``: settings of the app."""

    def __init__(self, url: str, client: Redis, tasks: dict[str, dict[str, Any]], conf: dict[str, Any]) -> None:
        self.client = client
        self.url = url
        self.seeds: Mapping[str, str] = {}
        conf = dict(conf)
        backend = {"redis": url, "memory": "cache+memory://", "none": None}[conf.pop("backend", "none")]
        self.app: Any = install(Celery("shop", broker=url, backend=backend, set_as_current=False))
        self.app.conf.update(bridge_bundle_ms=10_000, bridge_backoff={"jitter": 0}, **conf)
        self.report = Report()
        self.shared = SharedPage()
        self.options = tasks
        for name, options in tasks.items():
            self._declare(name, dict(options))
        self.app.finalize()
        self.lane = self.app.bridge.settings.lane

    def close(self) -> None:
        backend = self.app.backend
        # A result that is collected later would ask a server that may be gone.
        backend.remove_pending_result = lambda result: result
        if hasattr(backend, "client"):
            pool = getattr(backend.client, "connection_pool", None)
            if pool is not None:
                pool.disconnect()
        self.app.close()

    # -- the app ---------------------------------------------------------------------------------------------------

    def _declare(self, name: str, options: dict[str, Any]) -> None:
        base = self._base(options.pop("kind", "none"))
        bound = options.pop("bind", True)
        for key in ("autoretry_for", "dont_autoretry_for", "throws"):
            if key in options:
                options[key] = tuple({"value": ValueError, "lookup": LookupError}[one] for one in options[key])
        if options.pop("rollback", False):
            options["bridge_rollback"] = self._undo
        world = self

        if bound:

            def body(self_: Any, ticket_id: str, payload: Script) -> Any:
                return world.perform(self_, ticket_id, payload)

            function: Any = body
        else:

            def free(ticket_id: str, payload: Script) -> Any:
                return world.perform(current_task._get_current_object(), ticket_id, payload)

            function = free
        self.app.task(bind=bound, base=base, name=name, lazy=False, shared=False, **options)(function)

    def _base(self, kind: str) -> Any:
        world = self
        task_class = self.app.Task
        attributes: dict[str, Any] = {}
        if kind in ("call", "all"):

            def call(self_: Any, *args: Any, **kwargs: Any) -> Any:
                world.note(self_, args[0] if args else kwargs["ticket_id"], "call in")
                try:
                    outer: Any = super(made, self_)
                    return outer.__call__(*args, **kwargs)
                finally:
                    world.note(self_, args[0], "call out")

            attributes["__call__"] = call
        if kind in ("before", "all"):

            def before_start(self_: Any, task_id: str, args: Any, kwargs: Any) -> None:
                world.note(self_, args[0], "before_start", task_id)
                for step in args[1].get("before", ()):
                    world._step(self_, args[0], args[1], step)

            attributes["before_start"] = before_start
        if kind in ("handlers", "all"):
            for handler in ("on_success", "on_failure", "on_retry"):
                attributes[handler] = self._handler(handler)

            def after_return(self_: Any, status: str, retval: Any, *args: Any) -> None:
                world._handled(self_, "after_return", retval, *args, status)

            attributes["after_return"] = after_return
        made: Any = type(f"Base_{kind}", (task_class,), attributes)
        return made if attributes else None

    def _handler(self, name: str) -> Any:
        def handler(self_: Any, outcome: Any, *args: Any) -> None:
            self._handled(self_, name, outcome, *args)

        return handler

    def _handled(self, task: Any, name: str, outcome: Any, task_id: str, args: Any, kwargs: Any, *more: Any) -> None:
        del kwargs
        status = more[-1] if name == "after_return" else ""
        self.note(task, args[0], name, task_id, status, _shown(outcome))
        for step in args[1].get(name, ()):
            self._step(task, args[0], args[1], step)

    def _undo(self, task: Any, lost: Any, ticket_id: str, payload: Script) -> None:
        self.note(task, ticket_id, "rollback", lost.attempt)
        for step in payload.get("rollback", ()):
            self._step(task, ticket_id, payload, step)

    # -- what a task does --------------------------------------------------------------------------------------------

    def of(self, ticket: str) -> Notes:
        return self.report.notes.setdefault(ticket, Notes())

    def note(self, task: Any, ticket_id: str, what: str, *more: Any) -> None:
        ticket = task.request.__dict__.get("bridge_ticket")
        current = current_task._get_current_object() if current_task else None
        self.of(ticket_id).seen.append(
            (
                what,
                task.name,
                {
                    **{
                        name: getattr(task.request, name, None)
                        for name in ("id", "root_id", "retries", "ignore_result")
                    },
                    "leak": getattr(task.request, "leak", None),
                    "headers": dict(task.request.headers or {}),
                    "args": copy.deepcopy(task.request.args),
                    "current": current and (current.name, current.request.id),
                    "depth": (len(_task_stack), len(task.request_stack)),
                    "ticket": ticket and ticket.pushed and (ticket.id, ticket.message_id, ticket.attempt),
                },
                *more,
            )
        )

    def perform(self, task: Any, ticket_id: str, payload: Script) -> Any:
        """The body of every task."""
        ticket = task.request.__dict__.get("bridge_ticket")
        is_message = ticket is not None and ticket.pushed and "inner" not in payload
        state = None
        if ticket is not None and task.bridge_state and isinstance(ticket._state, dict):
            state = json.dumps(ticket.state)
        self.note(task, ticket_id, "body", state)
        notes = self.of(ticket_id)
        if is_message:
            notes.started.append(ticket.message_id)
            notes.tokens.setdefault(ticket.message_id, [])
            if state is not None:
                notes.begun[ticket.message_id] = state
        try:
            for step in payload.get("do", ()):
                self._step(task, ticket_id, payload, step)
            return self._end(task, payload["end"])
        finally:
            if is_message and task.bridge_state and isinstance(ticket._state, dict):
                notes.states[ticket.message_id] = json.dumps(ticket.state)

    def _step(self, task: Any, ticket_id: str, payload: Script, step: list[Any]) -> None:
        kind, *more = step
        ticket = task.request.__dict__.get("bridge_ticket")
        if kind == "effect":
            token = f"{ticket.message_id}/{more[0]}"
            ticket.effects.rpush(f"log:{ticket_id}", token)
            self.of(ticket_id).tokens.setdefault(ticket.message_id, []).append(token)
        elif kind == "add":
            ticket.effects.hincrby(f"sums:{ticket_id}", more[0], 1)
        elif kind == "wrong":
            ticket.effects.incrby(f"list:{ticket_id}", 1)
        elif kind == "refused":
            ticket.effects.get("anything")
        elif kind == "set":
            ticket.state[more[0]] = _value(more[1])
        elif kind == "append":
            found = ticket.state.setdefault("many", [])
            found.append(_value(more[0]))
        elif kind == "del":
            ticket.state.pop(more[0], None)
        elif kind == "clear":
            ticket.state.clear()
        elif kind == "ttl":
            ticket.state.ttl(more[0])
        elif kind == "bad state":
            ticket.state["bad"] = float("nan")
        elif kind == "try":
            try:
                for inner in more[0]:
                    self._step(task, ticket_id, payload, inner)
            except Exception as exc:
                self.note(task, ticket_id, "caught", type(exc).__name__, _text(exc))
        elif kind == "ask":
            task.retry(throw=False, countdown=3)
        elif kind == "call":
            how, name, script = more
            self._call(task, ticket_id, how, self.app.tasks[name], {**script, "inner": True})
        elif kind == "push":
            self.app.tasks[more[0]].push("pushed", {"end": ["return", 1]})
        elif kind == "delay":
            self.app.tasks[more[0]].apply_async(("delayed", {"end": ["return", 1]}), task_id=f"from {ticket_id}")
        elif kind == "attribute":
            task.request.leak = ticket_id
            task.request.headers["leak"] = ticket_id
        elif kind == "tell":
            task.update_state(state="BUSY", meta={"ticket": ticket_id})
        elif kind == "lease":
            self.shared.end()
        elif kind == "recalled":
            self.shared.recalled_to = BASE * 2
        elif kind == "raise":
            raise ERRORS[more[0]]()
        else:
            raise AssertionError(kind)

    def _call(self, task: Any, ticket_id: str, how: str, other: Any, script: Script) -> None:
        if how == "function":
            found = other(ticket_id, script)
        elif how == "run":
            found = other.run(ticket_id, script)
        elif how == "apply":
            result = other.apply((ticket_id, script), task_id="inner")
            found = (result.state, _shown(result.result))
        else:
            found = other.apply((ticket_id, script), task_id="inner", throw=True).result
        self.note(task, ticket_id, "called", _shown(found))

    def _end(self, task: Any, end: list[Any]) -> Any:
        kind, *more = end
        if kind == "return":
            return _value(more[0])
        if kind == "odd":
            return RESULTS[more[0]]()
        if kind == "raise":
            raise ERRORS[more[0]]()
        if kind == "retry":
            options = dict(more[0])
            if "exc" in options:
                options["exc"] = ERRORS[options["exc"]]()
            return task.retry(**options)
        if kind == "replace":
            return task.replace(self.app.signature("plain", args=("T", {"end": ["return", 1]})))
        raise AssertionError(kind)

    # -- runs --------------------------------------------------------------------------------------------------------

    def bundle(self, runs: list[tuple[str, int, list[Message]]], *, light: bool, **more: Any) -> Report:
        """Runs all runs (ticket, attempt, messages) in one bundle, by the light tracer or by Celery's."""
        rows = self._rows(runs)
        request = {**self._headers(rows), "id": "bundle", "task": BUNDLE_TASK}
        with self._prepared(runs, **more), self._tracer(light):
            self._take(calls.run_bundle, request, json.dumps(rows))
        return self._read(runs)

    def alone(self, runs: list[tuple[str, int, list[Message]]], **more: Any) -> Report:
        """Runs each message alone, and of a ticket no more when one did not succeed."""
        with self._prepared(runs, **more):
            for ticket, offset, attempt, messages in self._rows(runs):
                for place, (id_, task, payload) in enumerate(messages):
                    head = [[ticket, offset + place, attempt if not place else 1, [None]]]
                    known = self.app.tasks.get(task)
                    request = {
                        **bundles.request_of_bundle(self._headers(head), "w1@here"),
                        **self._headers(head),
                        "id": id_, "task": task, "root_id": id_, "correlation_id": id_,
                        "retries": (attempt if not place else 1) - 1,
                        "ignore_result": known is None or bool(known.ignore_result),
                    }  # fmt: skip
                    self._take(calls.run_ticket, request, json.dumps([[ticket, payload], {}, {}]), id_)
                    found = self._outcomes()[0].get(id_)
                    if found is None or found[0] not in ("DONE", "DROPPED"):
                        break
        return self._read(runs)

    def handled(self, runs: list[tuple[str, int, list[Message]]]) -> dict[str, Any]:
        """Handles each message without a server."""
        self.report = Report()
        found: dict[str, Any] = {}
        self.shared.begin(LIFE, now_ns() + 600 * 10**9)
        for ticket, _, attempt, messages in self._rows(runs):
            for place, (id_, task, payload) in enumerate(messages):
                if task not in self.options or any(
                    payload.get(name) for name in ("on_success", "on_failure", "on_retry", "after_return")
                ):
                    break
                one = handle(self.app.tasks[task], ticket, payload, attempt=attempt if not place else 1)
                found[id_] = one
                if one.state not in ("done", "dropped"):
                    break
        return found

    def _rows(self, runs: list[tuple[str, int, list[Message]]]) -> list[Any]:
        return [
            [ticket, SPAN * n, attempt, [[f"{n + 1}-{i}", one.task, one.script] for i, one in enumerate(messages)]]
            for n, (ticket, attempt, messages) in enumerate(runs)
        ]

    def _headers(self, rows: list[Any]) -> dict[str, Any]:
        delivery_info = {"exchange": "", "routing_key": QUEUE, "priority": 0, "redelivered": None}
        return {
            HEADER_INCARNATION: LIFE, HEADER_BASE: BASE, HEADER_RUNS: heads(rows), "origin": "m1",
            "properties": {}, "delivery_info": delivery_info,
        }  # fmt: skip

    @contextmanager
    def _prepared(
        self,
        runs: list[tuple[str, int, list[Message]]],
        *,
        faults: Sequence[str | None] = (),
        stale: Sequence[str] = (),
        seeds: Mapping[str, str] | None = None,
        revoked: Sequence[str] = (),
        in_main: bool = True,
        write_after_s: float = 600.0,
        split_from: int = 32,
        listeners: Sequence[tuple[str, bool]] = (),
    ) -> Iterator[None]:
        self.report = Report()
        self.seeds = seeds or {}
        self.client.flushdb()
        with self.client.pipeline() as pipe:
            for n, (ticket, attempt, messages) in enumerate(runs):
                fence = 1 if ticket in stale else BASE + SPAN * n
                record = [fence, len(messages), "w1@here", LIFE, attempt, [f"{n + 1}-0"], 0, ""]
                pipe.hset(self.lane.keys.tickets, ticket, json.dumps(record, separators=(",", ":")))
                pipe.rpush(f"list:{ticket}", "a")
            pipe.xadd(self.lane.keys.outcomes, {"none": 1})
            for ticket, seed in (seeds or {}).items():
                key = self.lane.keys.state(ticket)
                if seed == "no hash":
                    pipe.set(key, "a text")
                elif seed:
                    pipe.hset(key, mapping=SEEDS[seed])
            pipe.execute()
        if type(self.app.backend).__name__ == "CacheBackend":
            self.app.backend.client.cache.clear()
        self.shared = SharedPage()
        self.shared.begin(LIFE, now_ns() + 600 * 10**9)
        self.shared.revoke(revoked)
        self.shared._numbers[shared_page._MAIN_PID] = os.getpid() if in_main else os.getppid()
        self.writer = OutcomeWriter(self.url, self.lane, self.shared)
        execution = Execution(self.app, self.lane, self.shared, self.writer, "w1@here")
        self.execution = execution
        Breaking.faults = iter(faults)
        calls.add({QUEUE: execution})
        connected = [self._listen(name, breaks) for name, breaks in listeners]
        try:
            with (
                patch.object(writers, "Wire", Breaking),
                patch.object(writers, "RETRY_S", 0.0),
                patch.object(bundles, "WRITE_AFTER_S", write_after_s),
                patch.object(bundles, "SPLIT_FROM", split_from),
            ):
                yield
        finally:
            Breaking.faults = iter(())
            calls.remove([QUEUE])
            for signal, receiver in connected:
                signal.disconnect(receiver)
            for wire in self.writer._idle:
                wire.close()
            if self.writer._made_client is not None:
                self.writer._made_client.close()
            Effects.own = frozenset()

    def _listen(self, name: str, breaks: bool) -> tuple[Any, Any]:
        signal = getattr(signals, name)

        def receiver(sender: Any = None, **fields: Any) -> None:
            if sender.name not in self.options:
                return
            request = fields.get("request") or sender.request
            args = request.args or ("?",)
            self.note(sender, args[0], name, fields.get("task_id"), fields.get("state"), _shown(fields.get("result")))
            if breaks:
                raise ValueError("a receiver")

        signal.connect(receiver, weak=False)
        return signal, receiver

    @contextmanager
    def _tracer(self, light: bool) -> Iterator[None]:
        if light:
            yield
            return
        with patch.object(light_tracer, "COMPARED", ()):
            light_tracer._celerys_code.cache_clear()
            try:
                yield
            finally:
                light_tracer._celerys_code.cache_clear()

    def _take(self, run: Any, request: dict[str, Any], body: str, message: str = "") -> None:
        try:
            failed, found, _ = run(request["task"], request["id"], request, body)
        except BaseException as exc:
            self.report.ended = repr(exc)
            return
        finally:
            assert len(_task_stack) == 0, "a task is left on the stack"
            for name in self.options:
                assert len(self.app.tasks[name].request_stack) == 0, "a request is left on the stack"
        if message:
            self.report.events[message] = (failed, _shown(found))
        elif isinstance(found, list):
            for id_, *event in found:
                self.report.events[id_] = (
                    event[0],
                    re.sub("id=[0-9]+|<Unrepresentable.*", "", str(event[1]), flags=re.DOTALL),
                )

    def _outcomes(self) -> tuple[dict[str, tuple[Any, ...]], dict[int, int]]:
        found: dict[str, tuple[Any, ...]] = {}
        times: dict[int, int] = {}
        entries: Any = self.client.xrange(self.lane.keys.outcomes)
        for _, fields in entries:
            for one in decode(fields[b"o"]) if b"o" in fields else ():
                row = (one.kind.name, one.error, bool(one.traceback), one.delay_ms)
                times[one.fence] = times.get(one.fence, 0) + 1
                # The first counts. A write whose reply is lost as the lease ends may be followed by another outcome.
                found.setdefault(one.message_id, row)
        return found, times

    def _read(self, runs: list[tuple[str, int, list[Message]]]) -> Report:
        seeds = self.seeds
        report, client = self.report, cast("Any", self.client)
        report.outcomes, report.times = self._outcomes()
        for ticket, *_ in runs:
            report.applied[ticket] = [one.decode() for one in client.lrange(f"log:{ticket}", 0, -1)]
            report.sums[ticket] = {k.decode(): v.decode() for k, v in client.hgetall(f"sums:{ticket}").items()}
            key = self.lane.keys.state(ticket)
            if (seed := seeds.get(ticket)) in ("broken", "no hash"):
                stored = client.get(key) if seed == "no hash" else client.hgetall(key)
                report.states[ticket] = seed if stored in (b"a text", {b"a": b"{no"}) else repr(stored)
                continue
            report.states[ticket] = {k.decode(): json.loads(v) for k, v in client.hgetall(key).items()}
            report.mortal[ticket] = client.pttl(key) > 0
            assert client.lrange(f"list:{ticket}", 0, -1) == [b"a"]
        for _, _, _, messages in self._rows(runs):
            for id_, *_ in messages:
                report.results[id_] = self._result(id_)
        if client.exists(self.lane.stream):
            report.pushed = [
                (fields[b"task"].decode(), fields[b"ticket_id"].decode())
                for _, fields in client.xrange(self.lane.stream)
            ]
        report.calls = client.llen("celery")
        return report

    def has_results(self, name: str) -> bool:
        """Whether the results of a task are stored."""
        return not self.app.tasks[name].ignore_result and hasattr(self.app.backend, "get_key_for_task")

    def _result(self, id_: str) -> Any:
        backend = self.app.backend
        if not hasattr(backend, "get_key_for_task"):
            return None
        stored = backend.get(backend.get_key_for_task(id_))
        if stored is None:
            return None
        meta = json.loads(stored)
        return {name: value for name, value in meta.items() if name not in ("date_done", "traceback")} | {
            "has_traceback": bool(meta.get("traceback"))
        }


def _text(exc: BaseException) -> str:
    try:
        return str(exc)[:200]
    except Exception:
        return "?"


def _value(given: Any) -> Any:
    """A copy of ``given``. A text names a number that a payload cannot have."""
    if isinstance(given, list):
        return [_value(one) for one in given]
    if isinstance(given, dict):
        return {name: _value(one) for name, one in given.items()}
    return int(given[4:]) if isinstance(given, str) and given.startswith("int:") else given


def _shown(value: Any) -> Any:
    """``value`` in a form that two runs can compare."""
    if isinstance(value, BaseException):
        return (type(value).__name__, _text(value))
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return type(value).__name__
