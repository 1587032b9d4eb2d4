"""The page that main process, pool children and watcher share: a write is visible to the others at once."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from bridge.consumer.deadline import now_ns
from bridge.routing.errors import ConfigurationError
from bridge.worker.guard import shared_page as module
from bridge.worker.guard.fencing import wait_s
from bridge.worker.guard.processes import start_time
from bridge.worker.guard.shared_page import EVERYTHING, INCARNATION_CHARS, Row, SharedPage

LIFE = "a" * INCARNATION_CHARS
OTHER = "b" * INCARNATION_CHARS
SECOND = 1_000_000_000


def soon() -> int:
    return now_ns() + 60 * SECOND


def in_a_child(act: Callable[[], object]) -> bool:
    """The result of ``act`` in a forked process."""
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


class Child:
    """A forked process that calls a function, and then sleeps until it is killed."""

    def __init__(self, act: Callable[[], object]) -> None:
        ours, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                # Killed with its parent (PR_SET_PDEATHSIG), so that it does not outlive a failed test.
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)
                act()
                os.write(theirs, b"1")
                signal.pause()
            finally:
                os._exit(2)
        os.close(theirs)
        assert os.read(ours, 1) == b"1", "the child did not get that far"
        os.close(ours)
        self.started = start_time(self.pid)

    def end(self, *, reap: bool = True) -> None:
        os.kill(self.pid, signal.SIGKILL)
        if reap:
            os.waitpid(self.pid, 0)
        else:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


def runs(shared: SharedPage, fence: int) -> Callable[[], None]:
    return lambda: shared.note_running(shared.take_row(), fence)


# -- the lease -----------------------------------------------------------------------------------------------------


def test_nothing_holds_before_the_first_lease() -> None:
    shared = SharedPage()
    assert not shared.holds("")
    assert not shared.holds(LIFE)
    assert (shared.incarnation, shared.deadline_ns, shared.recalled_to) == ("", 0, 0)
    assert list(shared.rows()) == []


def test_a_lease_holds_for_its_incarnation_until_its_deadline() -> None:
    shared = SharedPage()
    shared.begin(LIFE, soon())
    assert shared.incarnation == LIFE
    assert shared.holds(LIFE)
    assert not shared.holds(OTHER)
    assert not shared.holds("")
    shared.extend(now_ns() - 1)
    assert not shared.holds(LIFE)
    shared.extend(soon())
    assert shared.holds(LIFE)
    shared.end()
    assert not shared.holds(LIFE)


def test_a_lane_that_was_left_is_not_watched_closely() -> None:
    shared = SharedPage()
    shared.begin(LIFE, soon())
    held = wait_s(shared, 6.0)
    shared.end()
    assert wait_s(shared, 6.0) < held / 10
    shared.leave()
    assert wait_s(shared, 6.0) == held


def test_a_new_incarnation_ends_the_one_before() -> None:
    shared = SharedPage()
    shared.begin(LIFE, soon())
    shared.begin(OTHER, soon())
    assert (shared.holds(LIFE), shared.holds(OTHER)) == (False, True)


def test_a_shorter_name_leaves_nothing_of_the_longer_one() -> None:
    shared = SharedPage()
    shared.begin(LIFE, 1)
    shared.begin("short", 1)
    assert shared.incarnation == "short"


def test_children_that_were_forked_before_see_what_the_parent_writes_after() -> None:
    # Given a child that waits for a signal from its parent
    shared = SharedPage()
    shared.begin(LIFE, soon())
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0 if not shared.holds(LIFE) and shared.recalled_to == EVERYTHING else 1)
    # When the lease ends and the worker exits
    shared.end()
    shared.recalled_to = EVERYTHING
    os.close(ours)
    os.close(theirs)
    # Then the child sees it
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_frozen_parent_does_not_keep_a_lease_alive_for_its_child() -> None:
    shared = SharedPage()
    shared.begin(LIFE, soon())
    assert in_a_child(lambda: shared.holds(LIFE))
    # The parent writes nothing more. The clock alone ends the lease
    shared.extend(now_ns() - 1)
    assert not in_a_child(lambda: shared.holds(LIFE))


def test_the_file_is_closed_when_nobody_has_the_page_and_not_before() -> None:
    shared = SharedPage()
    fd = shared.fd
    seen = SharedPage.attach(fd)
    del seen
    gc.collect()
    os.fstat(fd)
    del shared
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_process_that_gets_the_file_sees_the_page() -> None:
    shared = SharedPage()
    shared.begin(LIFE, soon())
    shared.note_running(shared.take_row(), 7)
    seen = SharedPage.attach(os.dup(shared.fd))
    assert seen.holds(LIFE)
    assert seen.main == shared.main == (os.getpid(), start_time(os.getpid()))
    assert seen.running_fences() == {7}
    # And it is not the main process, because it has the page
    assert in_a_child(lambda: not seen.in_main)


def test_the_fence_of_a_recall_only_grows() -> None:
    shared = SharedPage()
    shared.begin(LIFE, soon())
    shared.recalled_to = 7
    shared.recalled_to = 5
    assert shared.recalled_to == 7
    shared.recalled_to = EVERYTHING
    assert shared.recalled_to == EVERYTHING
    assert shared.holds(LIFE)


# -- who runs what -------------------------------------------------------------------------------------------------


def test_the_parent_sees_what_a_child_ran_when_it_died() -> None:
    shared = SharedPage()
    children = [(Child(runs(shared, fence)), fence) for fence in (2**52 + 1, 7, 9)]
    for child, _ in children:
        child.end()
    for child, fence in children:
        assert shared.row_of(child.pid) == Row(child.pid, child.started, fence, 0)
    assert shared.running_fences() == {2**52 + 1, 7, 9}


def test_lines_of_execution_of_one_process_have_rows_of_their_own() -> None:
    shared = SharedPage()
    taken: list[int] = []

    def take() -> None:
        taken.append(shared.take_row())

    threads = [threading.Thread(target=take) for _ in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == 200
    # And a row that was given back can be taken again
    shared.give_row(taken[7])
    assert shared.take_row() == taken[7]


def test_processes_that_begin_at_once_get_different_rows() -> None:
    shared = SharedPage()
    gate, opener = os.pipe()
    pids = []
    for fence in range(1, 31):
        pid = os.fork()
        if pid == 0:
            os.close(opener)
            os.read(gate, 1)
            shared.note_running(shared.take_row(), fence)
            os._exit(0)
        pids.append(pid)
    os.close(opener)
    for pid in pids:
        os.waitpid(pid, 0)
    os.close(gate)
    assert shared.running_fences() == set(range(1, 31))


def test_a_new_process_takes_the_row_of_a_dead_one_once_its_message_is_settled() -> None:
    shared = SharedPage()
    first = Child(runs(shared, 5))
    first.end()
    # The watcher has not yet read what it ran
    second = Child(runs(shared, 6))
    assert shared.running_fences() == {5, 6}
    shared.forget(first.pid)
    assert shared.running_fences() == {6}
    third = Child(runs(shared, 7))
    assert sorted(row.pid for row in shared.rows()) == sorted([second.pid, third.pid])
    second.end()
    third.end()


def test_a_message_that_a_live_process_runs_is_not_forgotten() -> None:
    shared = SharedPage()
    child = Child(runs(shared, 5))
    shared.forget(child.pid)
    assert shared.running_fences() == {5}
    child.end()


def test_rows_are_bounded_and_a_process_without_one_logs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 3)
    shared = SharedPage()
    rows = [shared.take_row() for _ in range(3)]
    with pytest.raises(ConfigurationError, match="at most 3 messages at once"):
        shared.take_row()
    shared.give_row(rows[0])
    assert shared.take_row() == rows[0]


def test_rows_do_not_overlap_each_other_or_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 500)
    shared = SharedPage()
    shared.begin(LIFE, 12)
    for fence in range(1, module.ROWS + 1):
        shared.note_running(shared.take_row(), fence)
    assert shared.running_fences() == set(range(1, module.ROWS + 1))
    assert (shared.incarnation, shared.deadline_ns, shared.recalled_to) == (LIFE, 12, 0)


def test_a_line_that_finished_runs_nothing() -> None:
    shared = SharedPage()
    row = shared.take_row()
    shared.note_running(row, 5)
    assert shared.fence_in(row) == 5
    shared.note_running(row, 0)
    assert shared.fence_in(row) == 0
    assert shared.running_fences() == set()


def test_overdue_is_what_runs_past_the_deadline_or_under_an_older_life() -> None:
    shared = SharedPage()
    shared.begin(LIFE, soon())
    busy, idle = shared.take_row(), shared.take_row()
    shared.note_running(busy, 5)
    assert shared.overdue() == []
    shared.extend(now_ns() - 1)
    assert [row.fence for row in shared.overdue()] == [5]
    # A message of the old incarnation does not belong to the new one
    shared.begin(OTHER, soon())
    shared.note_running(idle, 6)
    assert [row.fence for row in shared.overdue()] == [5]


@pytest.mark.parametrize("asked", [False, True])
def test_the_next_process_learns_once_what_a_dead_process_had_begun(asked: bool) -> None:
    shared = SharedPage()
    shared.begin(LIFE, soon())

    def begin_and_die() -> bool:
        row = shared.take_row()
        shared.note_running(row, 7)
        if asked:
            shared.asked_to_end(row)
        os.kill(os.getpid(), signal.SIGKILL)
        return True

    pid = os.fork()
    if pid == 0:
        begin_and_die()
        os._exit(2)
    os.waitpid(pid, 0)

    # Not what this process runs itself, nor another message's
    def gets_its_message() -> bool:
        shared.note_running(shared.take_row(), 8)
        found = [shared.cut_off(*span) for span in ((8, 9), (1, 6), (5, 9), (5, 9))]
        return found == [(0, False), (0, False), (7, asked), (0, False)]

    assert in_a_child(gets_its_message)


def test_a_message_that_a_live_process_runs_was_not_cut_off() -> None:
    shared = SharedPage()
    shared.note_running(shared.take_row(), 7)
    assert in_a_child(lambda: shared.take_row() >= 0 and shared.cut_off(7, 7) == (0, False))


def test_every_process_knows_a_revoked_id_also_after_old_ones_were_overwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.worker.guard.shared_page.REVOKED_MAX", 8)
    shared = SharedPage()
    assert not shared.is_revoked("1-0")
    shared.revoke(["1-0", "2-0", "1-0"])

    def sees() -> bool:
        return shared.is_revoked("1-0") and shared.is_revoked("2-0") and not shared.is_revoked("3-0")

    assert sees()
    assert in_a_child(sees)
    shared.revoke(f"{n}-1" for n in range(40))
    newest = [f"{n}-1" for n in range(32, 40)]
    assert in_a_child(lambda: all(map(SharedPage.attach(shared.fd).is_revoked, newest)))
    assert not SharedPage.attach(shared.fd).is_revoked("1-0")


@pytest.mark.parametrize("odd", [None, 7, 1.5, b"1-0", (), "\ud800", "", "x" * 100_000], ids=lambda one: ascii(one)[:9])
def test_an_id_of_no_message_keeps_no_other_from_being_revoked(odd: object) -> None:
    shared = SharedPage()
    shared.revoke(["1-0", odd, "2-0"])
    assert (shared.is_revoked("1-0"), shared.is_revoked("2-0"), shared.is_revoked("3-0")) == (True, True, False)


def test_all_processes_see_the_servers_time() -> None:
    shared = SharedPage()
    # Not known yet: that of this machine
    assert abs(shared.server_ms - time.time() * 1000) < 60_000
    for ahead_ms in (3_600_000, -3_600_000):
        shared.learn_server_time(time.time() * 1000 + ahead_ms)
        assert in_a_child(lambda ahead=ahead_ms: abs(shared.server_ms - time.time() * 1000 - ahead) < 60_000)  # type: ignore[misc]
