"""Rows of the history: as they are written, and as they are read."""

from __future__ import annotations

import orjson
import pytest

from bridge.routing.history import Delivery, What, read_entry, row, rows_in

WHOLE = row(
    "1700-3",
    What.FAILED,
    ticket="T42",
    task="shop.pay",
    consumer="w1@a",
    attempt=2,
    fence=2**53 + 1,
    dispatched_ms=1800,
    started_us=1_900_000,
    service_ms=0.25,
)


def test_a_row_has_the_order_that_other_versions_read() -> None:
    assert orjson.dumps([WHOLE, row("5-0", What.REFUSED)]) == (
        b'[["1700-3","T42","shop.pay","w1@a",2,9007199254740993,1800,1900000,0.25,"failed"],'
        b'["5-0","","","",0,0,0,0,0,"refused"]]'
    )


def test_the_rows_of_an_entry_are_in_one_field() -> None:
    assert rows_in([b"d", b"[]"]) == b"[]"
    assert rows_in([b"other", b"[]"]) == b""


def test_a_row_is_read_as_it_was_written() -> None:
    [found] = read_entry(b"2000-1", orjson.dumps([WHOLE]))
    assert found == Delivery(
        message_id="1700-3",
        ticket="T42",
        task="shop.pay",
        consumer="w1@a",
        attempt=2,
        fence=2**53 + 1,
        dispatched_ms=1800,
        started_us=1_900_000,
        service_ms=0.25,
        what=What.FAILED,
        written_ms=2000,
    )


@pytest.mark.parametrize("at", range(len(WHOLE)))
def test_a_row_with_a_part_of_the_wrong_kind_is_refused(at: int) -> None:
    with pytest.raises((ValueError, TypeError)):
        read_entry(b"2000-1", orjson.dumps([[*WHOLE[:at], None, *WHOLE[at + 1 :]]]))
