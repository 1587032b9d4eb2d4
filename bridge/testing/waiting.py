"""Waiting in tests: always for a condition, with a deadline and a description of the condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Much longer than any wait on a machine at rest. Only a test that fails waits for so long.
DEFAULT_TIMEOUT_S = 60.0
#: Seconds between two looks: this share of the time that was waited already, at least and at most.
INTERVAL, SHORTEST_S, LONGEST_S = 0.05, 0.02, 0.08


class WaitTimeout(AssertionError):
    """What a test waited for did not happen. It is a failed assertion, and not an error of the test."""


def wait_until(
    predicate: Callable[[], T],
    *,
    description: str,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    interval_s: float | None = None,
) -> T:
    """Calls the predicate until it returns something truthy, and returns that.

    An exception of the predicate is not swallowed: a predicate that expects one handles it. The predicate is asked once
    more after the deadline, so that a machine that slept through it does not fail the test.

    Raises:
        WaitTimeout: With the description and the last value.
    """
    started = time.monotonic()
    while True:
        waited_s = time.monotonic() - started
        late = waited_s >= timeout_s
        value = predicate()
        if value:
            return value
        if late:
            raise WaitTimeout(f"waited {timeout_s:g} s without success for: {description} (last value: {value!r})")
        time.sleep(min(LONGEST_S, max(SHORTEST_S, INTERVAL * waited_s)) if interval_s is None else interval_s)


def holds_for(predicate: Callable[[], object], *, description: str, duration_s: float) -> None:
    """Watches that the predicate stays truthy for a while: the counterpart of `wait_until`, for what must not happen.

    Raises:
        AssertionError: As soon as it does not hold.
    """
    started = time.monotonic()
    while True:
        value = predicate()
        elapsed_s = time.monotonic() - started
        if not value:
            raise AssertionError(f"held for {elapsed_s:.2f} s only: {description} (last value: {value!r})")
        if elapsed_s >= duration_s:
            return
        time.sleep(SHORTEST_S)
