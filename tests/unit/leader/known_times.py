"""A lane whose service times are known, for tests of the planner."""

from __future__ import annotations

from typing import Any

from tests.unit.leader.lane_world import TASKS, LaneWorld


def world(*, measured: bool = True, **settings: Any) -> LaneWorld:
    """A lane whose service times are known."""
    made = LaneWorld(**settings)
    if measured:
        made.lane.service_ms.update(TASKS)
    return made


def kinds(lane: LaneWorld) -> list[str]:
    return [parcel.kind for parcel in lane.store.parcels]


# -- room ----------------------------------------------------------------------------------------------------------
