"""The audit of delayed messages: what may overtake them, and what may not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.audit.auditor import Auditor
from bridge.audit.checks import Check
from bridge.routing.history import Delivery, What

#: When the messages below were added, in ms.
BEGAN = 1_000_000


def row(id_: str, what: What, at_ms: int, *, due_ms: int = 0, fence_ms: int = 0) -> Delivery:
    """``fence_ms``: when the message was dispatched."""
    fence = fence_ms * 1000
    return Delivery(id_, "T", "t", "w@h" if fence else "", 1 if fence else 0, fence, due_ms, 0, 0.0, what, at_ms)


def audited(*rows: Delivery, entries: tuple[str, ...]) -> Auditor:
    auditor = Auditor()
    for id_ in entries:
        auditor.entry(id_, "T")
    for one in rows:
        auditor.step([one])
    return auditor


A, B, C = f"{BEGAN}-0", f"{BEGAN + 50}-0", f"{BEGAN + 300}-0"
DELAYED = row(A, What.DELAYED, BEGAN + 1, due_ms=BEGAN + 200)
DUE = row(A, What.DUE, BEGAN + 201, due_ms=BEGAN + 200)


def done(id_: str, at_ms: int, fence_ms: int) -> Delivery:
    return row(id_, What.DONE, at_ms, fence_ms=fence_ms)


def test_what_came_before_it_was_due_may_overtake_it() -> None:
    rows = (DELAYED, done(B, BEGAN + 60, BEGAN + 55), DUE, done(A, BEGAN + 400, BEGAN + 300))
    found = audited(*rows, done(C, BEGAN + 600, BEGAN + 500), entries=(A, B, C))
    assert found.clean, found.examples
    assert not found.undone


def test_what_was_added_after_it_was_due_must_not() -> None:
    rows = (DELAYED, done(B, BEGAN + 60, BEGAN + 55), DUE)
    found = audited(*rows, done(C, BEGAN + 600, BEGAN + 500), entries=(A, B, C))
    assert found.counts == {Check.REORDERED: 1}
    assert "after 1000000-0 was due" in found.examples[0].text


def test_it_must_not_go_before_what_was_added_until_it_was_due() -> None:
    found = audited(DELAYED, DUE, done(A, BEGAN + 400, BEGAN + 300), entries=(A, B))
    assert found.counts == {Check.REORDERED: 1}
    assert B in found.examples[0].text


def test_a_delayed_message_is_undone_and_not_lost() -> None:
    auditor = audited(DELAYED, entries=(A,))
    assert list(auditor.undone) == [A]
    auditor.at_rest([A])
    assert auditor.clean
    auditor.at_rest([])
    assert auditor.counts == {Check.LOST: 1}


def test_where_its_rows_may_be_missing_it_may_come_late() -> None:
    auditor = Auditor(clock_skew_ms=0)
    auditor.rows_missing(BEGAN + 350, replays_hidden=False)
    auditor.step([done(C, BEGAN + 400, BEGAN + 390)])
    auditor.step([done(A, BEGAN + 500, BEGAN + 490)])
    assert auditor.clean, auditor.examples


def test_where_its_rows_may_be_missing_nothing_overtakes_it_once_it_has_run() -> None:
    auditor = Auditor(clock_skew_ms=0)
    auditor.rows_missing(BEGAN + 350, replays_hidden=False)
    auditor.step([row(A, What.FAILED, BEGAN + 400, fence_ms=BEGAN + 390)])
    auditor.step([done(C, BEGAN + 500, BEGAN + 490)])
    assert auditor.counts == {Check.REORDERED: 1}


def test_a_cancelled_message_is_at_its_end() -> None:
    auditor = audited(DELAYED, row(A, What.CANCELLED, BEGAN + 9), done(C, BEGAN + 400, BEGAN + 350), entries=(A, C))
    auditor.at_rest([])
    assert auditor.clean


# -- early -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [What.DONE, What.FAILED, What.LOST, What.RETURNED, What.DEAD])
def test_a_delayed_message_must_not_go_out_before_its_row_says_that_it_is_due(what: What) -> None:
    found = audited(DELAYED, row(A, what, BEGAN + 60, fence_ms=BEGAN + 55), entries=(A,))
    assert found.counts == {Check.EARLY: 1}
    assert "delayed" in found.examples[0].text


def test_a_message_must_not_be_called_due_before_its_time() -> None:
    due = row(A, What.DUE, BEGAN + 1, due_ms=BEGAN + 3_600_000)
    found = audited(DELAYED, due, done(A, BEGAN + 60, BEGAN + 55), entries=(A,))
    assert found.counts == {Check.EARLY: 1}
    assert found.examples[0].text == "it took its place 1 h before it was due"


@given(st.integers(-200, 5000), st.integers(0, 400), st.booleans(), st.booleans())
def test_what_is_due_by_another_time_than_it_was_delayed_until_is_not_early(
    due_ms: int, later_ms: int, is_delayed: bool, entry_read: bool
) -> None:
    # An operator made it due at another time, which has no row; or it was due when it was read.
    due = row(A, What.DUE, BEGAN + due_ms + later_ms, due_ms=BEGAN + due_ms)
    rows = ([DELAYED] if is_delayed else []) + [due, done(A, BEGAN + 6000, BEGAN + 5900)]
    found = audited(*rows, entries=(A,) if entry_read else ())
    assert found.clean, found.examples


def test_where_rows_are_missing_since_the_delay_nothing_is_early() -> None:
    auditor = audited(DELAYED, entries=(A,))
    # The rows in between were removed before they were read.
    auditor.rows_missing(BEGAN + 350)
    auditor.step([done(A, BEGAN + 500, BEGAN + 490)])
    assert auditor.clean, auditor.examples


@pytest.mark.parametrize("what", [What.CANCELLED, What.REFUSED, What.LEFT_OUT, What.SKIPPED])
def test_what_ends_while_it_is_delayed_is_not_early(what: What) -> None:
    found = audited(DELAYED, row(A, what, BEGAN + 60), entries=(A,))
    assert found.clean, found.examples
    assert not found.undone


def test_a_replayed_message_is_not_delayed_any_more() -> None:
    rows = (DELAYED, row(A, What.REFUSED, BEGAN + 60), row(A, What.REPLAYED, BEGAN + 70))
    found = audited(*rows, done(A, BEGAN + 90, BEGAN + 80), entries=(A,))
    assert found.clean, found.examples
