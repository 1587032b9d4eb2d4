"""A consumer whose heartbeats are missing: the leader checks its lease when that ends, and decides by the lease."""

from __future__ import annotations

import pytest

from tests.unit.leader.lane_world import LaneWorld

LEASE_MS = 6000


def lane_of_two() -> tuple[LaneWorld, str, str]:
    world = LaneWorld()
    one, other = world.join("w1@h"), world.join("w2@h")
    # The check of each second has seen both leases.
    world.look({one: LEASE_MS - 100, other: LEASE_MS - 100})
    world.lease_watch.look_at = float("inf")
    return world, one, other


def next_look_ms(world: LaneWorld) -> float:
    return world.lease_watch.look_at * 1000 - world.now


@pytest.mark.parametrize("left_ms", [1, 37, 1500, 5000])
def test_the_next_look_is_when_the_lease_of_a_silent_consumer_ends(left_ms: int) -> None:
    world, one, _ = lane_of_two()
    world.lease_watch.silent.add("w1@h")
    world.look({one: left_ms})
    assert left_ms < next_look_ms(world) <= left_ms + 2


def test_without_its_heartbeats_missing_nothing_comes_sooner() -> None:
    world, one, _ = lane_of_two()
    world.look({one: 1500})
    assert world.lease_watch.look_at == float("inf")


def test_a_silent_consumer_that_renews_its_lease_is_left_alone() -> None:
    world, one, _ = lane_of_two()
    world.lease_watch.silent.add("w1@h")
    world.look({one: LEASE_MS})
    assert world.lease_watch.look_at == float("inf")
    assert not world.lease_watch.silent
    assert world.lane.consumers[one].alive


def test_a_name_that_is_gone_is_forgotten() -> None:
    world, one, other = lane_of_two()
    world.lease_watch.silent.update({"w1@h", "never@h"})
    world.look({one: 0})
    world.look({other: LEASE_MS})
    assert not world.lease_watch.silent
