"""A bundle in the worker's main process. Each of its messages has its own events, reports and revokes.

When the pool process ends, the shared page says which message was running. That message is charged, comes again, or is
dead. The others go back to the leader.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import orjson
from billiard.common import TERM_SIGNAME
from celery import signals
from celery.app.task import Context
from celery.platforms import signals as os_signals
from celery.worker.request import Request
from celery.worker.state import task_ready

from bridge.protocol.envelope import SHOWN
from bridge.protocol.headers import heads_of, readable_runs
from bridge.protocol.outcomes import Kind
from bridge.worker.main.bundle_events import TaskEvent, json_of, quoted, send_together, watched
from bridge.worker.main.requests import BridgeRequest, CarriedMessage, Revoked
from bridge.worker.pool.bundles import request_of_bundle
from bridge.worker.pool.delivery import EXPIRED, NEVER_STARTED

#: The body of a larger bundle is not kept until its events are sent. Bytes.
MOST_KEPT = 64 * 1024


class BundleRequest(BridgeRequest):
    """The request of a bundle. It sends events for each message, so that Flower shows each."""

    carries_many = True
    #: Ids of messages that an operator terminated.
    terminated_ids: frozenset[str] = frozenset()
    #: Whether an operator revoked the whole bundle before it began.
    _is_revoked = False

    def unfinished(self) -> list[CarriedMessage]:
        """The messages that have not ended, as far as is known: the one that runs, and all after it."""
        place = {one.fence: (one.place, n) for n, one in enumerate(self.messages())}
        running = self.member.shared.running_fences() & place.keys()
        begin = min((place[fence] for fence in running), default=(0, 0))
        return [one for one in self.messages() if place[one.fence] >= begin]

    def end(self, pool: Any, ids: frozenset[str], signal: Any) -> None:
        """An operator terminated the messages ``ids`` of this bundle. If one of them runs, its process is ended.

        None of them comes again. Another message of the bundle that runs now goes on.
        """
        self.terminated_ids |= ids
        running = self.member.shared.running_fences()
        if any(one.id in ids and one.fence in running for one in self.messages()):
            self._terminated_by_operator = True
            pool.terminate_job(self.worker_pid, os_signals.signum(signal or TERM_SIGNAME))
            if self.member.forks:
                self.lost(Kind.DEAD, Revoked("terminated"))

    def _outcome_kind(self, kind: Kind, one: CarriedMessage, running: int) -> Kind:
        if self._is_revoked:
            return kind
        if one.fence != running:
            return Kind.RETURNED
        if kind is Kind.DEAD and one.id not in self.terminated_ids:
            # The operator meant another message of the bundle, which had just ended. This one comes again.
            return Kind.INTERRUPTED
        return kind

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        """The bundle itself is not shown as a task: its messages are reported.

        A bundle whose id was revoked before it began may not go back: it would come again under this id, without end.
        """
        del terminated, signum, expired
        task_ready(self)
        self._already_revoked = True
        self._is_revoked = reason == "revoked" and not self.time_start
        self.lost(Kind.DEAD, Revoked(reason))

    def messages(self) -> Iterator[CarriedMessage]:
        base = self._base_fence
        for ticket, offset, attempt, messages in readable_runs(self._message.body, None):
            for i, (id_, name, payload) in enumerate(messages):
                yield CarriedMessage(id_, name, ticket, payload, base + offset + i, attempt if i == 0 else 1, i)

    def context_of(self, one: CarriedMessage) -> Context:
        own = {"id": one.id, "root_id": one.id, "correlation_id": one.id, "task": one.task, "retries": one.attempt - 1}
        ignores = bool(self._app.tasks[one.task].ignore_result)
        arguments = {"args": [one.ticket, one.payload], "kwargs": {}, "headers": {}, "ignore_result": ignores}
        return Context({**request_of_bundle(self._request_dict, self._hostname), **own, **arguments})

    def signal_received(self, consumer: Any) -> None:
        """Sends it for each message, with a request of Celery's class, since receivers know the bundle's not."""
        if not signals.task_received.receivers:
            return
        for one in self.messages():
            if (task := self._app.tasks.get(one.task)) is not None:
                signals.task_received.send(sender=consumer, request=self._shown(one, task))

    def _shown(self, one: CarriedMessage, task: Any) -> Request:
        fields = vars(self.context_of(one))
        arguments = f"({one.ticket!r}, {_beginning(one.payload)})"
        shown = Request(
            self._message,
            headers={**fields, "argsrepr": arguments, "kwargsrepr": "{}"},
            body=(fields["args"], fields["kwargs"], {}),
            decoded=True,
            hostname=self._hostname,
            eventer=self._eventer,
            app=self._app,
            task=task,
        )
        # It takes this from the Celery message, which is the bundle's.
        shown.request_dict["correlation_id"] = one.id
        return shown

    def announce(self) -> None:
        if not watched(self._eventer):
            return
        body = self._message.body
        count = sum(run.length for run in heads_of(self._request_dict))
        if len(body) <= MOST_KEPT:
            self._send_events(count, partial(_received, body))
        else:
            received = _received(body)
            self._send_events(count, lambda: received)

    def _send_events(self, count: int, write: Callable[[], list[TaskEvent]]) -> None:
        later = self.member.forks and not self.member.is_stopping
        send_together(self._eventer, count, write, later=later)

    def send_event(self, kind: str, **fields: Any) -> None:
        """Sends nothing: the bundle itself is not shown as a task."""

    def on_success(self, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        if not isinstance(failed__retval__runtime, tuple):
            # A pool within the main process reports this for an error that is no `Exception`.
            return super().on_success(failed__retval__runtime, **kwargs)
        failed, events, _ = failed__retval__runtime
        if not failed and events and events[0][1] in NEVER_STARTED:
            gone = {id_: kind for id_, kind, *_ in events if kind in NEVER_STARTED}
            for one in self.messages():
                if kind := gone.get(one.id):
                    self._report_of(one, Revoked(kind)).revoked(terminated=False, expired=kind == EXPIRED)
            events = events[len(gone) :]
        if not failed and events and watched(self._eventer):
            self._send_events(2 * len(events), partial(_ended, events))
        return super().on_success((failed, None, 0.0) if not failed else failed__retval__runtime, **kwargs)


def _received(body: str | bytes) -> list[TaskEvent]:
    """The events for received messages of a bundle with this body."""
    found: list[TaskEvent] = []
    names: dict[str, str] = {}
    for ticket, _, attempt, messages in readable_runs(body, None):
        opening = f"({ticket!r}, "
        retries = attempt - 1
        for id_, name, payload in messages:
            quoted_name = names.get(name) or names.setdefault(name, quoted(name))
            args = quoted(f"{opening}{_beginning(payload)})")
            # The id of a message has nothing that JSON escapes.
            found.append(
                f'"type":"task-received","uuid":"{id_}","name":{quoted_name},"args":{args},"kwargs":"{{}}",'
                f'"retries":{retries}'
            )
            retries = 0
    return found


def _ended(events: list[tuple[Any, ...]]) -> list[TaskEvent]:
    """The events for messages that have ended. ``events``: what their pool process says of each."""
    found: list[TaskEvent] = []
    for id_, kind, shown, more in events:
        first, second = ("result", "runtime") if kind == "succeeded" else ("exception", "traceback")
        found += (
            f'"type":"task-started","uuid":"{id_}"',
            f'"type":"task-{kind}","uuid":"{id_}","{first}":{json_of(shown)},"{second}":{json_of(more)}',
        )
    return found


def _beginning(payload: Any) -> str:
    """The beginning of a payload as JSON, for people."""
    try:
        text = orjson.dumps(payload)
    except TypeError:
        # A number, or half of a surrogate pair, that only Python's parser accepts.
        text = json.dumps(payload).encode()
    return text[:SHOWN].decode(errors="replace")
