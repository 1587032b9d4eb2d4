"""The lane and its planner under random events: the rules hold at each step, and every message ends."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bridge.leader.picture.pieces import Ticket
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing import policies
from bridge.routing.policies import PolicyName
from tests.unit.leader.lane_world import TASKS, LaneWorld

TICKETS = st.sampled_from([f"T{i}" for i in range(6)])
BROKEN = b"{"
ALL = list(TASKS)
#: The tasks that a consumer can run; None: any.
SETS = st.sampled_from([None, frozenset(ALL)]) | st.frozensets(st.sampled_from(ALL), min_size=1, max_size=3)


class LaneMachine(RuleBasedStateMachine):
    """Every rule is an event that may happen. The invariants are those of the design."""

    world: LaneWorld

    def __init__(self) -> None:
        super().__init__()
        #: Tickets that were to be parked, and were not released.
        self.ordered: set[str] = set()

    @initialize(
        policy=st.sampled_from(list(PolicyName)),
        bundle_ms=st.sampled_from([0.0, 1.0, 10.0]),
        slots=st.integers(1, 3),
    )
    def begin(self, policy: PolicyName, bundle_ms: float, slots: int) -> None:
        # Small pages, so that a few dozen messages need several
        self.world = LaneWorld(page=10, sliced=True, policy=policy, bundle_ms=bundle_ms)
        self.world.join("w0@h", slots)

    @rule(ticket=TICKETS, task=st.sampled_from(ALL), count=st.integers(1, 30))
    def push(self, ticket: str, task: str, count: int) -> None:
        self.world.push(ticket, task, count=count)

    @rule(
        ticket=TICKETS,
        task=st.sampled_from(ALL),
        options=st.fixed_dictionaries({}, optional={"max_attempts": st.integers(1, 4), "priority": st.integers(0, 9)}),
        expires_in=st.none() | st.sampled_from([-1, 100, 5000]),
    )
    def push_with_options(self, ticket: str, task: str, options: dict[str, int], expires_in: int | None) -> None:
        if expires_in is not None:
            options["expires"] = self.world.now + expires_in
        self.world.push(ticket, task, b"1", 1, **options)

    @rule(ticket=TICKETS)
    def push_broken(self, ticket: str) -> None:
        self.world.push(ticket, payload=BROKEN)

    @rule(count=st.integers(1, 60))
    def read(self, count: int) -> None:
        self.world.read(count)

    @rule(count=st.integers(1, 10))
    def server_answers(self, count: int) -> None:
        self.world.hand_out(count)

    @rule(data=st.data(), count=st.integers(1, 12))
    def finish(self, data: st.DataObject, count: int) -> None:
        outcomes = []
        for _ in range(count):
            running = self.world.running()
            if not running:
                break
            parcel, ticket = data.draw(st.sampled_from(running))
            again = [Kind.FAILED, Kind.FAILED_OWING, Kind.NACKED, Kind.NACKED_OWING]
            ends = [*again, Kind.RETURNED, Kind.DEAD, Kind.DROPPED]
            kind = data.draw(st.sampled_from([Kind.DONE] * 6 + ends))
            more: dict[str, Any] = {}
            if kind in again:
                more["delay_ms"] = data.draw(st.sampled_from([None, 0, 50, 10_000]))
            outcomes.append(self.world.outcome(parcel, ticket, kind, **more))
        self.world.step(outcomes)

    @precondition(lambda self: self.world.old_outcomes)
    @rule(data=st.data())
    def an_outcome_comes_again(self, data: st.DataObject) -> None:
        world = self.world
        old = data.draw(st.sampled_from(world.old_outcomes))
        store = world.store
        # The step may also do other work, as reading on after a takeover. So only this message's fate is compared.
        before = (store.done.count(old.message_id), store.dead.count(old.message_id))
        stale = store.counts.get("stale", 0)
        world.step([old])
        assert (store.done.count(old.message_id), store.dead.count(old.message_id)) == before
        # What never began may be given back twice.
        late = bool(old.started_us) or old.kind is not Kind.RETURNED
        assert store.counts.get("stale", 0) == stale + late

    @precondition(lambda self: self.world.running())
    @rule(data=st.data())
    def a_bundle_is_lost_as_a_whole(self, data: st.DataObject) -> None:
        # In the order of the main process's report: first the message that ran, if one did, then the others
        world = self.world
        parcel, ticket = data.draw(st.sampled_from(world.running()))
        charged = data.draw(st.booleans())
        lost = [(id_, fence + i) for fence, ids in parcel.runs.values() for i, id_ in enumerate(ids)]
        outcomes = [Outcome(id_, fence, Kind.RETURNED) for id_, fence in lost]
        if charged:
            at = next(i for i, (id_, _) in enumerate(lost) if world.ticket_of(id_) == ticket)
            outcomes[at] = Outcome(*lost[at], Kind.LOST, error="WorkerLostError")
        world.store.parcels.remove(parcel)
        world.step(outcomes)

    @rule(slots=st.integers(1, 3), tasks=SETS)
    def join(self, slots: int, tasks: frozenset[str] | None) -> None:
        if len(self.world.registered) < 4:
            self.world.join(f"w{self.world._lives}@h", slots, tasks)

    @rule(task=st.sampled_from(ALL))
    def a_circuit_opens_or_closes(self, task: str) -> None:
        stranded = self.world.lane.stranded
        if task in stranded.open_circuits:
            stranded.open_circuits.discard(task)
            stranded.release(task)
        else:
            stranded.open_circuits.add(task)
            for consumer in list(self.world.lane.crowded):
                self.world.lane.free_ready(consumer)
            self.world.lane.queue_again()
        self.world.step()

    @precondition(lambda self: self.world.registered)
    @rule(data=st.data(), leader_ends=st.booleans())
    def leave(self, data: st.DataObject, leader_ends: bool) -> None:
        lives = sorted(self.world.registered)
        some = data.draw(st.lists(st.sampled_from(lives), min_size=1, max_size=len(lives), unique=True))
        self.world.leave(*some, leader_ends=leader_ends)

    @rule(ticket=TICKETS)
    def park(self, ticket: str) -> None:
        parked = ticket in self.world.lane.parked
        assert ("error" in self.world.order(do="park", ticket=ticket)) == parked
        self.ordered.add(ticket)

    @rule(ticket=TICKETS)
    def release(self, ticket: str) -> None:
        lane = self.world.lane
        known = lane.tickets.get(ticket)
        still = ticket in lane.parked or (known is not None and known.park_reason is not None)
        assert ("error" in self.world.order(do="release", ticket=ticket)) != still
        assert ticket not in lane.parked
        self.ordered.discard(ticket)

    @precondition(lambda self: any(map(self.world.store.readable, self.world.store.dead)))
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        store = self.world.store
        letters = st.lists(st.sampled_from([i for i in store.dead if store.readable(i)]), min_size=1, unique=True)
        chosen = data.draw(letters)
        for id_ in chosen:
            self.world.failures.pop(id_, None)
        answer = self.world.order(do="replay", letters=chosen)
        assert sorted(answer["replayed"]) == sorted(chosen)

    @precondition(lambda self: self.world.running())
    @rule(data=st.data(), task=st.sampled_from(ALL), others=st.integers(0, 12))
    def one_dies_and_comes_again_before_one_that_came_since(self, data: st.DataObject, task: str, others: int) -> None:
        # With enough others no worker has room: the ticket is queued for the later message when the older one comes
        world = self.world
        parcel, ticket = data.draw(st.sampled_from(world.running()))
        for number in range(others):
            world.push(f"F{number}", task)
        world.push(ticket, task)
        world.read()
        dead = world.outcome(parcel, ticket, Kind.DEAD)
        world.failures.pop(dead.message_id, None)
        world.step([dead])
        assert world.order(do="replay", letters=[dead.message_id])["replayed"] == [dead.message_id]

    @precondition(lambda self: self.world.registered)
    @rule(data=st.data(), do=st.sampled_from(["drain", "resume", "transfer"]))
    def move(self, data: st.DataObject, do: str) -> None:
        names = sorted(name for name, _ in self.world.registered.values())
        order: dict[str, Any] = {"do": do, "consumer": data.draw(st.sampled_from(names))}
        if do == "transfer":
            order["to"] = data.draw(st.sampled_from([None, *names]))
            order["tickets"] = data.draw(st.sampled_from([None, ["T0", "T1"]]))
        self.world.order(**order)

    @rule(ms=st.sampled_from([1, 100, 5000, 20_000]))
    def time_passes(self, ms: int) -> None:
        self.world.now += ms
        self.world.step()

    @rule()
    def another_leader_takes_over(self) -> None:
        self.world.rebuild()

    @invariant()
    def everything_holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()
            to_be = {ticket.id for ticket in self.world.lane.tickets.values() if ticket.park_reason is not None}
            assert self.ordered == to_be | self.world.lane.parked.keys()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        # At the end, with one worker and no more failures, all messages end, and nothing is left
        world = self.world
        for ticket in list(world.lane.tickets):
            world.order(do="release", ticket=ticket)
        for ticket in list(world.lane.parked):
            world.order(do="release", ticket=ticket)
        for name, _ in world.registered.values():
            world.order(do="resume", consumer=name)
        stranded = world.lane.stranded
        for task in list(stranded.open_circuits):
            stranded.open_circuits.discard(task)
            stranded.release(task)
        world.join("last@h", 2)
        for _ in range(600):
            world.now += 20_000
            if world.store.unread() or world.reply:
                world.read()
            else:
                world.step()
            running = world.running()
            if not (running or world.store.pending or world.store.unread()):
                break
            world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running])
            world.check()
        while world.refill.waits:
            # All is done, and a ticket does not know yet that it has no more messages.
            world.step()
        store = world.store
        assert sorted([*store.done, *store.dead]) == sorted(store.entries)
        assert (store.pending, store.tickets, store.retries) == ({}, {}, {})
        assert not world.lane.suspects
        assert (world.lane.tickets, world.lane.in_flight, world.lane.held) == ({}, {}, 0)
        assert not world.lane.spilled
        for consumer in world.lane.consumers.values():
            assert (consumer.messages, consumer.parcels, consumer.backlog_ms, len(consumer.ready)) == (0, 0, 0.0, 0)


def run_machine(machine: type[LaneMachine], examples: int, steps: int = 40) -> None:
    """Runs a machine as a test."""
    # Each run of an example must do the same. The order of a set of tickets, in which they are queued, is that of their
    # addresses; and the random policy has dice of its own.
    dice = SimpleNamespace(Random=lambda: random.Random(1))
    with patch.object(Ticket, "__hash__", lambda ticket: hash(ticket.id)), patch.object(policies, "random", dice):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                print_blob=True,
                report_multiple_bugs=False,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            ),
        )


@pytest.mark.parametrize("examples", [60, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_order_and_accounts_hold_after_any_steps(examples: int) -> None:
    run_machine(LaneMachine, examples)
