"""The page that a worker's main process and its children share: what one writes, the others see at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from bridge.worker.shared import INCARNATION_CHARS, SLOTS, Shared

LIFE = "a" * INCARNATION_CHARS
OTHER = "b" * INCARNATION_CHARS


def in_a_child(act: Callable[[], object]) -> bool:
    """What ``act`` says in a forked process."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if act() else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 1), f"the child ended with {code}"
    return code == 0


def test_nothing_holds_before_the_first_lease() -> None:
    shared = Shared()
    assert not shared.holds("")
    assert not shared.holds(LIFE)
    assert (shared.incarnation, shared.deadline_s, shared.going) == ("", 0.0, False)
    assert shared.busy_pids() == set()


def test_a_lease_holds_for_its_incarnation_until_its_deadline() -> None:
    shared = Shared()
    shared.begin(LIFE, time.monotonic() + 60)
    assert shared.incarnation == LIFE
    assert shared.holds(LIFE)
    assert not shared.holds(OTHER)
    assert not shared.holds("")
    shared.extend(time.monotonic() - 0.001)
    assert not shared.holds(LIFE)
    shared.extend(time.monotonic() + 60)
    assert shared.holds(LIFE)
    shared.end()
    assert not shared.holds(LIFE)


def test_a_new_incarnation_ends_the_one_before() -> None:
    shared = Shared()
    shared.begin(LIFE, time.monotonic() + 60)
    shared.begin(OTHER, time.monotonic() + 60)
    assert (shared.holds(LIFE), shared.holds(OTHER)) == (False, True)


def test_a_shorter_name_leaves_nothing_of_the_longer_one() -> None:
    shared = Shared()
    shared.begin(LIFE, 1.0)
    shared.begin("short", 1.0)
    assert shared.incarnation == "short"


def test_children_that_were_forked_before_see_what_the_parent_writes_after() -> None:
    # Given a child that waits for a word from its parent
    shared = Shared()
    shared.begin(LIFE, time.monotonic() + 60)
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0 if not shared.holds(LIFE) and shared.going else 1)
    # When the lease ends and the worker goes
    shared.end()
    shared.going = True
    os.close(ours)
    os.close(theirs)
    # Then the child knows
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_frozen_parent_does_not_keep_a_lease_alive_for_its_child() -> None:
    shared = Shared()
    shared.begin(LIFE, time.monotonic() + 60)
    assert in_a_child(lambda: shared.holds(LIFE))
    # The parent writes nothing any more; the clock alone ends it
    shared.extend(time.monotonic() - 1e-9)
    assert not in_a_child(lambda: shared.holds(LIFE))


def test_the_parent_sees_what_a_child_ran_when_it_died() -> None:
    shared = Shared()
    pids = []
    for slot, fence in ((0, 2**52 + 1), (1, 7), (SLOTS - 1, 9)):
        pid = os.fork()
        if pid == 0:
            shared.running(slot, fence)
            os._exit(9)
        os.waitpid(pid, 0)
        pids.append((pid, fence))
    assert {shared.fence_of(pid) for pid, _ in pids} == {2**52 + 1, 7, 9}
    assert all(shared.fence_of(pid) == fence for pid, fence in pids)
    assert shared.busy_pids() == {pid for pid, _ in pids}
    assert shared.running_fences() == {2**52 + 1, 7, 9}


def test_a_child_that_finished_is_not_busy() -> None:
    shared = Shared()
    shared.running(3, 5)
    assert shared.busy_pids() == {os.getpid()}
    shared.running(3, 0)
    assert shared.fence_of(os.getpid()) == 0
    assert shared.busy_pids() == set()
    assert shared.running_fences() == set()


def test_slots_do_not_overlap_each_other_or_the_lease() -> None:
    shared = Shared()
    shared.begin(LIFE, 12.5)
    for slot in range(SLOTS):
        shared.running(slot, slot + 1)
    assert shared.running_fences() == set(range(1, SLOTS + 1))
    assert (shared.incarnation, shared.deadline_s, shared.going) == (LIFE, 12.5, False)


@pytest.mark.parametrize("slot", [SLOTS, SLOTS + 5, 10 * SLOTS])
def test_a_slot_beyond_the_page_is_no_write_beyond_it(slot: int) -> None:
    shared = Shared()
    shared.running(slot, 5)
    assert shared.fence_of(os.getpid()) == 5


def test_going_is_said_without_touching_the_lease() -> None:
    shared = Shared()
    shared.begin(LIFE, time.monotonic() + 60)
    shared.going = True
    assert shared.going
    assert shared.holds(LIFE)
    shared.going = False
    assert not shared.going
