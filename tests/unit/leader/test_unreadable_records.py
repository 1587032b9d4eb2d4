"""Ticket records that a new leader cannot read: their tickets stand still, and all others go on."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from bridge.protocol.outcomes import Kind
from bridge.routing import records
from tests.unit.leader.lane_world import LaneWorld

#: What may stand in the place of a value.
OTHERS: list[Any] = [None, -2, 2**70, "x-y", [], ["x-y"], ["1-0", 5], {}, True]
STATES = ["in flight", "awaits a retry", "parked"]


def damaged(record: str) -> list[str]:
    """What may have become of a record: it is cut, or one value of it is another one."""
    row = json.loads(record)
    texts = ["", "[", "[1", "5", "null", "{}", record[:-1], json.dumps(row[:-1]), f"[{record}]"]
    for place in range(len(row)):
        for other in OTHERS:
            text = json.dumps([*row[:place], other, *row[place + 1 :]])
            try:
                records.parse(text)
            except ValueError:
                texts.append(text)
    return texts


def world_in(state: str) -> LaneWorld:
    world = LaneWorld()
    world.join("w1@h", slots=2)
    world.push("T", "long", count=3)
    world.push("U", "long", count=2)
    world.read()
    if state == "awaits a retry":
        [parcel] = [parcel for parcel, ticket in world.running() if ticket == "T"]
        world.step([world.outcome(parcel, "T", Kind.NACKED, delay_ms=60_000)])
    elif state == "parked":
        world.order(do="park", ticket="T", reason="a test")
        [parcel] = [parcel for parcel, ticket in world.running() if ticket == "T"]
        world.step([world.outcome(parcel, "T", Kind.NACKED, delay_ms=60_000)])
    return world


CASES = [(state, n) for state in STATES for n in range(len(damaged(world_in(state).store.tickets["T"])))]


@pytest.mark.parametrize(("state", "case"), CASES)
def test_a_ticket_whose_record_cannot_be_read_stands_still_until_it_is_released(
    state: str, case: int, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a record that somebody damaged
    world = world_in(state)
    ids = [id_ for id_ in world.store.entries if world.ticket_of(id_) == "T"]
    late = [parcel for parcel, ticket in world.running() if ticket == "T"]
    text = world.store.tickets["T"] = damaged(world.store.tickets["T"])[case]
    # When a new leader reads the lane
    with caplog.at_level(logging.ERROR):
        world.rebuild()
    # Then it says so once, the ticket is parked, and an outcome of what ran counts for nothing
    [line] = [record.getMessage() for record in caplog.records]
    assert world.settings.keys.tickets in line
    record = records.parse(world.store.tickets["T"])
    assert (record.parked, record.ids, "T" in world.store.retries) == (True, (), False), text
    assert record.cause.startswith("its record could not be read")
    for parcel in late:
        world.step([world.outcome(parcel, "T", Kind.DONE)])
    # And the others go on, also with the next leader
    world.rebuild()
    while running := [(parcel, ticket) for parcel, ticket in world.running() if ticket != "T"]:
        world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running])
    assert {world.ticket_of(id_) for id_ in world.store.done} == {"U"}
    assert len(caplog.records) == 1
    # When it is released, all of it is handled in order
    world.order(do="release", ticket="T")
    while running := world.running():
        world.step([world.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running])
    world.check()
    assert [id_ for id_ in world.store.done if world.ticket_of(id_) == "T"] == ids
