"""The fold of `tasks.incidents`: the state of an incident after each event, computed by hand."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest

from tasks.incidents import State, fold


def event(seq: int, activity: str = "Active", at: str = "2024-03-04T08:00:00", **more: Any) -> dict[str, Any]:
    return {
        "seq": str(seq),
        "activity": activity,
        "timestamp": at,
        "assignment_group": "Group 1",
        "opened_at": "2024-03-04T07:59:00",
        "priority": "3 - Moderate",
        "made_sla": "true",
        "category": "Category 9",
        **more,
    }


def after(*events: dict[str, Any]) -> State:
    state: State = {}
    for one in events:
        state = fold(state, one)
    return state


def test_the_first_event_is_the_whole_state() -> None:
    assert after(event(1, "New")) == {
        "seq": "1",
        "events": "1",
        "status": "New",
        "assignment_group": "Group 1",
        "updated_at": "2024-03-04T08:00:00",
        "opened_at": "2024-03-04T07:59:00",
        "priority": "3 - Moderate",
        "made_sla": "true",
        "reassignments": "0",
        "reopenings": "0",
        "sla_seconds": "0",
        "digest": str(crc32(b"1|New|Group 1|2024-03-04T08:00:00")),
    }


def test_the_last_event_decides_what_is_copied() -> None:
    state = after(
        event(1, "New"),
        event(
            2,
            "Resolved",
            "2024-03-04T09:00:00",
            assignment_group="Group 2",
            opened_at="2024-03-01T00:00:00",
            priority="1 - Critical",
            made_sla="false",
        ),
    )
    assert state["seq"] == "2"
    assert state["events"] == "2"
    assert state["status"] == "Resolved"
    assert state["assignment_group"] == "Group 2"
    assert state["updated_at"] == "2024-03-04T09:00:00"
    assert state["opened_at"] == "2024-03-01T00:00:00"
    assert state["priority"] == "1 - Critical"
    assert state["made_sla"] == "false"


def test_the_fold_leaves_the_state_before_as_it_was() -> None:
    before = after(event(1))
    copy = dict(before)
    fold(before, event(2, "Closed", assignment_group="Group 7"))
    assert before == copy


def test_every_change_of_group_is_a_reassignment_and_the_first_group_is_none() -> None:
    groups = ["A", "A", "B", "A", "A"]
    assert after(*(event(n, assignment_group=g) for n, g in enumerate(groups, 1)))["reassignments"] == "2"


@pytest.mark.parametrize(
    ("activities", "expected"),
    [
        (["New", "Resolved", "Closed"], "0"),
        (["New", "Resolved", "Active"], "1"),
        (["New", "Closed", "Awaiting User Info"], "1"),
        (["Resolved", "Active", "Resolved", "Resolved", "New"], "2"),
    ],
)
def test_leaving_what_is_done_is_a_reopening(activities: list[str], expected: str) -> None:
    assert after(*(event(n, a) for n, a in enumerate(activities, 1)))["reopenings"] == expected


@pytest.mark.parametrize(
    ("before", "seconds"),
    [("New", "90"), ("Active", "90"), ("Awaiting Vendor", "0"), ("Resolved", "0"), ("Closed", "0")],
)
def test_the_clock_runs_by_the_state_before_the_event(before: str, seconds: str) -> None:
    state = after(event(1, before, "2024-03-04T08:00:00"), event(2, "Active", "2024-03-04T08:01:30"))
    assert state["sla_seconds"] == seconds


def test_the_clock_adds_up() -> None:
    times = ["08:00:00", "08:00:10", "08:00:30"]
    assert after(*(event(n, at=f"2024-03-04T{t}") for n, t in enumerate(times, 1)))["sla_seconds"] == "30"


def test_time_that_runs_backwards_does_not_count() -> None:
    times = ["08:00:00", "07:00:00", "07:00:05"]
    assert after(*(event(n, at=f"2024-03-04T{t}") for n, t in enumerate(times, 1)))["sla_seconds"] == "5"


def test_times_with_and_without_a_zone_can_follow_each_other() -> None:
    state = after(event(1, at="2024-03-04T08:00:00"), event(2, at="2024-03-04T09:00:20+01:00"))
    assert state["sla_seconds"] == "20"


def test_the_digest_is_a_chain_over_all_events() -> None:
    expected = 0
    for n, activity in enumerate(["New", "Active", "Größe"], 1):
        text = f"{n}|{activity}|Group 1|2024-03-04T08:00:00"
        expected = (31 * expected + crc32(text.encode())) % 2**32
    assert after(event(1, "New"), event(2, "Active"), event(3, "Größe"))["digest"] == str(expected)


def test_the_digest_shows_two_events_that_changed_places() -> None:
    one, two = event(1, "Active"), event(2, "Awaiting User Info")
    assert after(one, two)["digest"] != after(two, one)["digest"]


def test_numbers_booleans_and_nulls_of_a_typed_log_are_text() -> None:
    state = after(event(1) | {"seq": 1, "made_sla": True, "priority": 3, "assignment_group": None})
    assert (state["seq"], state["made_sla"], state["priority"]) == ("1", "true", "3")
    assert state["assignment_group"] == ""


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="yesterday"):
        after(event(1), event(2, at="yesterday"))
