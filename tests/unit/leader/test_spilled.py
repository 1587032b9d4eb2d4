"""The order of spilled tickets: who comes first, as a look at all of them would say, and what that costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.leader.duties.refill import Refill
from bridge.leader.picture.pieces import Ticket
from bridge.leader.picture.spilled import Spilled
from bridge.protocol.outcomes import Kind
from tests.unit.leader.lane_world import LaneWorld

#: What happens to one of a few tickets: (ticket, what, place)
DEEDS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from(["spill", "goes on", "discard", "front", "first", "between", "to the end"]),
        st.integers(0, 30),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(DEEDS)
def test_the_order_is_that_of_a_look_at_all_of_them(deeds: list[tuple[int, str, int]]) -> None:
    tickets = [Ticket(str(n)) for n in range(6)]
    spilled = Spilled()
    for n, what, at in deeds:
        ticket, place = tickets[n], (at, 0)
        if what == "spill":
            ticket.spilled_from = place
            spilled.add(ticket)
        elif what == "goes on" and ticket.spilled_from is not None:
            ticket.spilled_from = max(place, ticket.spilled_from)
        elif what == "discard":
            spilled.discard(ticket)
        elif what == "front":
            # Its first message is let go, so it has a place of its own.
            ticket.leave_scan()
            ticket.front_id = "" if ticket.front_id else "5-0"
        elif what == "first":
            there = [t.spilled_from for t in spilled if t.spilled_from is not None and t is not ticket]
            assert spilled.first(lambda t, no=ticket: t is not no) == min(there, default=None)  # type: ignore[misc]
        elif what in ("between", "to the end"):
            end = (at + 10, 0) if what == "between" else None
            places = {t: t.spilled_from for t in tickets}
            found = spilled.between(place, end)
            served = {
                t
                for t in spilled
                if (begins := places[t]) is not None
                and begins >= place
                and not (end and begins >= end)
                and not t.front_id
            }
            assert {t for t in tickets if t in found} == served
            if end is None:
                continue
            # One of them was satisfied before, and another one will be read again from where it was.
            satisfied = {t for t in served if t is ticket or t.id == "0"}
            if ticket in satisfied:
                ticket.spilled_from = places[ticket] = (end[0] - 1, 5)
            spilled.read_to(end, found, but=satisfied)
            assert {t: t.spilled_from for t in tickets} == places | dict.fromkeys(served - satisfied, end)


def test_a_page_for_many_tickets_looks_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given one message each of many tickets, which all waited for one task
    world = LaneWorld(page=100, window=500)
    world.join("w1@h", 2, frozenset({"short"}))
    tickets = 3000
    for n in range(tickets):
        world.push(f"T{n}", "long")
    for _ in range(40):
        world.read(100)
    assert len(world.lane.stranded.waiting["long"].tickets) == tickets
    looks = [0]
    needs = Refill._needs

    def counted(refill: Refill) -> Any:
        inner = needs(refill)

        def look(ticket: Ticket) -> bool:
            looks[0] += 1
            return inner(ticket)

        return look

    monkeypatch.setattr(Refill, "_needs", counted)
    # When a consumer comes that has it, and all are read
    world.join("w2@h", 2, frozenset({"long"}))
    while world.lane.spilled:
        world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in world.running()])
    # Then a page looked at a few of them for each that it read
    assert looks[0] < 20 * tickets
