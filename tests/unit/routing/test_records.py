"""Ticket records are read as they were written, with the fence where a script finds it."""

from __future__ import annotations

import re
from contextlib import suppress

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.routing import records
from bridge.routing.ids import can_be_id
from tests.unreadable_values import JSON

IDS = st.lists(st.tuples(st.integers(0, 2**63), st.integers(0, 2**63)), min_size=1, max_size=5)
TEXT = st.text(max_size=20)


@given(fence=st.integers(0, 2**53), consumer=TEXT, incarnation=TEXT, attempt=st.integers(1, 10**6), ids=IDS, cause=TEXT)
def test_a_record_is_read_as_it_was_written(
    fence: int, consumer: str, incarnation: str, attempt: int, ids: list[tuple[int, int]], cause: str
) -> None:
    # Only one message awaits a retry
    names = [f"{ms}-{seq}" for ms, seq in ids][: None if fence else 1]
    text = records.record(fence, records.tail(consumer, incarnation, attempt, names, 1234, cause))
    read = records.parse(text)
    assert read == records.Record(fence, consumer, incarnation, attempt, tuple(names), 1234, cause)
    assert read.in_flight == (fence > 0)
    assert records.parse(text.encode()) == read


@given(fence=st.integers(0, 2**53), cause=TEXT, ids=IDS)
def test_fence_and_count_come_first_where_the_script_looks(fence: int, cause: str, ids: list[tuple[int, int]]) -> None:
    text = records.record(fence, records.tail("w", "i", 1, [f"{ms}-{seq}" for ms, seq in ids], 1, cause))
    found = re.match(r"^\[(\d+),(\d+),", text)
    assert found is not None
    assert (int(found[1]), int(found[2])) == (fence, len(ids))
    # It is one line of JSON, whatever names and errors hold
    assert len(orjson.loads(text)) == 8


def test_the_fence_of_a_message_that_awaits_a_retry_is_zero() -> None:
    text = records.record(0, records.tail("", "", 2, ["1-0"], 1, "ValueError"))
    assert not records.parse(text).in_flight
    assert text.startswith("[0,")


INVALID = [
    *("", "[]", "{}", "[1,2]", "null", "5", "x", "[1", '[1,2,"w","i",1,["1-0"],5,""]', '[0,0,"","",1,[],5,""]'),
    *('[0,2,"","",1,["1-0","2-0"],5,""]', '[-1,2,"","",1,["1-0","2-0"],5,""]', '[-2,1,"","",1,["1-0"],5,""]'),
    *('[1,1,"w","i",1,["x-y"],5,""]', '[1,1,"w","i",1,["1"],5,""]', '[1,1,"w","i",1,[1],5,""]'),
    *(
        '[1,0,"w","i",1,[],5,""]',
        '[1,3,"w","i",1,"1-0",5,""]',
        '[true,1,"w","i",1,["1-0"],5,""]',
        '[1,1,"w","i","1",["1-0"],5,""]',
    ),
    *('[1,1,"w","i","1",["1-0"],5,""]', '[1,1,null,"i",1,["1-0"],5,""]'),
    *('[1,1,"w","i",1,["1-0"],"5",""]', '[1,1,"w","i",1,["1-0"],5,null]'),
    *('[1,1,"w","i",1,["1-0"],5,"",null,null]', '[1,1,"w","i",1,["1-0"],5,"",1,5]', '[1,1,"w","i",1,["1-0"],5,"",1]'),
    *('[1,1,"w","i",1,["1-0"],5,"",1,[1,2,3,"c"]]', '[1,1,"w","i",1,["1-0"],5,"",1,["1",2,"w","c"]]'),
]


@pytest.mark.parametrize("text", INVALID)
def test_an_invalid_record_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        records.parse(text)


@given(st.data())
def test_what_is_no_record_is_a_value_error(data: st.DataObject) -> None:
    good = orjson.loads(records.record(7, records.tail("w1@h", "life", 2, ["1-0"], 5, "ValueError: no")))
    place = data.draw(st.integers(0, len(good) - 1))
    changed = [*good[:place], data.draw(JSON), *good[place + 1 :]]
    text = data.draw(st.binary(max_size=9) | JSON.map(orjson.dumps) | st.just(orjson.dumps(changed)))
    with suppress(ValueError):
        record = records.parse(text)
        # What is read can be shown, and compared
        assert {type(one) for one in (record.fence, record.attempt, record.at_ms, record.losses)} == {int}
        assert {type(one) for one in (record.consumer, record.cause, *record.ids)} == {str}
        assert all(map(can_be_id, record.ids))
        assert record.parked <= (len(record.ids) <= 1)
        assert record.in_flight <= (len(record.ids) >= 1)
        assert record.parked or record.in_flight or len(record.ids) == 1
