"""The auditor finds nothing in any true history, wherever it begins, and every lie that matters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bridge.audit.audit import Auditor, Check
from bridge.audit.wanted import wants
from bridge.routing.filters import Filter
from bridge.routing.history import Delivery, What
from bridge.routing.ids import id_key
from bridge.settings.lane import LaneSettings
from tests.unit.audit.true_history import PROMPT, Happening, TrueLane, happenings

Steps = Sequence[Sequence[Delivery]]


def judged(
    lane: TrueLane,
    steps: Steps | None = None,
    *,
    cut_at: int = 0,
    page: int = 1,
    pending: Sequence[str] | None = None,
    entries: bool = True,
) -> Auditor:
    """The verdict on ``steps`` (default: the lane's), without the first ``cut_at``."""
    all_steps = lane.steps if steps is None else steps
    auditor = Auditor(clock_skew_ms=0)
    left = all_steps[cut_at:]
    if cut_at:
        dropped = [row for step in all_steps[:cut_at] for row in step]
        began_ms = left[0][0].written_ms if left else lane.now_us // 1000
        auditor.rows_missing(began_ms, replays_hidden=any(row.what is What.REPLAYED for row in dropped))
    given_to = 0
    for start in range(0, len(left), page):
        part = left[start : start + page]
        to = max((id_key(row.message_id) for step in part for row in step), default=(0, 0))
        while entries and given_to < len(lane.entries) and id_key(lane.entries[given_to][0]) <= to:
            auditor.entry(*lane.entries[given_to])
            given_to += 1
        for step in part:
            auditor.step(step)
    if entries:
        for entry in lane.entries[given_to:]:
            auditor.entry(*entry)
        auditor.at_rest(lane.pending if pending is None else pending)
    return auditor


def found(auditor: Auditor) -> set[Check]:
    return set(auditor.counts)


# -- no false alarms ---------------------------------------------------------------------------------------------------


of_true_histories = pytest.mark.parametrize(
    "examples", [60, pytest.param(600, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)


@of_true_histories
def test_a_true_history_has_no_violation(examples: int) -> None:
    @settings(max_examples=examples)
    @given(happenings(), st.sampled_from([1, 7, 1000]), st.booleans())
    def has_none(happened: list[Happening], page: int, entries: bool) -> None:
        lane = TrueLane().play(happened)
        assert judged(lane, page=page, entries=entries).examples == []
        lane.finish()
        assert judged(lane, page=page, entries=entries).examples == []

    has_none()


@of_true_histories
def test_a_true_history_that_is_cut_anywhere_has_no_violation(examples: int) -> None:
    @settings(max_examples=examples)
    @given(happenings(), st.data(), st.sampled_from([1, 7, 1000]))
    def has_none(happened: list[Happening], data: st.DataObject, page: int) -> None:
        lane = TrueLane().play(happened)
        assume(lane.steps)
        cut_at = data.draw(st.integers(1, len(lane.steps)))
        assert judged(lane, cut_at=cut_at, page=page).examples == []

    has_none()


@of_true_histories
def test_a_true_history_whose_middle_is_missing_has_no_violation(examples: int) -> None:
    @settings(max_examples=examples)
    @given(happenings(), st.data())
    def has_none(happened: list[Happening], data: st.DataObject) -> None:
        lane = TrueLane().play(happened).finish()
        assume(len(lane.steps) > 2)
        first = data.draw(st.integers(1, len(lane.steps) - 2))
        then = data.draw(st.integers(first + 1, len(lane.steps) - 1))
        assert judged_without(lane, first, then).examples == []

    has_none()


def judged_without(lane: TrueLane, first: int, then: int) -> Auditor:
    """Rows were removed faster than they were read. The reader reports that, and goes on behind the gap."""
    auditor = Auditor(clock_skew_ms=0)
    at = 0
    for i, step in enumerate(lane.steps):
        if first <= i < then:
            continue
        if i == then:
            auditor.rows_missing(step[0].written_ms)
            at = 0
        to = max(id_key(row.message_id) for row in step)
        while at < len(lane.entries) and id_key(lane.entries[at][0]) <= to:
            auditor.entry(*lane.entries[at])
            at += 1
        auditor.step(step)
    for entry in lane.entries[at:]:
        auditor.entry(*entry)
    auditor.at_rest(lane.pending)
    return auditor


# -- every lie is found ------------------------------------------------------------------------------------------------

#: A lie: changes the steps in place. Returns False if it finds nothing to change.
Lie = Callable[[TrueLane, list[list[Delivery]], st.DataObject], bool]


def _pick(
    steps: list[list[Delivery]], data: st.DataObject, wanted: Callable[[Delivery], bool]
) -> tuple[int, int] | None:
    places = [(i, j) for i, step in enumerate(steps) for j, row in enumerate(step) if wanted(row)]
    return data.draw(st.sampled_from(places)) if places else None


def _last(row: Delivery) -> bool:
    return row.what in (What.DONE, What.DEAD)


def _ran(row: Delivery) -> bool:
    return row.started_us > 0 and row.what is not What.STALE


def a_last_row_vanishes(lane: TrueLane, steps: list[list[Delivery]], data: st.DataObject) -> bool:
    """The message was acknowledged without a recorded outcome."""
    replayed = {row.message_id for step in steps for row in step if row.what is What.REPLAYED}
    place = _pick(steps, data, lambda row: _last(row) and row.message_id not in replayed)
    if place is not None:
        del steps[place[0]][place[1]]
    return place is not None


def a_last_row_is_written_twice(lane: TrueLane, steps: list[list[Delivery]], data: st.DataObject) -> bool:
    place = _pick(steps, data, _last)
    if place is None:
        return False
    row = steps[place[0]][place[1]]
    steps.insert(data.draw(st.integers(place[0] + 1, len(steps))), [row])
    return True


def a_done_message_runs_again(lane: TrueLane, steps: list[list[Delivery]], data: st.DataObject) -> bool:
    """A second execution with a new fence, some time after the first, without a cause."""
    place = _pick(steps, data, lambda row: row.what is What.DONE)
    if place is None:
        return False
    row = steps[place[0]][place[1]]
    fence = lane.now_us + 10
    steps.append([replace(row, fence=fence, started_us=fence + 10, written_ms=fence // 1000 + 10)])
    return True


def two_messages_change_places(lane: TrueLane, steps: list[list[Delivery]], data: st.DataObject) -> bool:
    """The younger message is done first, each with the fence and the times of its turn."""
    replayed = {row.message_id for step in steps for row in step if row.what is What.REPLAYED}
    done = [
        (i, j)
        for i, step in enumerate(steps)
        for j, row in enumerate(step)
        if row.what is What.DONE and row.message_id not in replayed
    ]
    pairs = [
        (one, other)
        for n, one in enumerate(done)
        for other in done[n + 1 :]
        if steps[one[0]][one[1]].ticket == steps[other[0]][other[1]].ticket
    ]
    if not pairs:
        return False
    (i, j), (k, m) = data.draw(st.sampled_from(pairs))
    one, other = steps[i][j], steps[k][m]
    steps[i][j] = replace(one, message_id=other.message_id)
    steps[k][m] = replace(other, message_id=one.message_id)
    return True


def an_execution_begins_too_early(lane: TrueLane, steps: list[list[Delivery]], data: st.DataObject) -> bool:
    """It begins before the execution before it had ended, on the same host."""
    by_ticket: dict[str, list[tuple[int, int]]] = {}
    for i, step in enumerate(steps):
        for j, row in enumerate(step):
            if _ran(row):
                by_ticket.setdefault(row.ticket, []).append((i, j))
    places = [(one, other) for ran in by_ticket.values() for one, other in pairwise(ran)]
    if not places:
        return False
    (i, j), (k, m) = data.draw(st.sampled_from(places))
    early = data.draw(st.integers(3, 1499))
    before = steps[i][j]
    steps[k][m] = replace(steps[k][m], started_us=before.finished_us - early, consumer=before.consumer)
    return True


def a_fence_does_not_grow(lane: TrueLane, steps: list[list[Delivery]], data: st.DataObject) -> bool:
    seen: set[str] = set()
    places = []
    for i, step in enumerate(steps):
        for j, row in enumerate(step):
            if row.fence and row.what not in (What.STALE, What.RETURNED):
                if row.ticket in seen:
                    places.append((i, j))
                seen.add(row.ticket)
    if not places:
        return False
    i, j = data.draw(st.sampled_from(places))
    steps[i][j] = replace(steps[i][j], fence=1)
    return True


def an_attempt_is_miscounted(lane: TrueLane, steps: list[list[Delivery]], data: st.DataObject) -> bool:
    place = _pick(steps, data, lambda row: row.fence > 0 and row.what is not What.STALE)
    if place is None:
        return False
    i, j = place
    steps[i][j] = replace(steps[i][j], attempt=steps[i][j].attempt + 2)
    return True


def a_failure_vanishes(lane: TrueLane, steps: list[list[Delivery]], data: st.DataObject) -> bool:
    """A message has a later attempt without a row that explains it."""
    rows: dict[str, list[tuple[int, int]]] = {}
    for i, step in enumerate(steps):
        for j, row in enumerate(step):
            if row.what is not What.STALE:
                rows.setdefault(row.message_id, []).append((i, j))
    places = []
    for of_message in rows.values():
        for n, (i, j) in enumerate(of_message[:-1]):
            before = steps[of_message[n - 1][0]][of_message[n - 1][1]].what if n else None
            # An attempt after a lost one may have been charged or not.
            if steps[i][j].what is What.FAILED and before is not What.LOST:
                places.append((i, j))
    if not places:
        return False
    i, j = data.draw(st.sampled_from(places))
    del steps[i][j]
    return True


def a_row_names_another_ticket(lane: TrueLane, steps: list[list[Delivery]], data: st.DataObject) -> bool:
    place = _pick(steps, data, lambda row: row.fence > 0 and row.what is not What.STALE)
    if place is None:
        return False
    i, j = place
    steps[i][j] = replace(steps[i][j], ticket="another")
    return True


def a_replayed_message_is_passed(lane: TrueLane, steps: list[list[Delivery]], data: st.DataObject) -> bool:
    """A message of its ticket that was dispatched long after the replay runs before it."""
    place = _pick(steps, data, lambda row: row.what is What.REPLAYED)
    if place is None:
        return False
    i, row = place[0], steps[place[0]][place[1]]
    at_us = steps[-1][-1].written_ms * 1000 + 1_000_000
    id_ = f"{at_us // 1000}-1"
    lane.entries.append((id_, row.ticket))
    times = (at_us // 1000, at_us, 1.0)
    late = Delivery(id_, row.ticket, "t", "w1@a", 1, at_us, *times, What.DONE, at_us // 1000 + 1)
    # The replayed message still waits when the later one is done.
    steps[i + 1 :] = [
        kept for step in steps[i + 1 :] if (kept := [other for other in step if other.message_id != row.message_id])
    ]
    steps.append([late])
    return True


def a_dead_message_runs_again(lane: TrueLane, steps: list[list[Delivery]], data: st.DataObject) -> bool:
    """Its replay is not in the history."""
    place = _pick(steps, data, lambda row: row.what is What.REPLAYED)
    if place is None:
        return False
    id_ = steps[place[0]][place[1]].message_id
    del steps[place[0]][place[1]]
    return any(row.message_id == id_ and row.what is not What.STALE for step in steps[place[0] :] for row in step)


def a_refusal_is_written_twice(lane: TrueLane, steps: list[list[Delivery]], data: st.DataObject) -> bool:
    place = _pick(steps, data, lambda row: row.what is What.REFUSED)
    if place is not None:
        steps.insert(data.draw(st.integers(place[0] + 1, len(steps))), [steps[place[0]][place[1]]])
    return place is not None


def a_replay_is_written_twice(lane: TrueLane, steps: list[list[Delivery]], data: st.DataObject) -> bool:
    """The message is not dead at the second replay."""
    place = _pick(steps, data, lambda row: row.what is What.REPLAYED)
    if place is not None:
        steps.insert(place[0] + 1, [steps[place[0]][place[1]]])
    return place is not None


def a_message_that_was_given_back_runs_all_the_same(
    lane: TrueLane, steps: list[list[Delivery]], data: st.DataObject
) -> bool:
    """Its outcome has an old fence. Its effects may have been applied by then."""
    places = [
        (i, row)
        for i, step in enumerate(steps)
        for row in step
        if row.what is What.RETURNED and all(other.what is not What.LOST for other in step)
    ]
    if not places:
        return False
    i, row = data.draw(st.sampled_from(places))
    ran = replace(row, ticket="", consumer="", attempt=0, started_us=row.written_ms * 1000, what=What.STALE)
    if data.draw(st.booleans()):
        # The leader read both at once.
        steps[i].insert(data.draw(st.integers(0, len(steps[i]))), ran)
    else:
        steps.insert(data.draw(st.integers(i + 1, len(steps))), [ran])
    return True


LIES: list[tuple[Lie, set[Check]]] = [
    (a_last_row_vanishes, {Check.LOST, Check.REORDERED}),
    (a_last_row_is_written_twice, {Check.REPEATED}),
    (a_done_message_runs_again, {Check.REPEATED}),
    (two_messages_change_places, {Check.REORDERED}),
    (an_execution_begins_too_early, {Check.OVERLAPPED}),
    (a_fence_does_not_grow, {Check.FENCES}),
    (an_attempt_is_miscounted, {Check.ATTEMPTS}),
    (a_failure_vanishes, {Check.ATTEMPTS}),
    (a_row_names_another_ticket, {Check.DISAGREEING}),
    (a_message_that_was_given_back_runs_all_the_same, {Check.REPEATED}),
    (a_replayed_message_is_passed, {Check.REORDERED}),
    (a_dead_message_runs_again, {Check.REPEATED}),
    (a_refusal_is_written_twice, {Check.REPEATED}),
    (a_replay_is_written_twice, {Check.REPEATED}),
]


@settings(max_examples=20, suppress_health_check=[HealthCheck.filter_too_much])
@given(happened=happenings(), data=st.data(), page=st.sampled_from([1, 7, 1000]), vanishes=st.booleans())
def test_a_delayed_message_that_goes_out_early_is_found(
    happened: list[Happening], data: st.DataObject, page: int, vanishes: bool
) -> None:
    lane = TrueLane().play(happened).finish()
    steps = [list(step) for step in lane.steps]
    place = _pick(steps, data, lambda row: row.what is What.DUE)
    assume(place is not None)
    assert place is not None
    i, j = place
    row = steps[i][j]
    if vanishes:
        del steps[i][j]
    else:
        steps[i][j] = replace(row, dispatched_ms=row.written_ms + 1001 + data.draw(st.integers(0, 10**7)))
    assert Check.EARLY in found(judged(lane, steps, page=page))


@pytest.mark.parametrize("examples", [8, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
@pytest.mark.parametrize(("lie", "checks"), LIES, ids=[lie.__name__ for lie, _ in LIES])
def test_a_lie_in_a_complete_history_is_found(lie: Lie, checks: set[Check], examples: int) -> None:
    @settings(max_examples=examples, suppress_health_check=[HealthCheck.filter_too_much])
    @given(happened=happenings(kinds=PROMPT), data=st.data(), page=st.sampled_from([1, 7, 1000]))
    def is_found(happened: list[Happening], data: st.DataObject, page: int) -> None:
        lane = TrueLane().play(happened).finish()
        steps = [list(step) for step in lane.steps]
        assume(lie(lane, steps, data))
        assert found(judged(lane, steps, page=page)) & checks

    is_found()


# -- what a lane wants -------------------------------------------------------------------------------------------------


def left_out(id_: str) -> Delivery:
    return Delivery(id_, "", "", "", 0, 0, 0, 0, 0.0, What.LEFT_OUT, 1000)


def test_a_message_that_the_lane_wants_must_not_be_left_out() -> None:
    auditor = Auditor()
    auditor.entry("1-0", "T", wanted=True)
    auditor.entry("2-0", "T", wanted=False)
    auditor.step([left_out("1-0"), left_out("2-0")])
    assert found(auditor) == {Check.WITHHELD}
    assert [(one.ticket, one.message_id) for one in auditor.examples] == [("T", "1-0")]
    auditor.at_rest([])
    assert found(auditor) == {Check.WITHHELD}


def test_a_lane_wants_what_passes_its_filter_and_has_a_task_there() -> None:
    lane = LaneSettings(default_task="x", filter=Filter.read({"kind": ["a"]}))
    kind_a, kind_b = [b"payload", b'{"kind": "a"}'], [b"payload", b'{"kind": "b"}']
    assert wants(lane, ())(kind_a)
    assert not wants(lane, ())(kind_b)
    assert not wants(lane, ())([b"payload", b"{"])
    assert wants(lane, ())([b"kind", b"a"])
    without_default = LaneSettings(filter=Filter.read({"kind": ["a"]}))
    assert not wants(without_default, {"own"})(kind_a)
    assert not wants(without_default, {"own"})([b"task", b"other", *kind_a])
    assert wants(without_default, {"own"})([b"task", b"own", *kind_a])
    assert wants(LaneSettings(default_task="x"), ())(kind_b)
