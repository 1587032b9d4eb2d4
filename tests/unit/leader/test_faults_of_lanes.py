"""What a defect made of one lane's message or outcome is not held against those of other lanes with the same id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bridge.leader.picture import faults
from bridge.leader.picture.faults import MessageAtFault
from bridge.leader.step import outcome_reader
from bridge.leader.step.outcome_reader import OutcomeReader
from bridge.leader.stream.reading import Reading
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.batch import Batch
from bridge.routing.errors import LaneConflict
from tests.unit.leader.lane_world import LaneWorld

#: Lanes of one master: another subscription on the stream, another partition.
OTHERS = pytest.mark.parametrize("other", [{"group": "search"}, {"stream": "ticket_stream:p1"}], ids=str)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_faults", {})
    monkeypatch.setattr(outcome_reader, "_unsettled", set())


def defect(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a defect")


def ingest(world: LaneWorld, batch: Batch) -> None:
    Reading(world.term, world.lane).ingest([b"1-0", world.store.entries["1-0"]], batch)


def take_late(world: LaneWorld, batch: Batch) -> None:
    Reading(world.term, world.lane).take_late([b"1-0", world.store.entries["1-0"]], 5, batch)


def dispatch(world: LaneWorld, batch: Batch) -> None:
    ingest(world, batch)
    world.planner.plan(batch, world.now)


@OTHERS
@pytest.mark.parametrize(
    ("handle", "broken"),
    [(ingest, "lane.ingest"), (take_late, "lane.take_late"), (dispatch, "planner._envelopes.plain")],
)
def test_a_message_is_at_fault_in_its_lane_only(
    handle: Callable[[LaneWorld, Batch], None], broken: str, other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds = [LaneWorld(bundle_ms=0.0), LaneWorld(bundle_ms=0.0, **other)]
    for world in worlds:
        world.join("w1@h")
        world.push("T")
    # Given a message that makes the leader of the first lane raise
    owner: Any = worlds[0]
    *path, name = broken.split(".")
    for attribute in path:
        owner = getattr(owner, attribute)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, defect)
        with pytest.raises(MessageAtFault):
            handle(worlds[0], Batch())
    # When the leaders read the lanes again, then only that one refuses it
    refused = []
    for world in worlds:
        batch = Batch()
        world.lead()
        world.join("w1@h")
        handle(world, batch)
        refused.append([letter.message_id for letter in batch.dead])
    assert refused == [["1-0"], []]


@OTHERS
def test_an_outcome_is_skipped_in_its_lane_only(other: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = [LaneWorld(), LaneWorld(**other)]
    entry = (b"5-0", [b"i", b"life", b"o", b"[" + Outcome("1-0", 7, Kind.DONE).encode() + b"]"])
    # Given an outcome that makes the leader of the first lane raise
    monkeypatch.setattr(worlds[0].settling, "settle", defect)
    with pytest.raises(LaneConflict):
        OutcomeReader(worlds[0].lane, worlds[0].settling, {}).take([entry], Batch())
    # When an entry with the same id is read in both, then only that one skips it
    skipped = []
    for world in worlds:
        settled: list[Any] = []
        monkeypatch.setattr(world.settling, "settle", lambda outcome, _, settled=settled: settled.append(outcome))
        OutcomeReader(world.lane, world.settling, {}).take([entry], Batch())
        skipped.append(not settled)
    assert skipped == [True, False]
