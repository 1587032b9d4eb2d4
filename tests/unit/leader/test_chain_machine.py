"""Lanes of one chain under random events: a message of a newer lane goes out only when no older one has anything of its
ticket, whatever comes, and every message ends.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from bridge.protocol.outcomes import Kind
from tests.unit.leader.chain_world import Chain, ChainedWorld
from tests.unit.leader.test_lane_delayed_machine import DELAYS, DelayedMachine
from tests.unit.leader.test_lane_machine import ALL, SETS, TICKETS, run_machine
from tests.unit.leader.test_lane_spilled_machine import SpilledMachine

SHAPES: list[dict[str, list[str]]] = [
    {"v0": [], "v1": ["v0"]},
    {"v0": [], "v1": ["v0"], "v2": ["v0", "v1"]},
    # A stream of one partition is split in two, and one of two in one.
    {"v0": [], "n0": ["v0"], "n1": ["v0"]},
    {"o0": [], "o1": [], "n0": ["o0", "o1"]},
]


class ChainMachine(SpilledMachine, DelayedMachine):
    """The events of one lane, at one of the lanes at a time."""

    chain: Chain
    world: ChainedWorld

    @property
    def ordered(self) -> set[str]:
        """The tickets of the present lane that are to be parked."""
        return self._ordered.setdefault(self.world.name, set())

    @ordered.setter
    def ordered(self, _nothing: set[str]) -> None:
        self._ordered: dict[str, set[str]] = {}

    @initialize(
        shape=st.sampled_from(SHAPES),
        slots=st.integers(1, 3),
        window=st.sampled_from([10, 30, 1000]),
        page=st.sampled_from([3, 10]),
        bundle_ms=st.sampled_from([0.0, 10.0]),
        on_dead=st.sampled_from(["skip", "skip", "park"]),
        tasks=SETS,
    )
    def begin(self, shape: Any, slots: int, window: int, page: int, bundle_ms: float, on_dead: str, tasks: Any) -> None:
        # Where the window is full, newer messages may go before delayed ones that are due.
        self.overtake = window == 1000
        given: dict[str, Any] = {"window": window, "bundle_ms": bundle_ms, "on_dead": on_dead}
        self.chain = Chain(shape, page=page, sliced=True, clocked=True, **given)
        for world in self.chain.worlds:
            world.join("w0@h", slots, tasks)
        self.world = self.chain.worlds[0]

    # -- which lane --------------------------------------------------------------------------------------------------

    @rule(at=st.integers(0, 2))
    def go_to(self, at: int) -> None:
        self.world = self.chain.worlds[at % len(self.chain.worlds)]

    @rule(at=st.integers(0, 2))
    def go_on_to(self, at: int) -> None:
        self.go_to(at)

    @rule(ticket=TICKETS, at=st.lists(st.integers(0, 2), min_size=1, max_size=4), count=st.integers(1, 5))
    def push_to_several(self, ticket: str, at: list[int], count: int) -> None:
        for one in at:
            self.chain.worlds[one % len(self.chain.worlds)].push(ticket, count=count)

    @rule(first=st.integers(0, 10), tickets=st.integers(1, 25))
    def push_many_to_all(self, first: int, tickets: int) -> None:
        for n in range(tickets):
            for world in self.chain.worlds:
                world.push(f"T{first + n}", count=3 if n % 5 == 0 else 1)

    @rule(ticket=TICKETS, delay_ms=DELAYS, hold=st.booleans(), count=st.integers(1, 5))
    def push_delayed(self, ticket: str, delay_ms: int, hold: bool, count: int) -> None:
        super().push_delayed(ticket, delay_ms, hold or not self.overtake, count)

    @rule(count=st.integers(1, 10))
    def server_answers(self, count: int) -> None:
        # A leader of a chain reads and takes in what it reads in one turn.
        self.world.read(count)

    @rule(when=st.sampled_from(["before", "after"]))
    def the_reply_to_a_leader_is_lost(self, when: str) -> None:
        self.world.lose_a_reply(when)

    # -- turns -------------------------------------------------------------------------------------------------------

    @rule(at=st.lists(st.integers(0, 2), min_size=1, max_size=10))
    def leaders_have_turns(self, at: list[int]) -> None:
        for one in at:
            self.chain.worlds[one % len(self.chain.worlds)].work()

    @rule()
    def all_settles(self) -> None:
        self.chain.settle()
        self.chain.check_settled()

    @rule(some=st.integers(1, 6))
    def the_oldest_are_done(self, some: int) -> None:
        for world in self.chain.worlds:
            running = world.running()[:some]
            world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running])

    @rule()
    def a_second_passes(self) -> None:
        self.chain.now += 1000
        for world in self.chain.worlds:
            world.check_at_intervals()

    # -- other masters -----------------------------------------------------------------------------------------------

    @rule(ticket=TICKETS)
    def another_master_has_it_in_flight(self, ticket: str) -> None:
        if not any(world.has_in_flight(ticket) for world in self.chain.worlds):
            self.chain.put_in_flight_elsewhere(ticket)

    @precondition(lambda self: self.chain.foreign.tickets)
    @rule()
    def another_master_is_done(self) -> None:
        self.chain.foreign.tickets.clear()

    @rule(tickets=st.lists(TICKETS, min_size=1, max_size=3), undone=st.booleans(), many=st.booleans())
    def a_message_comes_to_a_dropped_version(self, tickets: list[str], undone: bool, many: bool) -> None:
        self.chain.push_to_dropped(
            tickets * (300 if many and len(self.chain.dropped.entries) < 600 else 1), undone=undone
        )

    @precondition(lambda self: self.chain.dropped_undone)
    @rule()
    def the_dropped_version_is_done(self) -> None:
        self.chain.dropped_undone.clear()

    @rule(at=st.lists(st.integers(0, 2), max_size=6), done=st.booleans())
    def nobody_leads_this_lane_for_a_while(self, at: list[int], done: bool) -> None:
        away = self.world
        away.place.leave()
        for one in at:
            other = self.chain.worlds[one % len(self.chain.worlds)]
            if other is not away:
                running = other.running()[: 1 if done else 0]
                other.step([other.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running])
                other.work()
        away.rebuild()

    # -- tasks that are stopped --------------------------------------------------------------------------------------

    @rule(task=st.sampled_from(ALL))
    def a_circuit_opens_or_closes(self, task: str) -> None:
        world = self.world
        with world.turn():
            if world.breakers.why(task):
                world.breakers.succeeded(task)
            else:
                world.breakers.restore(task, "it is open")
                for consumer in list(world.lane.crowded):
                    world.lane.free_ready(consumer)
                world.lane.queue_again()
            world.step()

    # -- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def everything_holds(self) -> None:
        if hasattr(self, "chain"):
            lane = self.world.lane
            to_be = {ticket.id for ticket in lane.tickets.values() if ticket.park_reason is not None}
            assert self.ordered <= to_be | lane.parked.keys()

    @invariant()
    def all_lanes_hold(self) -> None:
        if hasattr(self, "chain"):
            self.chain.check()
            here = self.world
            for world in self.chain.worlds:
                self.world = world
                self.spilled_tickets_are_found()
            self.world = here

    def teardown(self) -> None:
        if not hasattr(self, "chain"):
            return
        # At the end consumers come, nothing fails, and no ticket stays parked: all messages end
        chain = self.chain
        chain.foreign.tickets.clear()
        chain.dropped_undone.clear()
        for world in chain.worlds:
            for ticket in list(world.lane.tickets):
                world.order(do="release", ticket=ticket)
            for name, _ in world.registered.values():
                world.order(do="resume", consumer=name)
            world.join("last@h", 2)
        for _ in range(600):
            chain.now += 20_000
            for world in chain.worlds:
                for ticket in list(world.lane.parked):
                    world.order(do="release", ticket=ticket)
                world.check_at_intervals()
            chain.settle()
            chain.check()
            chain.check_settled()
            if not chain.finish() and not any(world.has_work for world in chain.worlds):
                break
        chain.settle()
        for world in chain.worlds:
            store, lane = world.store, world.lane
            assert sorted([*store.done, *store.dead]) == sorted(store.entries)
            assert (store.pending, store.tickets, store.retries) == ({}, {}, {})
            assert (lane.tickets, lane.in_flight, lane.held, lane.bytes) == ({}, {}, 0, 0)
            assert (lane.deferred, lane.ended, world.place._to_look_at) == ({}, [], [])
            assert not [*lane.suspects, *lane.spilled, *lane.ready, *lane.late_ready, *lane.older]
            for consumer in lane.consumers.values():
                assert (consumer.messages, consumer.parcels, consumer.backlog_ms, len(consumer.ready)) == (0, 0, 0.0, 0)


@pytest.mark.parametrize("examples", [15, pytest.param(800, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_order_over_all_lanes_of_a_chain_holds(examples: int) -> None:
    run_machine(ChainMachine, examples, steps=50)
