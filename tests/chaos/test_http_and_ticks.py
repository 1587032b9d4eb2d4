"""What HTTP consumers told and stored, and what the schedule pushed, is judged from forged evidence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.chaos.evidence import add_effect
from tests.chaos.facts import Effect
from tests.chaos.http_program import LIES, LOST, TOLD, read_told
from tests.chaos.ticks import TICKED, Ticks

FIRST = Effect("T", "1-0", 0, 100, 1, stored=True)


def test_a_lie_that_was_believed_is_found_and_one_at_the_end_of_a_lease_is_not_one(tmp_path: Path) -> None:
    rows = [
        ["wrong fence", 409, ""],
        ["wrong fence", 200, "believed"],
        ["late", 410, ""],
        ["twice", 503, ""],
        [LOST, 0, ""],
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / f"h2-1{TOLD}").write_text(text + '["foreign id", 2')
    told, wrong = read_told(tmp_path)
    assert told == {"wrong fence": 1, "late": 1, LOST: 1}
    assert wrong == [f"h2-1: wrong fence: 200 instead of {LIES['wrong fence']}: believed"]


@pytest.mark.parametrize(
    ("then", "left"),
    [
        pytest.param({"fence": 101}, 1, id="the next delivery of it takes its place"),
        pytest.param({"fence": 100}, 2, id="the same delivery does not"),
        pytest.param({"fence": 101, "message_id": "2-0"}, 2, id="another message does not"),
        pytest.param({"fence": 101, "ticket": "U"}, 2, id="another ticket does not"),
    ],
)
def test_what_was_stored_and_not_acknowledged_may_come_once_more(then: dict[str, Any], left: int) -> None:
    found: list[Effect] = []
    for effect in (FIRST, replace(FIRST, **then)):
        add_effect(found, effect)
    assert len(found) == left
    assert found[-1].fence == then["fence"]


@pytest.mark.parametrize(("between", "left"), [("v1:3-0", 2), ("v2:3-0", 3)])
def test_only_another_version_comes_between_a_message_and_its_repetition(between: str, left: int) -> None:
    found: list[Effect] = []
    for fence, id_ in ((100, "v2:2-0"), (101, between), (102, "v2:2-0")):
        add_effect(found, replace(FIRST, message_id=id_, fence=fence))
    assert len(found) == left


def test_what_the_bridge_applied_never_comes_again() -> None:
    found: list[Effect] = []
    for fence in (100, 101):
        add_effect(found, replace(FIRST, fence=fence, stored=False))
    assert len(found) == 2


@pytest.mark.parametrize(
    ("pushed", "wrong"),
    [
        pytest.param([("5000-0", 5000), ("6010-0", 6000), ("9000-0", 9000)], 0, id="each once"),
        pytest.param([("5000-0", 5000), ("5001-0", 5000)], 1, id="one twice"),
        pytest.param([("v1:5000-0", 5000), ("v2:5001-0", 5000)], 1, id="one in both versions"),
        pytest.param([("5000-0", 5000), ("5999-0", 6000)], 1, id="one too early"),
        pytest.param([("5000-0", 5000), ("5500-0", 5400)], 1, id="one between two ticks"),
    ],
)
def test_each_tick_is_there_once(pushed: list[tuple[str, int]], wrong: int) -> None:
    ticks = Ticks(cast("Any", None), list)
    ticks.learn(Effect("plain/tick-a", id_, at, 1, at) for id_, at in pushed)
    ticks.learn(Effect("failing/tick-a", id_, at, 2, at) for id_, at in pushed)
    # Another ticket may have the same ids: it may be in another partition.
    ticks.learn(Effect("tick-b", f"{pushed[0][0]}@p1", at, 1, at) for at in (pushed[0][1],))
    ticks.learn(Effect("tick-b", pushed[0][0], at, 1, at) for at in (pushed[0][1],))
    assert ticks.count == len(pushed) + 1
    assert [violation.invariant for violation in ticks.check()] == [TICKED] * wrong
