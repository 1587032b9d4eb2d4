"""Columns that are options of a message, as the entries of the stream have them. Without Spark and a server."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.routing.errors import PayloadError
from bridge.routing.message_options import read_options
from bridge.spark.write.message_options import as_fields

AT = datetime(2030, 3, 17, 17, 46, 40, 123_456, UTC)


def fields(**columns: pa.Array) -> list[dict[str, Any]]:
    length = len(next(iter(columns.values())))
    batch = pa.RecordBatch.from_pydict({"ticket_id": pa.array([f"T{n}" for n in range(length)]), **columns})
    found: list[dict[str, Any]] = as_fields(batch, "ticket_id", tuple(columns)).select(list(columns)).to_pylist()
    return found


@pytest.mark.parametrize(
    "due",
    [
        pa.array([AT, None], pa.timestamp("us", "UTC")),
        pa.array([1_900_000_000_123, None], pa.int64()),
        pa.array(["1900000000123", None]),
        pa.array([b"1900000000123", None]),
    ],
    ids=["time", "number", "text", "bytes"],
)
def test_a_time_becomes_milliseconds(due: pa.Array) -> None:
    assert fields(due=due) == [{"due": "1900000000123"}, {"due": None}]


@pytest.mark.parametrize(
    "hold",
    [pa.array([True, False, None]), pa.array([1, 0, None]), pa.array(["True", "", None]), pa.array(["1", "0", None])],
    ids=["truth", "number", "text", "digit"],
)
def test_a_truth_value_becomes_1_or_nothing(hold: pa.Array) -> None:
    due = pa.array([1, 1, 1])
    assert [row["hold"] for row in fields(due=due, hold=hold)] == ["1", None, None]
    # Without a time nothing is delayed, and masters refuse a hold by itself.
    nothing: list[dict[str, Any]] = [{"hold": None}] * 3
    assert fields(hold=hold) == nothing
    assert [{"hold": row["hold"]} for row in fields(due=pa.nulls(3, pa.int64()), hold=hold)] == nothing


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("due", pa.array([1, -1])),
        ("due", pa.array(["1", "tomorrow"])),
        ("due", pa.array(["1", ""])),
        ("due", pa.array([1.0, 2.5])),
        ("due", pa.array([1, 10**13])),
        ("due", pa.array([1, 10**18])),
        ("due", pa.array([b"1", b"\xff"]).view(pa.string())),
        ("due", pa.array([None, datetime(1960, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))),
        ("hold", pa.array(["1", "perhaps"])),
        ("hold", pa.array([1, 2])),
        ("hold", pa.array([b"1", b"\xff"])),
        ("hold", pa.array([b"1", b"\xff"]).view(pa.string())),
    ],
    ids=range(12),
)
def test_what_cannot_be_names_its_ticket(name: str, column: pa.Array) -> None:
    with pytest.raises(PayloadError, match=f"^{name} of ticket 'T1' is .*: it must be ") as raised:
        fields(**{name: column})
    assert "\n" not in str(raised.value)


LATER = datetime(2031, 1, 1, tzinfo=UTC)


def test_options_beside_a_payload_are_sent_as_they_are_and_times_as_milliseconds() -> None:
    payload = pa.array(["1", None])
    assert fields(
        max_attempts=pa.array([1, None]),
        timeout=pa.array(["500", None]),
        expires=pa.array([AT, None], pa.timestamp("us", "UTC")),
        priority=pa.array([9, None], pa.int8()),
        payload=payload,
    ) == [
        {"max_attempts": 1, "timeout": "500", "expires": "1900000000123", "priority": 9, "payload": "1"},
        dict.fromkeys(("max_attempts", "timeout", "expires", "priority", "payload")),
    ]


@pytest.mark.parametrize(
    ("name", "column", "must_be"),
    [
        ("max_attempts", pa.array([5, 0]), "a whole number from 1 to 1000"),
        ("max_attempts", pa.array([5, 1001]), "a whole number from 1 to 1000"),
        ("max_attempts", pa.array(["5", "many"]), "a whole number from 1 to 1000"),
        ("timeout", pa.array([1, 0]), "a whole number of milliseconds from 1 to 31622400000"),
        ("timeout", pa.array([1.0, 1.5]), "a whole number of milliseconds from 1 to 31622400000"),
        ("timeout", pa.array([1, 31_622_400_001]), "a whole number of milliseconds from 1 to 31622400000"),
        ("expires", pa.array([1, -1]), "a time, or milliseconds since 1970, at most 100 years ahead"),
        ("expires", pa.array(["1", "9" * 30]), "a time, or milliseconds since 1970, at most 100 years ahead"),
        ("expires", pa.array([1, 10**14]), "a time, or milliseconds since 1970, at most 100 years ahead"),
        ("priority", pa.array([9, 10]), "a whole number from 0 to 9"),
        ("priority", pa.array(["0", ""]), "a whole number from 0 to 9"),
        ("priority", pa.array([b"0", b"\xff"]), "a whole number from 0 to 9"),
        ("priority", pa.array([None, True]), "a whole number from 0 to 9"),
    ],
    ids=range(13),
)
def test_an_option_that_cannot_be_names_its_ticket_and_its_bounds(name: str, column: pa.Array, must_be: str) -> None:
    with pytest.raises(PayloadError) as raised:
        fields(**{name: column, "payload": pa.array(["1", "2"])})
    assert str(raised.value).startswith(f"{name} of ticket 'T1' is ")
    assert str(raised.value).endswith(f": it must be {must_be}")
    # In an entry without a payload it is a part of the payload, as a master reads it.
    assert fields(**{name: column}) == [{name: value} for value in column.to_pylist()]
    fields(**{name: column, "payload": pa.array(["1", None])})


def test_what_expires_before_it_is_due_is_refused() -> None:
    due = pa.array([AT, AT, None], pa.timestamp("us", "UTC"))
    payload = pa.array(["1", "2", "3"])
    fields(due=due, expires=pa.array([LATER, None, AT], pa.timestamp("us", "UTC")), payload=payload)
    with pytest.raises(PayloadError, match=r"^expires of ticket 'T1' is not after the time when the message is due"):
        fields(due=due, expires=pa.array([LATER, AT, AT], pa.timestamp("us", "UTC")), payload=payload)


_TEXTS = st.sampled_from(["", "1", "0", "true", "FALSE", "yes", "1\n", "-1", "99999999999999", "1900000000123"])
_NUMBERS = st.sampled_from([0, 1, 2, -1, 1_900_000_000_123, 10**13, 2**53, 2**63 - 1])
_TIMES = st.datetimes(timezones=st.just(UTC))


@given(data=st.data())
def test_what_is_written_no_master_refuses(data: st.DataObject) -> None:
    due = data.draw(st.none() | _TEXTS | _TEXTS.map(str.encode) | st.just(b"\xff") | _NUMBERS | _TIMES, label="due")
    hold = data.draw(st.none() | _TEXTS | _TEXTS.map(str.encode) | st.just(b"\xff") | _NUMBERS | st.booleans())
    kind = pa.timestamp("us", "UTC") if isinstance(due, datetime) else None
    now_ms = time.time_ns() // 1_000_000
    try:
        [row] = fields(due=pa.array([due], kind), hold=pa.array([hold]))
    except PayloadError:
        return
    sent = [part for name, value in row.items() if value is not None for part in (name.encode(), value.encode())]
    read_options(now_ms, sent, has_payload=True)


def test_other_columns_and_no_rows_stay_as_they_are() -> None:
    assert fields(a=pa.array([1])) == [{"a": 1}]
    assert fields(due=pa.array([], pa.int64()), hold=pa.array([], pa.bool_())) == []
