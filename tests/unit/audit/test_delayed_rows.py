"""The audit of delayed messages: what may overtake them, and what may not."""

from __future__ import annotations

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
