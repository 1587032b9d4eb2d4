"""Waiting: irregular steps that grow up to a limit, notes during a long wait, and an end."""

from __future__ import annotations

import pytest

from bridge.routing.errors import StreamFull
from bridge.spark.write.patience import LONGEST_STEP_S, NOTE_EVERY_S, NOTED_FROM_S, Patience


class Time:
    """A clock that only sleeping moves."""

    def __init__(self, jitter: float) -> None:
        self.now = 100.0
        self.steps: list[float] = []
        self.notes: list[tuple[float, str, float]] = []
        self._jitter = jitter

    def sleep(self, seconds: float) -> None:
        self.steps.append(seconds)
        self.now += seconds

    def note(self, why: str, for_s: float) -> None:
        self.notes.append((self.now, why, for_s))

    def patience(self, longest_s: float) -> Patience:
        return Patience(longest_s, self.note, clock=lambda: self.now, sleep=self.sleep, jitter=lambda: self._jitter)


@pytest.mark.parametrize("jitter", [0.0, 0.999])
def test_steps_grow_up_to_a_limit_and_end_at_the_longest_wait(jitter: float) -> None:
    time = Time(jitter)
    patience = time.patience(60)

    def wait_for_ever() -> None:
        while True:
            patience.wait("no room", StreamFull)

    with pytest.raises(StreamFull, match=r"no room; waited 1 min without success \(maxWait\)"):
        wait_for_ever()
    assert sum(time.steps) == pytest.approx(60)
    assert time.steps[0] < 0.02
    assert max(time.steps) <= LONGEST_STEP_S
    assert all(step >= LONGEST_STEP_S / 2 for step in time.steps[10:-1])
    # Never a busy loop: a minute takes some hundred steps at most
    assert len(time.steps) < 300


def test_progress_restarts_the_wait() -> None:
    time = Time(0.5)
    patience = time.patience(10)
    for _ in range(100):
        for _ in range(10):
            patience.wait("no room", StreamFull)
        patience.progress()
    assert patience.waited_s > 100


def test_only_a_long_wait_is_noted_now_and_then_until_it_ends() -> None:
    time = Time(0.5)
    patience = time.patience(100)
    patience.wait("no room", StreamFull)
    patience.progress()
    assert (time.notes, patience.why) == ([], "")
    while time.now < 110:
        patience.wait("no room", StreamFull)
    noted = [at for at, _, _ in time.notes]
    assert all(for_s >= NOTED_FROM_S for _, _, for_s in time.notes)
    assert 5 < len(noted) <= 10 / NOTE_EVERY_S
    patience.progress()
    assert time.notes[-1][1:] == ("", 0.0)
    assert patience.why == "no room"
