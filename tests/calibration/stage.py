"""Runs real masters and workers of a mutated product, and lets every detector of the project check them.

The detectors are those that are trusted elsewhere: the checks of the chaos runs on a ledger that the tasks write
themselves (`ledger`), one atomic look after another at the lane at work (`look`), every command that the server was
sent (`writes`), and the audit of the history (`audit`). They all come from the product as it is; only the nodes have
the mutation: they run a copy of the product, or get it where they are (`tests.calibration.in_place`).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis as redis_py
from redis import Redis

from bridge.audit.audit import audit
from bridge.routing.keys import layout_copy_key
from bridge.routing.scripts import with_shared
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import MasterNode, WorkerNode, broker_environment
from bridge.testing.nodes.process import python_module
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import WaitTimeout, wait_until
from tests.calibration import agreement
from tests.calibration.in_place import TEXTS
from tests.calibration.listening import Listener
from tests.chaos import evidence
from tests.chaos.chains import check_chain, together
from tests.chaos.checks import Execution, Message, Notes, Rest, check_all, check_states
from tests.chaos.facts import Evidence
from tests.chaos.ledger import LedgerReader
from tests.chaos.repartition import layouts
from tests.chaos.subscriptions import ONE, STREAM, Subscription, environment, evidence_of
from tests.chaos.versions import chains, follows
from tests.nodes.clocks import SettableClock

APP, MUTATED_APP = "tests.chaos.app", "tests.calibration.mutated_app"
#: Workers start a second sooner without looking for their neighbours.
QUICK = ("--without-mingle", "--without-gossip")
#: Seconds. Short, but long enough that a busy machine does not lose a lease by itself.
LEASE_S = 1.5
#: Of those that must keep theirs although the machine stands still for a while.
KEPT_S = 15.0
MAX_ATTEMPTS = 3
#: Seconds without any progress after which a lane counts as stuck, and until one that is done is at rest: of a sound
#: product on a busy machine, and of a broken one, which is not worth waiting for.
PATIENCE_S, REST_WITHIN_S = 25.0, 10.0
IMPATIENCE_S, BROKEN_REST_S = 5.0, 2.0
#: The same as a multiple of what the first processes of a run took to be there: a scenario may start another one.
STARTS = 4
#: Seconds between two looks at a lane at work: where one of them must find something, and elsewhere.
QUICK_LOOK_S, LOOK_S = 0.005, 0.1
#: Seconds between two questions whether a lane has come to its end, at most.
SETTLED_S = 0.03


@dataclass(frozen=True)
class Finding:
    """What one detector found. ``str()``: as a mutation names it."""

    detector: str
    what: str
    detail: str

    def __str__(self) -> str:
        return f"{self.detector}: {self.what}"


class Stage:
    """One lane of its own; a context manager. ``copy``: where nodes get the product from. ``wanted``: what must be
    found; once it is, a run may end sooner. ``clock``: the server's, where it is to be set. ``subscriptions``: the
    lanes; scenarios look at the first one. ``texts``: what nodes have in the place of these files of ``copy``.
    """

    def __init__(
        self,
        folder: Path,
        binary: Path,
        copy: Path,
        wanted: tuple[str, ...] = (),
        clock: SettableClock | None = None,
        subscriptions: Sequence[Subscription] = ONE,
        texts: Mapping[str, str] | None = None,
    ) -> None:
        self.copy = copy
        self._texts = texts or {}
        self._app = MUTATED_APP if texts else APP
        self.subscriptions = subscriptions
        self.lanes = [one.keys for one in subscriptions]
        self.keys = self.lanes[0]
        self.notes = Notes()
        #: Of the nodes that start from now on; None: the default.
        self.bundle_ms: float | None = None
        self.messages: list[Message] = []
        self.findings: list[Finding] = []
        self._wanted = set(wanted)
        self._look_s = QUICK_LOOK_S if any(one.startswith("look: ") for one in wanted) else LOOK_S
        self._looked_at = -self._look_s
        self._patience_s = IMPATIENCE_S if wanted else PATIENCE_S
        self._rest_within_s = BROKEN_REST_S if wanted else REST_WITHIN_S
        self._folder = folder
        self._numbers: dict[str, int] = {}
        self.clock = clock
        binary = clock.program(binary) if clock is not None else binary
        self.server = EmbeddedServer(binary=binary, data_dir=folder / "server", append_only=False)

    def __enter__(self) -> Self:
        self.ledger_folder = self._folder / "ledger"
        self.ledger_folder.mkdir(parents=True)
        self._mutated.write_text(json.dumps(self._texts), encoding="utf-8")
        self.server.start()
        self.redis: Redis = self.server.client(decode_responses=True)
        self.yard = ProcessYard(self._folder, self.server.url)
        self.ledger = LedgerReader(self.ledger_folder)
        self.listener = Listener(self.server.port, self.lanes)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.yard.close()
        self.listener.close()
        self.redis.close()
        self.server.close()

    # -- who takes part ------------------------------------------------------------------------------------------

    def worker(
        self,
        name: str,
        *,
        pool: str = "prefork",
        slots: int = 1,
        lease_s: float = LEASE_S,
        wait: bool = True,
        serve: str = "",
    ) -> WorkerNode:
        """``serve``: the subscription that it serves, if not all."""
        size = () if pool == "solo" else (f"--concurrency={slots}",)
        env = {**self._env(), "CHAOS_POOL": pool, "CHAOS_LEASE": str(lease_s)}
        env |= {"BRIDGE_SERVE": serve} if serve else {}
        return self.yard.worker(
            name, app=self._app, arguments=("--pool", pool, *size, *QUICK), env=env, cwd=self.copy, wait=wait
        )

    def master(
        self,
        name: str,
        *,
        url: str | None = None,
        leader_lease_s: float = LEASE_S,
        lease_s: float = LEASE_S,
        wait: bool = True,
    ) -> MasterNode:
        """``url``: where it finds the server, if not at its own address."""
        leases = {"CHAOS_LEADER_LEASE": str(leader_lease_s), "CHAOS_LEASE": str(lease_s)}
        env = {**self._env(), **(broker_environment(url) if url else {}), **leases}
        return self.yard.master(name, app=self._app, env=env, cwd=self.copy, ready_text="standing by", wait=wait)

    def _env(self) -> dict[str, str]:
        return {
            **environment(self.subscriptions),
            **follows(self.subscriptions),
            # The keys of old partitions are looked at in the end.
            **({} if self.subscriptions == ONE else {"CHAOS_RETENTION": "600" if self._is_repartitioned else "0"}),
            "PYTHONPATH": str(self.copy),
            **({TEXTS: str(self._mutated)} if self._texts else {}),
            **({} if self.bundle_ms is None else {"CHAOS_BUNDLE_MS": str(self.bundle_ms)}),
            "CHAOS_LEDGER": str(self.ledger_folder),
            "CHAOS_LEASE": str(LEASE_S),
            "CHAOS_MAX_ATTEMPTS": str(MAX_ATTEMPTS),
        }

    def wait_led(self, consumers: int, lanes: int | None = None) -> None:
        """Waits until so many workers are there, and the first ``lanes`` are led; None: all. Looks at the lane all the
        while: what a worker writes when it comes is there for a moment only.
        """
        started = time.monotonic()

        def led() -> bool:
            self._look_again()
            return (
                all(self.redis.exists(keys.leader) for keys in self.lanes[:lanes])
                and self.redis.hlen(self.keys.consumers) == consumers
            )

        wait_until(led, description=f"a leader, and {consumers} workers", timeout_s=90, interval_s=0.02)
        # A machine on which they were slow to come is slow in everything.
        self._patience_s = max(self._patience_s, STARTS * (time.monotonic() - started))

    def sha(self, script: str) -> bytes:
        """What names this script of the product that the nodes have in a request."""
        file = f"routing/lua/{script}.lua"
        text = with_shared(self._texts.get(file) or (self.copy / file).read_text())
        return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest().encode()

    def calls(self, script: str) -> int:
        """How often that script was called."""
        return self.listener.calls[self.sha(script).decode()]

    # -- what happens --------------------------------------------------------------------------------------------

    def push(
        self,
        ticket: str,
        *,
        ms: float = 0,
        until: int = 1,
        dies: bool = False,
        how: str = "raise",
        kind: str = "",
        version: str = "",
        generation: int = 0,
        number: int | None = None,
        **options: int,
    ) -> str:
        """One message. It goes wrong before attempt ``until``, in the way of ``how``; with ``dies``, always.
        ``kind``: what filters look at. ``version``: of the stream. ``generation``: of its layout. ``number``: its place
        among those of its ticket; None: the next. ``options``: of the message; one that ``expires`` has expired.
        """
        n = self._number(ticket) if number is None else number
        payload = {"n": n, "ms": ms, "until": 99 if dies else until, "how": how, "kind": kind, "keep": True}
        payload |= {"v": version} if version else {}
        of = (version, generation)
        stream = next(
            one.keys.stream for one in self.subscriptions if (one.version, one.generation) == of and one.has(ticket)
        )
        payload |= {"nacks": True} if how == "nacks" else {}
        fields: dict[Any, Any] = {"ticket_id": ticket, "payload": json.dumps(payload), **options}
        id_: Any = self.redis.xadd(stream, fields)
        facts = (str(id_), ticket, n, dies, time.time_ns(), kind, version, generation)
        due_ms, hold = options.get("due", 0), "hold" in options
        self.messages.append(Message(*facts, expired="expires" in options, due_ms=due_ms, hold=hold))
        return str(id_)

    def push_by_command(self, tickets: Sequence[str]) -> None:
        """One message of each ticket, by ``bridge push`` of the nodes. To be called while nobody reads the stream."""
        rows = [{"ticket_id": ticket, "payload": {"n": self._number(ticket), "ms": 0}} for ticket in tickets]
        command = python_module("bridge", "-A", self._app, "push", "--format", "json", "-")
        env = {**os.environ, **broker_environment(self.server.url), **self._env()}
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        done = subprocess.run(
            command, cwd=self.copy, env=env, input=lines, text=True, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        for stream in {keys.stream: None for keys in self.lanes}:
            for id_, fields in evidence.entries(self.redis, stream):
                n = json.loads(fields["payload"])["n"]
                self.messages.append(Message(id_, fields["ticket_id"], n, pushed_ns=time.time_ns()))

    @contextmanager
    def repartition(self, count: int) -> Iterator[None]:
        """The stream gets so many partitions, by the command of the nodes. Within the block it has them. At the end the
        old ones must have been left, for all that anybody knows.
        """
        command = python_module("bridge", "-A", self._app, "stream", "repartition", str(count))
        env = {**os.environ, **broker_environment(self.server.url), **self._env()}
        with subprocess.Popen(
            command, cwd=self.copy, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            try:
                self.wait_for(lambda: self.redis.exists(layout_copy_key(STREAM)), "the new layout")
                yield
                out, _ = process.communicate(timeout=60)
                assert process.returncode == 0, out
            finally:
                process.kill()

    @property
    def _mutated(self) -> Path:
        return self._folder / "mutated.json"

    @property
    def _is_repartitioned(self) -> bool:
        return any(one.generation for one in self.subscriptions)

    def _number(self, ticket: str) -> int:
        n = self._numbers.get(ticket, 0)
        self._numbers[ticket] = n + 1
        return n

    def executions(self, ticket: str) -> list[Execution]:
        return sorted((e for e in self.ledger.executions() if e.ticket == ticket), key=lambda e: e.start_ns)

    def wait_for(self, predicate: Callable[[], object], description: str, timeout_s: float | None = None) -> None:
        """Waits for something that a sound product does, and looks at the lane all the while."""

        def seen() -> bool:
            self._look_again()
            return bool(predicate()) or self.caught

        wait_until(seen, description=description, timeout_s=timeout_s or self._patience_s)

    def wait_settled(self) -> None:
        """Waits until every message is done or dead; raises `WaitTimeout` when the lane stands still."""
        before, moved_at = -1, time.monotonic()
        while not self.caught:
            self._look_again()
            settled = self.settled()
            if settled >= len(self.messages):
                return
            if settled != before:
                before, moved_at = settled, time.monotonic()
            if time.monotonic() - moved_at > self._patience_s:
                raise WaitTimeout(f"nothing moves: {settled} of {len(self.messages)} messages are settled")
            time.sleep(min(self._look_s, SETTLED_S))

    def settled(self) -> int:
        """How many messages every subscription is done with."""
        settled = Counter[str]()
        for keys in self.lanes:
            found: Any = self.redis.hmget(keys.counts, ["done", "dropped", "dead", "left_out"])
            settled[keys.group] += sum(int(count or 0) for count in found)
        return min(settled.values())

    @property
    def caught(self) -> bool:
        """Whether all that is wanted was found already."""
        return bool(self._wanted) and self._wanted <= {str(finding) for finding in self.findings}

    # -- what the detectors say ----------------------------------------------------------------------------------

    def _look_again(self) -> None:
        """Looks at the lane at work, unless the last look was a moment ago: a look takes some ms of a processor."""
        now = time.monotonic()
        if now - self._looked_at >= self._look_s:
            self._looked_at = now
            self.look()

    def look(self) -> None:
        """One look at the lane at work."""
        try:
            self.ledger.catch_up()
            found = []
            for one in self.subscriptions:
                found += [
                    (v.invariant, str(v)) for v in evidence.look(self.redis, one, self.messages, len(self.messages))
                ]
        except (redis_py.ResponseError, ValueError):  # the group is not there yet
            return
        for keys in self.lanes:
            found += agreement.look(self.redis, keys)
        self._add("look", found)
        self._hear()

    def find(self, detector: str, what: str, detail: str) -> None:
        """A scenario found something itself."""
        self._add(detector, [(what, detail)])

    def judge(self) -> list[Finding]:
        """Waits until the lane is at rest, and has everybody say what was wrong."""
        if not self.redis.exists(self.keys.stream):
            return self.findings  # the scenario got stuck before anything was pushed, and said so
        deadline = time.monotonic() + self._rest_within_s
        rests = self._rests()
        while not self.caught and not all(map(_at_rest, rests)) and time.monotonic() < deadline:
            self._look_again()
            time.sleep(min(self._look_s, SETTLED_S))
            rests = self._rests()
        # These are judged: a worker that comes back in this moment sends a notice, and the lane has it for an instant.
        judged: dict[Subscription, Evidence] = {}
        for one, rest in zip(self.subscriptions, rests, strict=True):
            judged[one] = evidence_of(
                one,
                self.messages,
                self.ledger.executions(),
                evidence.effects(self.redis),
                evidence.letters(self.redis, one.keys),
                rest,
                self.notes,
                MAX_ATTEMPTS,
                struck=True,
            )
            self._add("ledger", [(violation.invariant, str(violation)) for violation in check_all(judged[one])])
        both = [([older], [newer]) for older, newer in chains(self.subscriptions)]
        for before, after in both + layouts(self.subscriptions):
            over_both = check_chain(together([judged[one] for one in before]), together([judged[one] for one in after]))
            self._add("ledger", [(violation.invariant, str(violation)) for violation in over_both])
        found = evidence.states(self.redis, several=bool(self.subscriptions[0].label))
        wrong = check_states(evidence.effects(self.redis), found)
        self._add("ledger", [(violation.invariant, str(violation)) for violation in wrong])
        self.audit()
        assert self.listener.calls, "the listener heard nothing"
        self._hear()
        return self.findings

    def audit(self) -> None:
        """What the history says of each lane now."""
        for one in self.subscriptions:
            with self.server.client() as raw:
                verdict = audit(raw, one.keys, since="0", wants=one.wants_fields if one.wants else None)
            self._add("audit", [(f.check.value, f"{f.ticket} {f.message_id} {f.text}") for f in verdict.examples])

    def _rests(self) -> list[Rest]:
        newest = max(one.generation for one in self.subscriptions)
        rests = [(one, evidence.rest(self.redis, one.keys, self.lanes)) for one in self.subscriptions]
        # Nobody reads the notices of workers that leave an old partition after its master.
        return [replace(rest, outcomes=0) if one.generation < newest else rest for one, rest in rests]

    def _hear(self) -> None:
        # A repartition is the operator's: its scripts compare the layout, and not who leads.
        if not self._is_repartitioned:
            self._add("writes", list(self.listener.findings))

    def _add(self, detector: str, found: list[tuple[str, str]]) -> None:
        for what, detail in found:
            finding = Finding(detector, what, detail)
            if finding not in self.findings:
                self.findings.append(finding)


def _at_rest(rest: Rest) -> bool:
    return not (
        rest.unread or rest.pending or rest.records or rest.applied or rest.retries or rest.outcomes or rest.ownerless
    )
