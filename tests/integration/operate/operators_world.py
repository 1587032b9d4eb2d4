"""A lane with a real master and HTTP consumers in the process of a test, an operator's commands, and a model of it all.

The test itself is the consumers, so it says when a message ends, and how. Between two steps nothing moves.
"""

from __future__ import annotations

import importlib
import re
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from click.testing import Result

from bridge.master.process import Master
from bridge.routing.ids import LAST_SEQUENCE
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import WaitTimeout, wait_until
from tests.commands import CommandLine
from tests.integration.http.http_consumers import HttpConsumerUnderTest
from tests.integration.http.http_port import port_of
from tests.integration.operate.checked_commands import CheckedCommands

HOUR_S = 3600
#: A delay that is over when the step ends.
SHORT_S = 0.03
GROUP = "concurrency_stream_group"
#: Keys that a leader writes without a cause from outside, or that an expiry ends.
OF_THE_LEADER = re.compile(r"^_kombu|:(leader|about|known|unserved|floor|agreed|reply:.*|counts)$|/(masters|layout)")
SETTINGS = {
    "bridge_breaker": {"share": 0},
    "bridge_lease": 60,
    "bridge_leader_lease": 2,
    "bridge_max_attempts": 3,
    "bridge_backoff": {"base": 0.02, "limit": 0.02},
}


@dataclass
class Pushed:
    """A message, as it was pushed and as it was ordered since."""

    id: str
    ticket: str | None
    task: str
    mode: str | None = None
    due_ms: int = 0
    #: "undone", "done", "dead", "cancelled" or "dropped".
    state: str = "undone"
    #: The step of its last order or its push: what began before may go on.
    changed_at: int = 0
    #: When it waits for a retry that is far away.
    rests: bool = False
    #: It was put back among the waiting.
    replayed: bool = False
    max_attempts: int = 3
    failures: int = 0
    broken: bool = False

    @property
    def place(self) -> tuple[int, ...]:
        """Its place in the order of its ticket. What is due in one millisecond goes in the order of the ids."""
        ms, _, sequence = self.id.partition("@")[0].partition("-")
        if self.mode == "overtake" and self.due_ms and not self.replayed:
            return max(self.due_ms, int(ms)), LAST_SEQUENCE + 1, int(ms), int(sequence)
        return int(ms), int(sequence)

    def is_delayed(self, now_ms: int) -> bool:
        return self.state == "undone" and self.mode is not None and self.due_ms > now_ms


@dataclass
class Held:
    """A message that a consumer was given."""

    consumer: HttpConsumerUnderTest
    document: dict[str, Any]


@dataclass
class World:
    """The app of ``shell`` on ``server``. What is started ends with ``stack``."""

    server: EmbeddedServer
    shell: CommandLine
    stack: ExitStack
    step: int = 0
    messages: dict[str, Pushed] = field(default_factory=dict)
    #: Tickets that were ordered to be parked, or were parked by a death.
    parked: set[str] = field(default_factory=set)
    consumers: dict[str, HttpConsumerUnderTest] = field(default_factory=dict)
    draining: set[str] = field(default_factory=set)
    held: dict[str, Held] = field(default_factory=dict)
    #: Message -> the step in which it was first in flight, of those that are.
    flying: dict[str, int] = field(default_factory=dict)
    dead_total: int = 0
    cancelled_total: int = 0
    replayed_total: int = 0
    why: str = ""
    master: tuple[Master, threading.Thread] | None = None

    def __post_init__(self) -> None:
        self.commands = CheckedCommands(self.shell)
        self.redis: Any = self.server.client()
        self.stack.callback(self.redis.close)
        self.app = importlib.import_module(self.shell.app).app
        self.tasks = {name: self.app.tasks[name] for name in ("shop.update", "shop.once")}
        self.port = self.stack.enter_context(port_of(self.app)).number
        self.stack.callback(self.stop_master)
        self.on_dead = self.app.conf.get("bridge_on_dead", "skip")

    # -- processes -----------------------------------------------------------------------------------------------------

    def start_master(self) -> None:
        leading = threading.Event()
        master = Master(self.app, announce=lambda line: leading.set() if "leading" in line else None)
        thread = threading.Thread(target=master.run, daemon=True)
        thread.start()
        self.master = master, thread
        assert leading.wait(30), "the master does not lead"

    def stop_master(self) -> None:
        if self.master is not None:
            master, thread = self.master
            master.stop()
            thread.join(30)
            self.master = None

    def join(self, name: str, slots: int) -> None:
        made = HttpConsumerUnderTest(name, slots, self.port)
        made.register()
        self.consumers[name] = made
        # A new process of the consumer takes work.
        self.draining.discard(name)

    def leave(self, name: str) -> None:
        consumer = self.consumers.pop(name)
        assert consumer.leave().status == 200
        self.draining.discard(name)
        for id_ in [id_ for id_, one in self.held.items() if one.consumer is consumer]:
            del self.held[id_]
            self.flying.pop(id_, None)

    # -- consumers -----------------------------------------------------------------------------------------------------

    def take(self, name: str, most: int) -> list[dict[str, Any]]:
        consumer = self.consumers[name]
        has = tuple(one.document["fence"] for one in self.held.values() if one.consumer is consumer)
        found = consumer.next(most, 0, has)
        for document in found:
            self.given(consumer, document)
        return found

    def given(self, consumer: HttpConsumerUnderTest, document: dict[str, Any]) -> None:
        id_, ticket = document["message_id"], document["ticket_id"]
        message = self.messages[id_]
        assert message.ticket == ticket
        assert message.state == "undone", f"{id_} is given, and it is {message.state}"
        assert id_ not in self.held, f"{id_} is given twice"
        assert not [one for one in self.held.values() if one.document["ticket_id"] == ticket], f"{ticket} overlaps"
        began = self.flying.get(id_, self.step)
        for other in self.messages.values():
            if other.ticket == ticket and other.state == "undone" and other.place < message.place:
                assert other.changed_at >= began or other.is_delayed(self.now_ms()), (
                    f"{other} is before {message}, which is given"
                )
        assert document["attempt"] == message.failures + 1
        self.held[id_] = Held(consumer, document)
        message.rests = False

    def end(self, id_: str, outcome: str, **more: Any) -> None:
        held = self.held.pop(id_)
        self.flying.pop(id_, None)
        message = self.messages[id_]
        answer = held.consumer.acknowledge(held.document, outcome, **more)
        assert answer.status == 200, answer
        if outcome == "done":
            message.state = "done"
        elif outcome == "failed":
            message.failures += 1
            message.rests = more.get("delay", 0) > 60
        message.rests = message.rests or (outcome == "refused" and more.get("delay", 0) > 60)
        if outcome == "dead" or message.failures >= message.max_attempts:
            self.died(message)

    def died(self, message: Pushed) -> None:
        message.state, message.rests = "dead", False
        self.dead_total += 1
        if self.on_dead == "park" and message.ticket is not None and not message.broken:
            self.parked.add(message.ticket)

    # -- pushes --------------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        seconds, micros = self.redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def pushed(self, id_: str, ticket: str | None, task: str = "shop.update", **facts: Any) -> Pushed:
        if task == "shop.once":
            facts.setdefault("max_attempts", 1)
        message = Pushed(id_, ticket, task, changed_at=self.step, **facts)
        self.messages[id_] = message
        return message

    def push(self, ticket: str, task: str, delay: float | None, hold: bool, **options: Any) -> None:
        if delay is None:
            id_ = self.tasks[task].push(ticket, {"n": 1}, **options)
            facts: dict[str, Any] = {}
        else:
            id_ = self.tasks[task].push(ticket, {"n": 1}, delay=delay, hold=hold, **options)
            facts = {"mode": "hold" if hold else "overtake", "due_ms": self.due_of(id_)}
        if "max_attempts" in options:
            facts["max_attempts"] = options["max_attempts"]
        self.pushed(id_, ticket, task, **facts)

    def due_of(self, id_: str) -> int:
        stream_id, _, partition = id_.partition("@")
        [(_, fields)] = self.redis.xrange(self.stream_of(partition), stream_id, stream_id)
        return int(fields[b"due"])

    def stream_of(self, partition: str) -> str:
        return f"ticket_stream:{partition}" if partition else "ticket_stream"

    def last_id(self, stream: str) -> str:
        found: Any = self.redis.xinfo_stream(stream)
        return str(found["last-generated-id"].decode())

    @property
    def streams(self) -> list[str]:
        count = self.app.conf.get("bridge_partitions", 1)
        return ["ticket_stream"] if count == 1 else [f"ticket_stream:p{p}" for p in range(count)]

    # -- commands ------------------------------------------------------------------------------------------------------

    def run(self, *words: str, **options: Any) -> Result:
        """As `CheckedCommands.run`."""
        return self.commands.run(*words, **options)

    def json(self, *words: str, **options: Any) -> Any:
        """As `CheckedCommands.json`."""
        return self.commands.json(*words, **options)

    def dump(self) -> dict[bytes, Any]:
        """What a dry run may not change: not when consumers were last seen, and not the entries that are done."""
        keys = {key for key in self.redis.scan_iter() if not OF_THE_LEADER.search(key.decode(errors="replace"))}
        found = {key: self.redis.dump(key) for key in keys.difference(stream.encode() for stream in self.streams)}
        for stream in self.streams:
            rows = self.redis.xpending_range(stream, GROUP, "-", "+", 1000)
            owners = [(row["message_id"], row["consumer"], row["times_delivered"]) for row in rows]
            needed = {one.id.partition("@")[0].encode() for one in (*self.of("undone"), *self.of("dead"))}
            found[stream.encode()] = [id_ for id_, _ in self.redis.xrange(stream) if id_ in needed], owners
        return found

    # -- what is undone ------------------------------------------------------------------------------------------------

    def of(self, state: str) -> list[Pushed]:
        return [one for one in self.messages.values() if one.state == state]

    def undone_of(self, ticket: str) -> list[Pushed]:
        return [one for one in self.of("undone") if one.ticket == ticket]

    def status(self) -> dict[str, Any]:
        """The numbers of the subscription."""
        document = self.json("status")
        found: dict[str, Any] = document["subscriptions"][0] if "subscriptions" in document else document
        return found

    def pending(self) -> list[dict[str, Any]]:
        found = self.json("pending", "--limit", "10000")
        assert found["next"] is None
        rows: list[dict[str, Any]] = found["messages"]
        return rows

    def counts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for stream in self.streams:
            for name, value in self.redis.hgetall(f"{{{stream}}}:{GROUP}:counts").items():
                found[name.decode()] = found.get(name.decode(), 0) + int(value)
        return found

    def outcomes(self) -> int:
        return sum(int(self.redis.xlen(f"{{{stream}}}:{GROUP}:outcomes")) for stream in self.streams)

    def unsettled(self) -> str:
        """What the leader has not done yet; empty: nothing."""
        now = self.now_ms()
        if self.outcomes():
            return "outcomes"
        leaders = [f"{{{stream}}}:{GROUP}:leader" for stream in self.streams]
        if self.redis.exists(*leaders) < len(leaders):
            return "no leader"
        if any(self.redis.hlen(f"{{{stream}}}:{GROUP}:consumers") != len(self.consumers) for stream in self.streams):
            return "consumers that left, or joined"
        if any(one.is_delayed(now) and one.due_ms < now + 60_000 for one in self.of("undone")):
            return "something is due soon"
        rows = self.pending()
        ids, undone = {row["message_id"] for row in rows}, {one.id for one in self.of("undone")}
        if ids != undone:
            return f"not pending: {undone - ids}; pending: {ids - undone}"
        letters = self.json("dead", "list", "--limit", "10000")
        if letters["total"] != len(self.of("dead")):
            return f"{letters['total']} letters, and not {len(self.of('dead'))}"
        states = {row["message_id"]: row["state"] for row in rows}
        for id_, state in states.items():
            one = self.messages[id_]
            if (state == "delayed") != one.is_delayed(now) and one.ticket not in self.parked:
                return f"{state}: {one}"
            # Its backoff is over: it may wait for room.
            if state == "awaiting retry" and not one.rests and self.free_slots() > 0:
                return f"{state}: {one}"
        if self.free_slots() > 0 and (ready := self.ready_tickets(states, now)):
            return f"there is room, and {ready} wait"
        return ""

    def is_quiet(self) -> bool:
        self.why = self.unsettled()
        return not self.why

    def settle(self) -> None:
        """Waits until the leader has done what it has to do."""
        self.step += 1
        for consumer in self.consumers.values():
            assert consumer.heartbeat().status == 200
        try:
            wait_until(self.is_quiet, description="the leader to be done", timeout_s=15)
        except WaitTimeout as exc:
            raise AssertionError(f"{exc}: {self.why}") from None

    def free_slots(self) -> int:
        """How many messages more the consumers could have that take new ones."""
        slots = {name: one.concurrency for name, one in self.consumers.items() if name not in self.draining}
        taken = 0
        for stream in self.streams:
            found: Any = self.redis.xinfo_consumers(stream, GROUP)
            taken += sum(one["pending"] for one in found if one["name"].decode() in slots)
        return sum(slots.values()) - taken

    def ready_tickets(self, states: dict[str, str], now: int) -> set[str]:
        """Tickets of which nothing is in flight, and the first message could be."""
        found: dict[str, Pushed] = {}
        for one in self.of("undone"):
            if one.ticket is None or (one.mode == "overtake" and one.is_delayed(now)):
                continue
            first = found.get(one.ticket)
            if first is None or one.place < first.place:
                found[one.ticket] = one
        busy = {self.messages[id_].ticket for id_, state in states.items() if state == "in flight"}
        rest = {one.ticket for one in self.of("undone") if one.rests}
        return {
            ticket
            for ticket, first in found.items()
            if ticket not in busy and ticket not in rest and ticket not in self.parked and not first.is_delayed(now)
        }
