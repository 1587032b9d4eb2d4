"""An app whose lanes change: subscriptions come and go, the stream is split, new versions follow it. With masters, a
port and HTTP consumers in the process of a test, and a model of what each subscription must get.

The test itself is the consumers, so it says when a message ends, and how. Between two steps nothing moves.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from bridge.app.lanes import subscriptions_of
from bridge.master.process import Master
from bridge.routing.errors import StreamRetired
from bridge.routing.ids import id_key
from bridge.routing.keys import LaneKeys, http_consumer, layout_key, newer_key
from bridge.routing.layouts import layout_of
from bridge.routing.partitions import Layout, stream_id, suffix_of
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import WaitTimeout, wait_until
from tests.commands import command_line
from tests.integration.http.http_consumers import HttpConsumerUnderTest
from tests.integration.http.http_port import port_of
from tests.integration.operate.checked_commands import CheckedCommands
from tests.integration.operate.lanes_model import (
    MAX_ATTEMPTS,
    STREAM,
    SUBSCRIPTIONS,
    TASK,
    Consumer,
    Copy,
    Deployed,
    Entry,
    Flight,
    Held,
    Message,
    Subscription,
)
from tests.integration.operate.operators_world import OF_THE_LEADER, SETTINGS

#: Most of a wait for masters: two leader leases, and what a busy machine needs.
SETTLE_S = 40
#: Nothing rests that is due within so many ms.
SOON_MS = 1000


class CutOff(Exception):
    """A command was killed."""


@dataclass
class RunningMaster:
    """A master on a thread. ``failed``: what ended it."""

    master: Master
    thread: threading.Thread
    failed: list[BaseException]

    def stop(self) -> None:
        self.master.stop()
        self.thread.join(60)
        assert not self.thread.is_alive(), "the master does not stop"


@dataclass
class LanesWorld:
    """The world on ``server``. What is started ends with ``stack``."""

    server: EmbeddedServer
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    stack: ExitStack
    step: int = 0
    messages: dict[Entry, Message] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(
        default_factory=lambda: {name: Subscription(name) for name in SUBSCRIPTIONS}
    )
    masters: list[RunningMaster] = field(default_factory=list)
    #: Version -> the task of the app that was deployed with it as the newest: its producer.
    producers: dict[str, Any] = field(default_factory=dict)
    layout: Layout = field(default_factory=Layout)
    #: All versions that there were, oldest first, and those of them that were retired.
    versions: list[str] = field(default_factory=lambda: [STREAM])
    retired: set[str] = field(default_factory=set)
    why: str = ""
    #: Of the last deploy: its port, and what ends it.
    port: int = 0
    port_stack: ExitStack = field(default_factory=ExitStack)
    deployed: Deployed = field(init=False)
    commands: CheckedCommands = field(init=False)
    app: Any = field(init=False)

    def __post_init__(self) -> None:
        self.redis: Any = self.server.client()
        self.stack.callback(self.redis.close)
        self.stack.callback(self._close_port)
        self.stack.callback(self.stop_masters)

    def _close_port(self) -> None:
        self.port_stack.close()

    # -- the app and its processes -------------------------------------------------------------------------------------

    def app_of(self, deployed: Deployed) -> CheckedCommands:
        """The command line of an app with these names."""
        conf: dict[str, Any] = {
            **SETTINGS,
            "bridge_stream": deployed.newest,
            "bridge_follows": list(deployed.versions[:-1]),
            "bridge_subscriptions": {name: SUBSCRIPTIONS[name] for name in deployed.subscriptions},
            "bridge_partitions": self.layout.partitions,
        }
        shell = self.stack.enter_context(command_line(self.folder, self.monkeypatch, self.server.url, **conf))
        return CheckedCommands(shell)

    def deploy(self, deployed: Deployed, masters: int, *, rolling: bool) -> None:
        """Starts this app in place of the one that runs."""
        before, old_port = list(self.masters), self.port_stack
        commands = self.app_of(deployed)
        app = importlib.import_module(commands.shell.app).app
        if not rolling:
            self.stop_masters()
        groups = self.groups_before()
        self.deployed, self.commands, self.app = deployed, commands, app
        self.versions += [one for one in deployed.versions if one not in self.versions]
        self.producers[deployed.newest] = app.tasks[TASK]
        for _ in range(masters):
            self.start_master()
        if rolling:
            for one in before:
                one.stop()
                self.masters.remove(one)
        self.port_stack = ExitStack()
        self.port = self.port_stack.enter_context(port_of(app)).number
        old_port.close()
        for subscription in self.subscriptions.values():
            for consumer in subscription.consumers.values():
                consumer.of.port = self.port
        if masters:
            self.see_groups(groups)
            for name in deployed.subscriptions:
                assert self.subscriptions[name].streams >= set(self.streams), (name, self.streams)

    def start_master(self) -> None:
        master = Master(self.app, announce=lambda _line: None)
        failed: list[BaseException] = []

        def run() -> None:
            try:
                master.run()
            except BaseException as exc:
                failed.append(exc)
                raise

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.masters.append(RunningMaster(master, thread, failed))

    def stop_masters(self) -> None:
        for one in self.masters:
            one.stop()
        self.masters.clear()

    @property
    def led(self) -> list[Subscription]:
        """The subscriptions whose lanes have a leader."""
        return [self.subscriptions[name] for name in self.deployed.subscriptions] if self.masters else []

    @property
    def existing(self) -> list[Subscription]:
        return [one for one in self.subscriptions.values() if one.streams]

    def would_be_renamed(self, names: Sequence[str]) -> str:
        """Whether an app of these subscriptions looks on an older version as if one of them had got another name: "",
        "undone", or "perhaps" when that depends on what was read.
        """
        found = ""
        for stream in (one for version in self.named[:-1] for one in self.layout.streams(version)):
            if all(stream in self.subscriptions[name].streams for name in names):
                continue
            for one in self.existing:
                # It belongs to no app before an app has declared it.
                owner = self.redis.hget(LaneKeys(stream, one.name).about, "app")
                if one.name in names or stream not in one.streams or owner is None:
                    continue
                if one.of_state("undone", streams=[stream]):
                    return "undone"
                found = "perhaps" if one.of_state("left out", streams=[stream]) else found
        return found

    # -- streams -------------------------------------------------------------------------------------------------------

    @property
    def named(self) -> list[str]:
        """The versions that the app names, oldest first. It leaves retired ones out."""
        return [one for one in self.deployed.versions if one not in self.retired]

    @property
    def streams(self) -> list[str]:
        """The streams of the lanes of the app that runs, older partitions and versions first."""
        older = () if self.layout.older is None else self.layout.older.streams(self.deployed.newest)
        return [*older, *(one for version in self.named for one in self.layout.streams(version))]

    @property
    def left(self) -> list[str]:
        """The partitions that are being left."""
        return [] if self.layout.leaving is None else list(self.layout.leaving.streams(self.deployed.newest))

    @property
    def dropped(self) -> list[str]:
        """The versions that are neither named nor retired."""
        return [one for one in self.versions if one not in self.deployed.versions and one not in self.retired]

    @property
    def all_streams(self) -> list[str]:
        """Those that may exist."""
        return [*self.left, *(one for version in self.dropped for one in self.layout.streams(version)), *self.streams]

    def see_layout(self, count: int) -> None:
        """Compares the layout after a run of ``bridge stream repartition``, and goes by it from now on."""
        was, newest = self.layout, self.deployed.newest
        stored = layout_of(self.redis.get(layout_key(newest)) or b"", newest)
        if stored.shape == was.shape:
            # It was cut off before its first step, or had nothing to do.
            return
        if was.older is None and was.leaving is None:
            older = Layout(was.partitions, was.generation)
            was = Layout(count, was.generation + 1, older=older)
        left = replace(was, older=None, leaving=was.older or was.leaving)
        possible = [was.shape]
        if was.older is None or not (why := self.is_needed(was.older.streams(newest))):
            possible += [left.shape, replace(left, leaving=None).shape]
        else:
            assert stored.shape == was.shape, f"the older partitions are left, and {why} is there"
        assert stored.shape in possible, (stored, possible)
        groups = self.groups_before()
        self.layout = stored
        self.see_groups(groups)
        for one in self.existing:
            # A group that is in no partition of a layout has nothing to do there.
            one.streams &= set(self.all_streams)
            assert one.streams >= set(self.layout.streams(newest)), (one.name, one.streams)

    @contextmanager
    def cut_off(self, where: tuple[Any, str] | None, calls: int, *, after: bool) -> Iterator[None]:
        """Within the block, a command ends at this call of this function, before or after it. None: it goes on."""
        if where is None:
            yield
            return
        owner, name = where
        real, left = getattr(owner, name), [calls]

        def cut(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                raise CutOff
            result = real(*arguments, **options)
            if left[0] == 0:
                raise CutOff
            return result

        with self.monkeypatch.context() as patches:
            patches.setattr(owner, name, cut)
            with suppress(CutOff):
                yield

    def groups_before(self) -> dict[str, set[str]]:
        return {one.name: set(one.streams) for one in self.subscriptions.values()}

    def see_groups(self, before: dict[str, set[str]], begins: str = "0") -> None:
        """Finds groups that a command or a master has made. Each has the messages from ``begins`` on that are there."""
        for stream in self.streams:
            groups = {one["name"].decode() for one in self.redis.xinfo_groups(stream)} if self.exists(stream) else set()
            there = {id_.decode() for id_, _ in self.redis.xrange(stream)} if groups else set()
            for subscription in self.subscriptions.values():
                if subscription.name not in groups or stream in before[subscription.name] | subscription.streams:
                    continue
                subscription.streams.add(stream)
                subscription.counts_more = True
                for id_ in there:
                    if begins != "$" and id_key(id_) >= id_key(begins):
                        self.add_copy(subscription, self.messages[stream, id_])

    def last_id(self, stream: str) -> str:
        """The id of its last entry; 0-0: it has none."""
        found = self.redis.xrevrange(stream, count=1)
        return str(found[0][0].decode()) if found else "0-0"

    def exists(self, key: str) -> bool:
        return bool(self.redis.exists(key))

    # -- pushes --------------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        seconds, micros = self.redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def push(self, version: str, ticket: str, kind: str, delay: float | None, hold: bool) -> None:
        """Pushes by the producer of ``version``."""
        producer = self.producers[version]
        options: dict[str, Any] = {} if delay is None else {"delay": delay, "hold": hold}
        if version in self.retired:
            with pytest.raises(StreamRetired):
                producer.push(ticket, {"kind": kind}, **options)
            return
        # Two versions may give out one id in the same millisecond, and here an id names a message.
        last_ms = max((id_key(stream_id(one.id))[0] for one in self.messages.values()), default=0)
        wait_until(lambda: self.now_ms() > last_ms, description="the next millisecond", interval_s=0.001)
        id_ = producer.push(ticket, {"kind": kind}, **options)
        numbers = {self.layout.suffix(number): number for number in range(self.layout.partitions)}
        stream = self.layout.stream(version, numbers[suffix_of(id_)])
        message = Message(id_, stream, ticket, kind, (self.versions.index(version), self.layout.generation))
        if delay is not None:
            message.mode = "hold" if hold else "overtake"
            [(_, fields)] = self.redis.xrange(stream, stream_id(id_), stream_id(id_))
            message.due_ms = int(fields[b"due"])
        self.messages[message.entry] = message
        for subscription in self.subscriptions.values():
            if stream in subscription.streams:
                self.add_copy(subscription, message)

    def add_copy(self, subscription: Subscription, message: Message) -> None:
        state = "undone" if subscription.takes(message) else "left out"
        subscription.copies[message.id] = Copy(message, state, message.due_ms, self.step)

    # -- consumers -----------------------------------------------------------------------------------------------------

    def join(self, name: str, subscription: Subscription, slots: int) -> None:
        """Registers in all lanes that there are now."""
        wanted = frozenset(self.streams)
        of = HttpConsumerUnderTest(name, slots, self.port, {"subscription": subscription.name})

        def is_current() -> bool:
            # The port looks at the layout once a second.
            if (answer := of.ask_to_register()).status == 503:
                return False
            assert answer.status == 200, answer
            record = orjson.loads(self.redis.get(http_consumer(self.deployed.newest, of.incarnation)))
            if {one for streams in record["streams"].values() for one in streams} == wanted:
                return True
            assert of.leave().status == 200
            return False

        wait_until(is_current, description="the port to know the lanes", interval_s=0.2)
        subscription.consumers[name] = Consumer(of, subscription.name, wanted)

    def leave(self, subscription: Subscription, name: str) -> int:
        """Returns how many slots it had."""
        consumer = subscription.consumers.pop(name)
        assert consumer.of.leave().status == 200
        for id_ in [id_ for id_, one in subscription.held.items() if one.consumer is consumer]:
            del subscription.held[id_]
        for id_, one in list(subscription.flying.items()):
            if one.incarnation == consumer.of.incarnation:
                del subscription.flying[id_]
        return consumer.of.concurrency

    def is_current(self, subscription: Subscription) -> bool:
        """Whether its consumers serve all lanes that there are now."""
        wanted = set(self.streams)
        return all(one.streams == wanted for one in subscription.consumers.values())

    def rejoin(self) -> None:
        """Lets the consumers leave and register again that do not serve the lanes that there are now."""
        wanted = set(self.streams)
        for subscription in self.subscriptions.values():
            for name, consumer in list(subscription.consumers.items()):
                if subscription.name not in self.deployed.subscriptions:
                    self.leave(subscription, name)
                elif consumer.streams != wanted:
                    self.join(name, subscription, self.leave(subscription, name))

    def take(self, subscription: Subscription, name: str, most: int) -> None:
        consumer = subscription.consumers[name]
        has = tuple(one.document["fence"] for one in subscription.held.values() if one.consumer is consumer)
        for document in consumer.of.next(most, 0, has):
            self.given(subscription, consumer, document)

    def given(self, subscription: Subscription, consumer: Consumer, document: dict[str, Any]) -> None:
        id_, ticket = document["message_id"], document["ticket_id"]
        who = f"{subscription.name} is given {id_} of {ticket}"
        assert id_ in subscription.copies, f"{who}, which is not for it"
        copy = subscription.copies[id_]
        assert copy.message.ticket == ticket, who
        assert copy.state == "undone", f"{who}, and it is {copy.state}"
        assert id_ not in subscription.held, f"{who}, twice"
        for one in subscription.held.values():
            assert one.document["ticket_id"] != ticket, f"{who}, beside {one.document['message_id']}"
        flight = subscription.flying.get(id_)
        began = self.step if flight is None else flight.since
        now = self.now_ms()
        for other in subscription.copies.values():
            if other.message.ticket == ticket and other.state == "undone" and other.place < copy.place:
                assert other.changed_at >= began or other.is_overtaken(now), f"{who}, and {other} is before {copy}"
        assert document["attempt"] == copy.failures + 1, (who, document)
        subscription.held[id_] = Held(consumer, document)

    def end(self, subscription: Subscription, id_: str, outcome: str) -> None:
        held = subscription.held.pop(id_)
        subscription.flying.pop(id_, None)
        copy = subscription.copies[id_]
        answer = held.consumer.of.acknowledge(held.document, outcome)
        assert answer.status == 200, answer
        if outcome == "done":
            copy.state = "done"
        elif outcome == "failed":
            copy.failures += 1
        if outcome == "dead" or copy.failures >= MAX_ATTEMPTS:
            copy.state = "dead"
            stream = copy.message.stream
            subscription.deaths[stream] = subscription.deaths.get(stream, 0) + 1

    # -- what is undone ------------------------------------------------------------------------------------------------

    def is_needed(self, streams: Sequence[str]) -> str:
        """Which subscription has something to do with an entry of ``streams``; "": none has."""
        for one in self.existing:
            if found := one.of_state("undone", "dead", streams=streams):
                return f"{one.name}: {found[0]}"
        return ""

    def unsettled(self) -> str:
        """What the leaders have not done yet; "": nothing."""
        for one in self.masters:
            assert not one.failed, f"a master ended: {one.failed}"
            assert one.thread.is_alive(), "a master ended"
        now = self.now_ms()
        if any(one.is_delayed(now) and one.due_ms < now + 60_000 for s in self.led for one in s.of_state("undone")):
            return "something is due soon"
        for gone in self.left if self.masters else ():
            if any(self.exists(LaneKeys(gone, one.name).leader) for one in self.led):
                return f"{gone} is still led"
        for subscription in self.led:
            if why := self.unsettled_of(subscription, now):
                return f"{subscription.name}: {why}"
            # A leader notes that after its election.
            for lane in subscriptions_of(self.app)[subscription.name]:
                for older in lane.older:
                    if not self.redis.sismember(newer_key(older.stream), lane.settings.stream):
                        return f"{lane.settings.stream} is not noted as newer than {older.stream}"
        return ""

    def unsettled_of(self, subscription: Subscription, now: int) -> str:
        flying: dict[str, str] = {}
        incarnations = {one.name: one.of.incarnation for one in subscription.consumers.values()}
        for stream in self.streams:
            lane = LaneKeys(stream, subscription.name)
            with self.redis.pipeline(transaction=True) as pipe:
                pipe.exists(lane.leader)
                pipe.xlen(lane.outcomes)
                pipe.hkeys(lane.consumers)
                pipe.xlen(lane.dead)
                pipe.hgetall(lane.counts)
                pipe.xpending_range(stream, lane.group, "-", "+", 10_000)
                led, outcomes, registered, letters, counted, pending = pipe.execute()
            if not led:
                return f"nobody leads {stream}"
            if outcomes:
                return f"outcomes on {stream}"
            there = {one.name for one in subscription.consumers.values() if stream in one.streams}
            if {name.decode() for name in registered} != there:
                return f"registered on {stream}: {registered}"
            suffix = next((suffix_of(one.id) for one in self.messages.values() if one.stream == stream), "")
            owners = {one["message_id"].decode() + suffix: one["consumer"].decode() for one in pending}
            undone = {one.message.id for one in subscription.of_state("undone", streams=[stream])}
            if owners.keys() != undone:
                return (
                    f"{stream}: pending {sorted(owners.keys() - undone)}, not pending {sorted(undone - owners.keys())}"
                )
            if letters != len(subscription.of_state("dead", streams=[stream])):
                return f"{letters} letters on {stream}"
            wanted = self.counts_of(subscription, stream)
            counts = {name: int(counted.get(name.encode(), 0)) for name in wanted}
            if subscription.counts_more and counts["left_out"] > wanted["left_out"]:
                counts["left_out"] = wanted["left_out"]
            if counts != wanted:
                return f"{stream} has counted {counts}, and not {wanted}"
            flying |= {id_: incarnations[owner] for id_, owner in owners.items() if owner in incarnations}
        if any(one.is_delayed(now) and one.due_ms < now + SOON_MS for one in subscription.of_state("undone")):
            return "some are due soon"
        if self.is_current(subscription) and (ready := self.ready_tickets(subscription, flying, now)):
            return f"there is room, and {ready} wait"
        self.see_flying(subscription, flying)
        return ""

    def counts_of(self, subscription: Subscription, stream: str) -> dict[str, int]:
        """What the lane on ``stream`` has counted."""
        of = {name: len(subscription.of_state(name, streams=[stream])) for name in ("done", "left out")}
        return {
            "done": of["done"],
            "left_out": of["left out"],
            "dead": subscription.deaths.get(stream, 0),
            "cancelled": subscription.cancelled.get(stream, 0),
        }

    def see_flying(self, subscription: Subscription, flying: dict[str, str]) -> None:
        before = dict(subscription.flying)
        subscription.flying.clear()
        for id_, incarnation in flying.items():
            known = before.get(id_)
            same = known is not None and known.incarnation == incarnation
            subscription.flying[id_] = known if known is not None and same else Flight(incarnation, self.step)
        streams: dict[str, str] = {}
        for id_ in flying:
            message = subscription.copies[id_].message
            assert streams.setdefault(message.ticket, message.stream) == message.stream, (
                f"{message.ticket} is in flight on {message.stream} and on {streams[message.ticket]}"
            )
        for id_, held in subscription.held.items():
            assert flying.get(id_) == held.consumer.of.incarnation, f"{id_} is held, and in flight at {flying.get(id_)}"

    def ready_tickets(self, subscription: Subscription, flying: dict[str, str], now: int) -> list[str]:
        """Tickets of which nothing is in flight, and the first message could be: its lane has room."""
        first: dict[str, Copy] = {}
        for one in subscription.of_state("undone"):
            ticket = one.message.ticket
            if not one.is_overtaken(now) and (ticket not in first or one.place < first[ticket].place):
                first[ticket] = one
        fly = [subscription.copies[id_].message for id_ in flying]
        busy = {message.ticket for message in fly}
        # Each lane gives a consumer as many as it has slots.
        room = Counter(
            {
                stream: sum(one.of.concurrency for one in subscription.consumers.values() if stream in one.streams)
                for stream in self.streams
            }
        )
        room.subtract(message.stream for message in fly)
        return [
            ticket
            for ticket, one in first.items()
            if ticket not in busy and not one.is_delayed(now) and room[one.message.stream] > 0
        ]

    def is_quiet(self) -> bool:
        self.why = self.unsettled()
        return not self.why

    def settle(self) -> None:
        """Waits until the leaders have done what they have to do."""
        self.step += 1
        for subscription in self.subscriptions.values():
            for consumer in subscription.consumers.values():
                assert consumer.of.heartbeat().status == 200
        try:
            wait_until(self.is_quiet, description="the leaders to be done", timeout_s=SETTLE_S)
        except WaitTimeout as exc:
            raise AssertionError(f"{exc}: {self.why}") from None
        self.check_entries()

    def check_entries(self) -> None:
        """No entry left its stream that a subscription needs."""
        there = {(stream, id_.decode()) for stream in self.all_streams for id_, _ in self.redis.xrange(stream)}
        for subscription in self.existing:
            needed = {one.message.entry for one in subscription.copies.values() if one.is_needed}
            assert needed <= there, f"{subscription.name} needs {needed - there}"

    # -- all keys of the server ---------------------------------------------------------------------------------------

    def dump(self) -> dict[bytes, Any]:
        """What a refused command may not change: not when consumers were last seen, and not entries that are done."""
        needed = {one.message.entry for s in self.existing for one in s.copies.values() if one.is_needed}
        found: dict[bytes, Any] = {}
        for key in self.redis.scan_iter():
            name = key.decode(errors="replace")
            if name in self.all_streams:
                groups = [one["name"].decode() for one in self.redis.xinfo_groups(name)]
                pending = {group: self.redis.xpending_range(name, group, "-", "+", 10_000) for group in groups}
                owners = {
                    group: [(one["message_id"], one["consumer"]) for one in rows] for group, rows in pending.items()
                }
                found[key] = [id_ for id_, _ in self.redis.xrange(name) if (name, id_.decode()) in needed], owners
            elif not OF_THE_LEADER.search(name) or name.endswith("/layout"):
                found[key] = self.redis.dump(key)
        return found

    def entries(self) -> dict[str, Any]:
        """The streams that have entries, with these and the positions of their groups."""
        found = {}
        for stream in self.all_streams:
            if entries := self.redis.xrange(stream):
                rows = self.redis.xinfo_groups(stream)
                groups = {one["name"]: (one["last-delivered-id"], one["pending"]) for one in rows}
                found[stream] = [id_ for id_, _ in entries], groups
        return found

    def keys_of(self, stream: str) -> Iterator[str]:
        """The keys that begin with the name of ``stream``, and its own."""
        for key in self.redis.scan_iter():
            name = key.decode(errors="replace")
            if name == stream or name.startswith(f"{{{stream}}}"):
                yield name


#: Keys that last as long as a lane, and those that its members need only while they work.
LASTING = re.compile(r":(term|fence|counts|history|about|known|floor|agreed|state-home)$")
