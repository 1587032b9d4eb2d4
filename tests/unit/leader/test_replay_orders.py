"""Orders to replay dead letters: some that somebody wrote by hand, one that two orders name, and very many."""

from __future__ import annotations

import logging
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from bridge.protocol.outcome_entries import EntryKind, Notice
from bridge.protocol.outcomes import Kind
from bridge.routing import records
from bridge.routing.batch import Batch
from bridge.routing.ids import can_be_id
from tests.unit.leader.lane_world import ID_SUFFIX, LaneWorld
from tests.unit.leader.test_lane_parking import next_outcome

#: Id of the letter below.
LETTER = "7-0"


def with_letter(message_id: str, world: LaneWorld) -> None:
    """A letter that names the message. The server refuses an id that is none."""
    del world.operator_orders._subject, world.operator_orders._dead_message
    call = world.store.call

    def answered(*words: Any) -> Any:
        if words[0] == "XRANGE":
            if not can_be_id(words[2], whole=False):
                raise ResponseError("Invalid stream ID specified as stream command argument")
            if words[1] == world.settings.keys.dead:
                return [[words[2].encode(), [b"message_id", message_id.encode()]]] if words[2] == LETTER else []
            found = [id_ for id_ in world.store.entries if words[2] in (id_, f"0{id_}")]
            return [[id_.encode(), world.store.entries[id_]] for id_ in found]
        return call(*words)

    world.store.call = answered  # type: ignore[method-assign]


@given(st.from_regex(r"[0-9]{1,21}(-[0-9]{1,21})?", fullmatch=True) | st.text(st.characters(codec="utf-8"), max_size=9))
@example(f"{2**64}-0")
@example(f"0-{2**64}")
@example("٣-0")
def test_a_letter_may_name_anything(message_id: str) -> None:
    world = LaneWorld()
    with_letter(message_id, world)
    answer = world.order(do="replay", letters=[LETTER])
    assert answer["replayed"] == []
    assert [letter for letter, _ in answer["refused"]] == [LETTER]


def test_a_letter_that_has_the_id_in_another_form_is_about_the_same_message() -> None:
    world = LaneWorld()
    world.join("w1@h")
    [id_] = world.push("T")
    world.read()
    with_letter(f"0{id_}", world)
    assert world.running()
    answer = world.order(do="replay", letters=[LETTER])
    assert answer["refused"] == [(LETTER, "it is not dead: it waits or runs")]


@pytest.mark.parametrize("parked", [False, True])
def test_one_letter_is_replayed_once_however_many_orders_name_it(*, parked: bool) -> None:
    world = LaneWorld(on_dead="park" if parked else "skip")
    world.join("w1@h")
    [id_] = world.push("T")
    world.read()
    assert next_outcome(world, Kind.DEAD) == id_
    with_letter(id_, world)
    if parked:
        # `dead show` takes the id that the reason names.
        reason = records.parse(world.store.tickets["T"]).cause
        assert reason.startswith(f"message {id_}{ID_SUFFIX} is dead: ")
    batch = Batch()
    with world.patched():
        for order in ("first", "second"):
            text = orjson.dumps({"do": "replay", "letters": [LETTER, LETTER]})
            world.operator_orders._take(Notice("1-1", EntryKind.ORDER, order, text, ()), batch)
    answers = [answer["replayed"] for _, answer in world.operator_orders._answers]
    assert answers == [[LETTER], []]
    assert (batch.counts["replayed"], batch.replayed, batch.given_back) == (1, [LETTER], [id_])


def test_the_log_has_one_short_line_for_an_order_about_many(caplog: pytest.LogCaptureFixture) -> None:
    world = LaneWorld()
    letters = [f"{n}-0" for n in range(500)]
    with_letter("x", world)
    with caplog.at_level(logging.INFO, "bridge.leader.duties.operator_orders"):
        answer = world.order(do="replay", letters=letters)
    assert len(answer["refused"]) == 500
    [line] = [record.message for record in caplog.records if record.message.startswith("order ")]
    assert len(line) < 500
    assert line.endswith("{'ok': True, 'replayed': 0, 'refused': 500}")
