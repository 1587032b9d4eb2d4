"""Lanes on one stream in all interleavings: an entry leaves when all are done with it; each lane has its own terms."""

from __future__ import annotations

import pytest

from tests.protocol.lanes import BY_HAND as TAKEN
from tests.protocol.lanes import DEAD, DONE, PENDING, UNREAD, Lane, LaneGuard, Shape, Stream, check, explore, steps
from tests.protocol.world import Broken

SHAPES = {
    "two lanes": Shape(),
    "a lane is added while another works": Shape(added=1),
    "three lanes, of which one is added": Shape(messages=1, lanes=3, added=1),
    "somebody acknowledges by hand": Shape(messages=1, by_hand=1),
}
#: Guards that are missed only when somebody acknowledges an entry by hand.
BY_HAND = {LaneGuard.AGREED, LaneGuard.AGREED_SINCE, LaneGuard.LOOKED_AGAIN}
#: Guards without which the others still keep every promise: what they keep out is an entry that is acknowledged by hand
#: twice.
SECOND_LINES = {LaneGuard.NOT_PENDING}
#: Guards that are missed only when a lane is added.
WITH_A_NEW_LANE = {LaneGuard.GROUPS_KNOWN}
#: Guard -> how the promise that breaks begins.
BREAKS = {
    LaneGuard.NOT_UNREAD: "I1: entry",
    LaneGuard.NOT_PENDING_SEEN: "I1: entry",
    LaneGuard.AGREED: "I1: entry",
    LaneGuard.AGREED_SINCE: "I1: entry",
    LaneGuard.LOOKED_AGAIN: "I1: entry",
    LaneGuard.GROUPS_KNOWN: "I1: entry",
    LaneGuard.LETTERS_OF_ALL: "I1: entry",
    LaneGuard.TERM_REMOVE: "I8: lane",
    LaneGuard.TERM_SETTLE: "I8: lane",
    LaneGuard.OWN_LEAD: "no good end",
}


@pytest.mark.parametrize("name", SHAPES)
def test_an_entry_leaves_only_when_every_lane_is_done_with_it_and_in_the_end_all_leave(name: str) -> None:
    found = explore(SHAPES[name])
    print(f"{name}: {found.states:,} states, {found.steps:,} steps, {found.ends:,} good ends")
    assert not found.broken, "\n".join(found.trace)
    assert found.ends


@pytest.mark.parametrize("guard", BREAKS, ids=lambda guard: guard.value)
def test_without_the_guard_a_promise_breaks(guard: LaneGuard) -> None:
    found = explore(Shape(messages=1, added=guard in WITH_A_NEW_LANE, by_hand=guard in BY_HAND), {guard})
    print("\n".join(found.trace))
    assert found.broken.startswith(BREAKS[guard])


def test_every_guard_is_looked_at() -> None:
    assert {*BREAKS, *SECOND_LINES} == set(LaneGuard)


@pytest.mark.parametrize("guard", [*SECOND_LINES, *BY_HAND], ids=lambda guard: guard.value)
@pytest.mark.parametrize("added", [0, 1])
def test_without_acknowledgements_by_hand_the_others_hold(guard: LaneGuard, added: int) -> None:
    found = explore(Shape(messages=1, added=added, by_hand=guard in SECOND_LINES), {guard})
    assert not found.broken, "\n".join(found.trace)


def test_a_dead_message_that_nobody_decides_on_keeps_its_entry() -> None:
    found = explore(Shape(messages=1, replays=False))
    assert found.broken == "no good end can be reached"
    assert found.trace[-2].endswith("0 is settled")


@pytest.mark.parametrize("state", [UNREAD, PENDING, TAKEN, DEAD])
def test_the_invariant_sees_an_entry_that_left_too_early(state: int) -> None:
    done, other = Lane(True, 1, 1, (DONE,)), Lane(True, 1, 1, (state,))
    check(Stream((True,), (done, other)))
    check(Stream((False,), (done, done)))
    with pytest.raises(Broken, match="entry 0 left the stream, and lane 1"):
        check(Stream((False,), (done, other)))


def test_a_change_of_one_lanes_leader_changes_no_other_lane() -> None:
    world = Stream((True,), (Lane(True, 1, 1, (PENDING,)), Lane(True, 1, 1, (PENDING,))))
    changed = [after for label, after in steps(world, Shape(messages=1), frozenset()) if "leads no more" in label]
    assert [sum(lane.lead == 0 for lane in after.lanes) for after in changed] == [1, 1]
