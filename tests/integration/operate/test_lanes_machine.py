"""Lanes come and go while messages are pushed and handled. Each subscription gets every message that it must get, once,
in the order of its ticket, over all partitions and versions. Refused commands change nothing, figures agree, no key
stays.
"""

from __future__ import annotations

import importlib
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
)

from bridge.master import sleepers
from bridge.master.process import Master
from bridge.operate import repartitioning, retiring, subscriptions
from bridge.operate.deleting import LanesOfStream
from bridge.routing.errors import ConfigurationError
from bridge.routing.ids import id_key
from bridge.routing.keys import LaneKeys, layout_key
from bridge.routing.partitions import stream_id
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import WaitTimeout, wait_until
from tests.conftest import emptied
from tests.integration.operate.lanes_model import STREAM, SUBSCRIPTIONS, Copy, Deployed, Subscription
from tests.integration.operate.lanes_world import LASTING, SETTLE_S, LanesWorld
from tests.integration.operate.machine_runs import run_machine
from tests.integration.operate.operators_world import HOUR_S, SHORT_S

TICKET = st.sampled_from(["T1", "T2", "T3"])
TICKET_OR_NONE = st.sampled_from(["T1", "T2", None])
KIND = st.sampled_from(["a", "a", "b"])
DELAY = st.sampled_from([None, None, None, SHORT_S, HOUR_S])
NAME = st.sampled_from(list(SUBSCRIPTIONS))
#: Keys that stand beside a stream and last.
BESIDE_THE_STREAM = ("/layout", "/layout:copy", "/follows", "/newer", "/retired")
#: They choose among what there is: what a machine draws must not depend on a server.
NUMBER = st.integers(0, 99)
OUTCOME = st.sampled_from(["done", "done", "done", "failed", "refused", "dead"])
#: Where a command is killed: (the function, at which of its calls, after it); None: nowhere.
CALLS = st.integers(1, 3)


def chosen(among: list[Any], number: int) -> Any:
    return among[number % len(among)]


REPARTITION_CUTS = [
    (repartitioning, "repartition"),
    (repartitioning, "leave_layout"),
    (LanesOfStream, "delete"),
    (repartitioning, "leave_chain"),
    (repartitioning, "forget_layout"),
]
RETIRE_CUTS = [
    (retiring.Retirement, "_write_note"),
    (LanesOfStream, "delete"),
    (retiring, "leave_chain"),
]


class LanesMachine(RuleBasedStateMachine):
    """``world`` is made by `begin`. The class's attributes are set for each run."""

    valkey: EmbeddedServer
    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()

    @initialize(others=st.sets(NAME, max_size=2), masters=st.sampled_from([1, 1, 2]), slots=st.integers(1, 3))
    def begin(self, others: set[str], masters: int, slots: int) -> None:
        emptied(self.valkey)
        self.world = LanesWorld(self.valkey, self.folder, self.monkeypatch, self.stack)
        names = [name for name in SUBSCRIPTIONS if name == "billing" or name in others]
        self.world.deploy(Deployed(tuple(names)), masters, rolling=False)
        for name in names:
            self.world.join(f"w0-{name}@h", self.world.subscriptions[name], slots)
        self.quiet()

    def quiet(self) -> None:
        self.world.settle()
        self.compare()

    # -- messages ------------------------------------------------------------------------------------------------------

    @rule(n=NUMBER, ticket=TICKET, kind=KIND, delay=DELAY, hold=st.booleans(), count=st.integers(1, 3))
    def push(self, n: int, ticket: str, kind: str, delay: float | None, hold: bool, count: int) -> None:
        # Nobody handles what comes to a dropped version.
        versions = [one for one in self.world.versions if one not in self.world.dropped]
        for _ in range(count):
            self.world.push(chosen(versions, n), ticket, kind, delay, hold)
        self.quiet()

    @rule(n=NUMBER, most=st.integers(1, 3))
    def take(self, n: int, most: int) -> None:
        consumers = [(one, name) for one in self.world.led for name in sorted(one.consumers)]
        if consumers:
            subscription, name = chosen(consumers, n)
            self.world.take(subscription, name, most)
            self.quiet()

    @rule(ns=st.lists(NUMBER, min_size=1, max_size=3), outcome=OUTCOME)
    def end(self, ns: list[int], outcome: str) -> None:
        for n in ns:
            held = [(one, id_) for one in self.world.led for id_ in sorted(one.held)]
            if held:
                subscription, id_ = chosen(held, n)
                self.world.end(subscription, id_, outcome)
        self.quiet()

    @rule(names=st.sets(NAME, min_size=1))
    def handle(self, names: set[str]) -> None:
        """These subscriptions handle what they can get."""
        for subscription in self.world.led:
            if subscription.name in names:
                for who in sorted(subscription.consumers):
                    self.world.take(subscription, who, 3)
                for id_ in sorted(subscription.held):
                    self.world.end(subscription, id_, "done")
        self.quiet()

    @rule(n=NUMBER, act=st.sampled_from(["replay", "drop", "cancel", "now"]))
    def change(self, n: int, act: str) -> None:
        """Changes a dead letter or a delayed message."""
        world = self.world
        now = world.now_ms()
        state = "dead" if act in ("replay", "drop") else "undone"
        copies = [(s, one) for s in world.led for one in s.of_state(state, streams=world.streams)]
        copies = [one for one in copies if state == "dead" or one[1].is_delayed(now)]
        if copies:
            subscription, copy = chosen(copies, n)
            {"replay": self.replay, "drop": self.drop, "cancel": self.cancel, "now": self.make_due}[act](
                subscription, copy
            )
            self.quiet()

    @rule(n=NUMBER, name=NAME, slots=st.integers(1, 3))
    def join_or_leave(self, n: int, name: str, slots: int) -> None:
        subscription, who = self.world.subscriptions[name], f"w{n % 2}-{name}@h"
        if who in subscription.consumers:
            self.world.leave(subscription, who)
        elif subscription in self.world.led:
            self.world.join(who, subscription, slots)
        self.quiet()

    # -- masters -------------------------------------------------------------------------------------------------------

    @rule(act=st.sampled_from(["start", "stop", "restart", "lose"]))
    def masters(self, act: str) -> None:
        world = self.world
        if not world.masters or (act == "start" and len(world.masters) < 2):
            self.start_master()
        elif act in ("start", "stop"):
            world.masters.pop(0).stop()
        elif act == "restart":
            world.stop_masters()
            self.start_master()
        elif act == "lose":
            for subscription in world.led:
                world.redis.delete(*(LaneKeys(stream, subscription.name).leader for stream in world.streams))
        self.quiet()

    def start_master(self) -> None:
        groups = self.world.groups_before()
        self.world.start_master()
        self.world.see_groups(groups)

    # -- subscriptions -------------------------------------------------------------------------------------------------

    @rule(
        name=NAME,
        begins=st.sampled_from(["start", "now", "id", "late"]),
        n=NUMBER,
        is_known=st.booleans(),
        calls=st.none() | CALLS,
        after=st.booleans(),
        ticket=TICKET_OR_NONE,
    )
    def add(
        self, name: str, begins: str, n: int, is_known: bool, calls: int | None, after: bool, ticket: str | None
    ) -> None:
        """``is_known``: whether the app of the command declares it, which is not deployed yet. ``calls``, ``after``:
        where a first run of the command is killed. ``ticket``: has a message that came before.
        """
        world = self.world
        if ticket is not None:
            world.push(world.deployed.newest, ticket, "a", None, hold=False)
            self.quiet()
        commands = world.commands
        if is_known and name not in world.deployed.subscriptions:
            commands = world.app_of(Deployed((*world.deployed.subscriptions, name), world.deployed.versions))
        position = begins
        if begins == "id":
            ids = sorted({stream_id(one.id) for one in world.messages.values()})
            position = chosen(ids, n) if ids else "1-0"
        elif begins == "late":
            position = f"{world.now_ms() + HOUR_S * 1000}-0"
        subscription = world.subscriptions[name]
        newest = max((id_key(world.last_id(stream)) for stream in world.streams), default=(0, 0))
        too_late = begins in ("id", "late") and id_key(position) > newest
        if subscription.streams >= set(world.streams) or too_late:
            before = world.dump()
            commands.run("subscription", "add", name, "--from", position, codes=(1,))
            assert world.dump() == before
            return
        groups = world.groups_before()
        codes: tuple[int, ...] = (0,)
        if calls:
            with world.cut_off((subscriptions, "make_group"), calls, after=after):
                commands.run("subscription", "add", name, "--from", position)
            # All of its groups may have been made.
            codes = (0, 1)
        commands.run("subscription", "add", name, "--from", position, codes=codes)
        world.see_groups(groups, {"start": "0", "now": "$"}.get(position, position))
        assert subscription.streams >= set(world.streams)
        self.quiet()

    @rule(name=NAME, masters=st.sampled_from([1, 1, 2]), rolling=st.booleans(), slots=st.integers(0, 2))
    def declare_or_not(self, name: str, masters: int, rolling: bool, slots: int) -> None:
        """Deploys the app with this subscription, or without it. ``slots``: of a consumer that begins to serve it."""
        world = self.world
        before = world.deployed
        names = [one for one in SUBSCRIPTIONS if (one in before.subscriptions) != (one == name)]
        if not names:
            return
        deployed = Deployed(tuple(names), before.versions)
        if what := world.would_be_renamed(names):
            if what == "undone":
                self.check_refusal(deployed)
            return
        world.deploy(deployed, masters, rolling=rolling)
        if name in names and slots and not world.subscriptions[name].consumers:
            world.join(f"w0-{name}@h", world.subscriptions[name], slots)
        self.quiet()

    def check_refusal(self, deployed: Deployed) -> None:
        """A master of this app does not start, since messages are not done that nobody would lead."""
        app = importlib.import_module(self.world.app_of(deployed).shell.app).app
        before = self.world.dump()
        with pytest.raises(ConfigurationError, match="that are not done"):
            Master(app)
        assert self.world.dump() == before

    @rule(name=NAME, leaves=st.booleans(), calls=st.none() | CALLS, after=st.booleans())
    def remove(self, name: str, leaves: bool, calls: int | None, after: bool) -> None:
        world = self.world
        subscription = world.subscriptions[name]
        if leaves and subscription not in world.led:
            for who in sorted(subscription.consumers):
                world.leave(subscription, who)
        if subscription in world.led or not subscription.streams or subscription.consumers:
            before = world.dump()
            world.commands.run("subscription", "remove", name, "--yes", codes=(1,))
            assert world.dump() == before
            return
        before = world.dump()
        world.commands.run("subscription", "remove", name, "--dry-run")
        assert world.dump() == before
        codes: tuple[int, ...] = (0,)
        if calls:
            with world.cut_off((subscriptions, "unsubscribe"), calls, after=after):
                world.commands.run("subscription", "remove", name, "--yes")
            # All of it may have been removed.
            codes = (0, 1)
        world.commands.run("subscription", "remove", name, "--yes", codes=codes)
        subscription.forget()
        # What it has in streams that the app does not name goes with these.
        prefixes = tuple(LaneKeys(stream, name).prefix + ":" for stream in world.streams)
        left = [key for stream in world.streams for key in world.keys_of(stream) if key.startswith(prefixes)]
        assert not [key for key in left if ":reply:" not in key], left
        self.quiet()

    # -- partitions and versions ---------------------------------------------------------------------------------------

    @rule(
        count=st.sampled_from([1, 2, 3, 4]),
        goes_on=st.booleans(),
        cut=st.none() | st.sampled_from(REPARTITION_CUTS),
        calls=CALLS,
        after=st.booleans(),
        rejoins=st.booleans(),
        ticket=TICKET_OR_NONE,
    )
    def repartition(
        self,
        count: int,
        goes_on: bool,
        cut: tuple[Any, str] | None,
        calls: int,
        after: bool,
        rejoins: bool,
        ticket: str | None,
    ) -> None:
        """``goes_on``: with one that has begun. ``rejoins``: consumers register for the new lanes at once. ``ticket``:
        has messages in the lanes of before and after.
        """
        world = self.world
        layout = world.layout
        has_begun = layout.older is not None or layout.leaving is not None
        if goes_on and has_begun:
            count = layout.partitions
        others = [one for one in world.versions if one != world.deployed.newest and one not in world.retired]
        if (others and layout.partitions != count) or (has_begun and layout.partitions != count):
            before = world.dump()
            world.commands.run("stream", "repartition", str(count), "--timeout", "0", codes=(1,))
            assert world.dump() == before
            return
        if ticket is not None:
            world.push(world.named[0], ticket, "a", None, hold=False)
        with world.cut_off(cut, calls, after=after):
            world.commands.run("stream", "repartition", str(count), "--timeout", "0", codes=(0, 1))
        world.see_layout(count)
        self.go_on(ticket, rejoins=rejoins)

    def go_on(self, ticket: str | None, *, rejoins: bool) -> None:
        """After a change of the lanes."""
        world = self.world
        if (rejoins or ticket) and world.masters:
            world.rejoin()
        if ticket is not None:
            # The old producer first: what it pushes later may find the newer message in flight.
            world.push(world.named[0], ticket, "a", None, hold=False)
            world.push(world.deployed.newest, ticket, "a", None, hold=False)
        self.quiet()
        if ticket is not None:
            for subscription in world.led:
                for who in sorted(subscription.consumers):
                    world.take(subscription, who, 3)
            self.quiet()

    @rule()
    def rejoin(self) -> None:
        self.world.rejoin()
        self.quiet()

    @rule(masters=st.sampled_from([1, 1, 2]), rolling=st.booleans(), rejoins=st.booleans(), ticket=TICKET_OR_NONE)
    def add_version(self, masters: int, rolling: bool, rejoins: bool, ticket: str | None) -> None:
        world = self.world
        if len(world.versions) == 3 or world.layout.older is not None or world.layout.leaving is not None:
            return
        if ticket is not None:
            world.push(world.named[0], ticket, "a", None, hold=False)
        version = f"{STREAM}:v{len(world.versions) + 1}"
        world.deploy(Deployed(world.deployed.subscriptions, (*world.named, version)), masters, rolling=rolling)
        self.go_on(ticket, rejoins=rejoins)

    @rule(n=NUMBER, masters=st.sampled_from([1, 1, 2]), rolling=st.booleans(), rejoins=st.booleans())
    def drop_version(self, n: int, masters: int, rolling: bool, rejoins: bool) -> None:
        world = self.world
        if len(world.named) < 2 or not world.masters:
            return
        version = chosen(world.named[:-1], n)
        streams = world.layout.streams(version)
        deployed = Deployed(world.deployed.subscriptions, tuple(one for one in world.named if one != version))
        if any(one.of_state("undone", streams=streams) for one in world.led):
            self.check_refusal(deployed)
        elif not world.is_needed(streams):
            # A port knows only those that serve one of its versions.
            world.rejoin()
            world.deploy(deployed, masters, rolling=rolling)
            if rejoins:
                world.rejoin()
            self.quiet()

    @rule(
        n=NUMBER,
        drops=st.booleans(),
        cut=st.none() | st.sampled_from(RETIRE_CUTS),
        calls=st.integers(1, 9),
        after=st.booleans(),
    )
    def retire(self, n: int, drops: bool, cut: tuple[Any, str] | None, calls: int, after: bool) -> None:
        """``drops``: dead letters, too. ``cut``: a first run of the command is killed."""
        world = self.world
        versions = [one for one in world.versions if one != world.deployed.newest]
        if versions:
            self.do_retire(chosen(versions, n), cut, calls, drops=drops, after=after)

    def do_retire(
        self, version: str, cut: tuple[Any, str] | None = None, calls: int = 0, *, drops: bool, after: bool = False
    ) -> None:
        world = self.world
        streams = world.layout.streams(version)
        unled = [one for one in world.existing if one not in world.led]
        if any(one.of_state("left out", streams=streams) for one in unled):
            # Nobody may have read them.
            return
        is_led = bool(world.masters) and version in world.deployed.versions
        serves = any(one.streams.intersection(streams) for s in world.existing for one in s.consumers.values())
        undone = any(one.of_state("undone", streams=streams) for one in world.existing)
        letters = [one for s in world.existing for one in s.of_state("dead", streams=streams)]
        words = ["stream", "retire", version, "--yes", *(["--drop-dead"] if drops else [])]
        if version in world.retired or is_led or serves or undone or (letters and not drops):
            before = world.dump()
            world.commands.run(*words, codes=(1,))
            assert world.dump() == before
            return
        before = world.dump()
        world.commands.run(*words, "--dry-run")
        assert world.dump() == before
        codes: tuple[int, ...] = (0,)
        if cut is not None:
            with world.cut_off(cut, calls, after=after):
                world.commands.run(*words)
            # It may have been at its end.
            codes = (0, 1)
        world.commands.run(*words, codes=codes)
        world.retired.add(version)
        for letter in letters:
            letter.state = "dropped"
        for subscription in world.existing:
            subscription.streams -= set(streams)
        left = {key for one in {version, *streams} for key in world.keys_of(one)}
        assert left == {layout_key(version)}
        self.quiet()

    # -- figures -------------------------------------------------------------------------------------------------------

    def compare(self) -> None:
        """Compares what ``bridge subscription list`` says. A lane may get another leader at any time, and has none in
        between. So what differs is looked at again.
        """
        until = time.monotonic() + SETTLE_S
        while True:
            try:
                self.check_figures()
            except AssertionError:
                if time.monotonic() > until:
                    raise
                self.world.settle()
            else:
                return

    def check_figures(self) -> None:
        world = self.world
        now = world.now_ms()
        listed = {one["name"]: one for one in world.commands.json("subscription", "list")["subscriptions"]}
        there = {one.name for one in world.existing if one.streams.intersection(world.streams)}
        assert listed.keys() == {*world.deployed.subscriptions, *there}
        for name, figures in listed.items():
            subscription = world.subscriptions[name]
            assert figures["declared"] == (name in world.deployed.subscriptions)
            # Of another one the app knows the groups.
            streams = set(world.streams) if figures["declared"] else subscription.streams.intersection(world.streams)
            assert set(figures["streams"]) == streams, figures
            assert figures["exists"] == (subscription.streams >= streams), figures
            if subscription not in world.led:
                continue
            undone = subscription.of_state("undone", streams=world.streams)
            overtaken = [one for one in undone if one.is_overtaken(now)]
            delayed = [one for one in undone if one.is_delayed(now)]
            assert figures["led"] == figures["lanes"] == len(world.streams), figures
            assert figures["unread"] == 0, figures
            assert figures["undone"] == len(undone) - len(overtaken), (figures, undone)
            assert figures["delayed"] == len(delayed), (figures, delayed)
            assert figures["holding"] == len(delayed) - len(overtaken), (figures, delayed)
            assert figures["in_flight"] == len(subscription.flying), (figures, subscription.flying)
            assert figures["dead"] == len(subscription.of_state("dead", streams=world.streams))
            registered = [one for one in subscription.consumers.values() if one.streams.intersection(world.streams)]
            assert figures["consumers"] == len(registered), figures

    # -- the end -------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        with self.stack:
            if hasattr(self, "world") and not self.world.why:
                self.finish()

    def finish(self) -> None:
        world = self.world
        names = tuple(name for name in SUBSCRIPTIONS if world.subscriptions[name].streams) or ("billing",)
        if names != world.deployed.subscriptions or not world.masters:
            world.deploy(Deployed(names, tuple(world.named)), 1, rolling=bool(world.masters))
        world.rejoin()
        for name in names:
            if not world.subscriptions[name].consumers:
                world.join(f"last-{name}@h", world.subscriptions[name], 3)
        self.quiet()
        while world.is_needed(world.streams):
            self.do_once()
            self.quiet()
        for name in names:
            said = world.commands.run("audit", "-s", name, codes=(0, 1))
            assert said.exit_code == 0 or "nothing to audit" in said.stdout + said.stderr, said.stdout
        self.leave_old_streams(names)
        for subscription in world.existing:
            for who in sorted(subscription.consumers):
                world.leave(subscription, who)
        self.quiet()
        self.wait_until_entries_are_gone()
        world.stop_masters()
        self.check_what_is_left()

    def wait_until_entries_are_gone(self) -> None:
        world = self.world
        with self.monkeypatch.context() as patches:
            if world.entries():
                # A lane that sleeps looks minutes later for what a leader that lost the lead had not removed.
                patches.setattr(sleepers, "AWAKE", 1000)
                world.stop_masters()
                world.start_master()
            try:
                wait_until(lambda: not world.entries(), description="all entries to be removed")
            except WaitTimeout:
                raise AssertionError(f"entries that are done stay: {world.entries()}") from None

    def leave_old_streams(self, names: tuple[str, ...]) -> None:
        """Finishes a repartition, and retires old versions."""
        world = self.world
        if world.layout.older is not None or world.layout.leaving is not None:

            def is_finished() -> bool:
                count = world.layout.partitions
                done = world.commands.run("stream", "repartition", str(count), "--timeout", "0", codes=(0, 1))
                if world.layout.older is not None:
                    world.see_layout(count)
                    world.rejoin()
                return done.exit_code == 0

            wait_until(is_finished, description="the older partitions to be gone", interval_s=0.2)
            world.see_layout(world.layout.partitions)
            assert world.layout.older is world.layout.leaving is None
            self.quiet()
        if len(world.named) > 1:
            world.deploy(Deployed(names, (world.deployed.newest,)), 1, rolling=True)
            world.rejoin()
            self.quiet()
        for version in world.dropped:
            self.do_retire(version, drops=False)
            assert version in world.retired

    def do_once(self) -> None:
        """Each subscription handles what it can get."""
        world = self.world
        now = world.now_ms()
        for subscription in world.existing:
            for letter in subscription.of_state("dead"):
                self.replay(subscription, letter)
            if delayed := [one for one in subscription.of_state("undone") if one.is_delayed(now)]:
                for one in delayed:
                    self.make_due(subscription, one)
            for who in sorted(subscription.consumers):
                world.take(subscription, who, 3)
            for id_ in sorted(subscription.held):
                world.end(subscription, id_, "done")

    def options_of(self, subscription: Subscription, copy: Copy) -> list[str]:
        """They name the subscription, and the version of the message."""
        version = next(one for one in self.world.versions if copy.message.stream in self.world.layout.all_streams(one))
        return ["-s", subscription.name, *(["--stream", version] if version != self.world.deployed.newest else [])]

    def replay(self, subscription: Subscription, copy: Copy) -> None:
        self.world.commands.run("dead", "replay", *self.options_of(subscription, copy), copy.message.id)
        copy.state, copy.failures, copy.changed_at, copy.replayed = "undone", 0, self.world.step, True
        copy.due_ms = 0

    def drop(self, subscription: Subscription, copy: Copy) -> None:
        self.world.commands.run("dead", "drop", *self.options_of(subscription, copy), copy.message.id)
        copy.state = "dropped"

    def cancel(self, subscription: Subscription, copy: Copy) -> None:
        self.world.commands.run("delayed", "cancel", *self.options_of(subscription, copy), copy.message.id)
        copy.state = "cancelled"
        stream = copy.message.stream
        subscription.cancelled[stream] = subscription.cancelled.get(stream, 0) + 1

    def make_due(self, subscription: Subscription, copy: Copy) -> None:
        self.world.commands.run("delayed", "now", *self.options_of(subscription, copy), copy.message.id)
        copy.changed_at, copy.due_ms = self.world.step, self.world.now_ms()

    def check_what_is_left(self) -> None:
        world = self.world
        left = set()
        for key in map(bytes.decode, world.redis.scan_iter()):
            if key in world.all_streams or key.startswith("_kombu."):
                continue
            if key.endswith(BESIDE_THE_STREAM):
                continue
            group = next((one.name for one in world.existing if f"}}:{one.name}:" in key), None)
            if group is not None and (
                LASTING.search(key) or (world.redis.type(key) == b"stream" and not world.redis.xlen(key))
            ):
                continue
            if world.redis.pttl(key) == -1:
                left.add(key)
        assert not left, left


@pytest.mark.parametrize(
    ("examples", "steps"),
    [(14, 12), pytest.param(40, 25, marks=[pytest.mark.long, pytest.mark.timeout(1800)])],
)
def test_lanes_come_and_go(
    examples: int, steps: int, valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_machine(LanesMachine, examples, steps, valkey=valkey, folder=tmp_path, monkeypatch=monkeypatch)
