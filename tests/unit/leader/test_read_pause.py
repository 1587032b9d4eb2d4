"""When a lane lets new entries gather: never while something that it reads could start."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.leader.picture.read_pause import STREAK, WITH_ROOM_S, WITHOUT_ROOM_S, ReadPause


class Stand:
    """A lane with so many runs in flight, and consumers with room or without."""

    def __init__(self, *, in_flight: int = 0, room: bool = True) -> None:
        self.in_flight = dict.fromkeys(range(in_flight))
        self.room = room
        lane: Any = self
        self.pause = ReadPause(lane, lambda: self.room)

    def read(self, times: int, *, count: int = 1, moved: bool = False) -> list[float]:
        return [self.pause.seconds(count, moved=moved) for _ in range(times)]


@pytest.mark.parametrize(
    ("stand", "pause_s"),
    [(Stand(), WITH_ROOM_S), (Stand(room=False), WITHOUT_ROOM_S), (Stand(in_flight=3, room=False), WITHOUT_ROOM_S)],
    ids=["all tickets are parked", "no consumer", "all consumers are full"],
)
def test_a_lane_that_can_start_nothing_pauses_behind_some_messages(stand: Stand, pause_s: float) -> None:
    assert stand.read(STREAK) == [0.0] * (STREAK - 1) + [pause_s]
    assert stand.read(3, count=7) == [pause_s] * 3


def test_many_messages_of_one_read_count_one_by_one() -> None:
    assert Stand().read(1, count=STREAK) == [WITH_ROOM_S]


def test_a_lane_that_works_does_not_pause_however_many_of_its_messages_wait() -> None:
    """The messages that come may be of tickets that are free, or of one that is busy."""
    assert Stand(in_flight=1).read(10 * STREAK) == [0.0] * 10 * STREAK


def test_one_message_that_starts_or_ends_makes_the_lane_quick_again() -> None:
    stand = Stand(room=False)
    stand.read(2 * STREAK)
    assert stand.read(1, moved=True) == [0.0]
    assert stand.read(STREAK - 1) == [0.0] * (STREAK - 1)


def test_a_consumer_with_room_makes_the_lane_quick_again_when_something_runs() -> None:
    stand = Stand(in_flight=1, room=False)
    stand.read(2 * STREAK)
    stand.room = True
    assert stand.read(2 * STREAK) == [0.0] * 2 * STREAK
