"""The lane under random events with many tickets and little room: messages spill, and pages of them are read again."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from bridge.leader.picture.pieces import Ticket
from bridge.routing.ids import Place
from tests.unit.leader.lane_world import LaneWorld
from tests.unit.leader.test_lane_machine import ALL, LaneMachine, run_machine


class SpilledMachine(LaneMachine):
    """The same events, and messages of many tickets."""

    @initialize(slots=st.integers(1, 3), window=st.sampled_from([30, 100]), page=st.sampled_from([3, 10]))
    def begin(self, slots: int, window: int, page: int) -> None:
        self.world = LaneWorld(page=page, sliced=True, window=window, bundle_ms=10.0, clocked=True)
        self.world.join("w0@h", slots)

    @rule(task=st.sampled_from(ALL), first=st.integers(0, 20), tickets=st.integers(1, 25))
    def push_to_many(self, task: str, first: int, tickets: int) -> None:
        for n in range(tickets):
            self.world.push(f"T{first + n}", task, count=5 if n % 3 == 0 else 1)

    @rule(turns=st.integers(1, 40))
    def turns_pass(self, turns: int) -> None:
        for _ in range(turns):
            self.world.step()

    @invariant()
    def spilled_tickets_are_found(self) -> None:
        if not hasattr(self, "world"):
            return
        lane = self.world.lane
        spilled = lane.spilled
        places: dict[object, list[Place]] = {}
        for place, _, item in spilled._heap:
            places.setdefault(item, []).append(place)
            assert isinstance(item, Ticket) or item.members <= spilled, "a ticket of a shared place is not spilled"
        for ticket in spilled:
            assert lane.tickets.get(ticket.id) is ticket, f"{ticket} is forgotten"
            assert not ticket.stranded
            if ticket.scan is not None:
                assert ticket in ticket.scan.members
                assert not ticket.front_id
                assert ticket.scan.spilled_from in places[ticket.scan]
            elif ticket.front_id:
                assert ticket in spilled._changed or ticket in spilled._fronts
            else:
                assert ticket in spilled._changed or ticket in places
        assert spilled._changed.keys() | spilled._fronts.keys() <= spilled, "it keeps tickets that are not spilled"
        for ticket in lane.tickets.values():
            if ticket.spilled_from is not None and ticket not in spilled:
                waits = ticket.stranded or lane.resting.rests(ticket) or ticket.id in self.world.deferred
                assert waits, f"{ticket} is never read again"
            # What a consumer can run is not left where it waits for one.
            if ticket.stranded and any(one.serving for one in lane.consumers.values()):
                assert not lane.stranded.can_run(ticket.stranded), f"{ticket} stays stranded"


@pytest.mark.parametrize("examples", [20, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_order_and_accounts_hold_where_messages_spill(examples: int) -> None:
    run_machine(SpilledMachine, examples)
