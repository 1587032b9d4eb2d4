"""Columns that say when a message is due, as the entries of the stream have them. Without Spark and a server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from bridge.routing.errors import PayloadError
from bridge.spark.write.due import as_fields

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
    assert fields(hold=hold) == [{"hold": "1"}, {"hold": None}, {"hold": None}]


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("due", pa.array([1, -1])),
        ("due", pa.array(["1", "tomorrow"])),
        ("due", pa.array(["1", ""])),
        ("due", pa.array([1.0, 2.5])),
        ("due", pa.array([None, datetime(1960, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))),
        ("hold", pa.array(["1", "perhaps"])),
        ("hold", pa.array([1, 2])),
    ],
    ids=range(7),
)
def test_what_cannot_be_names_its_ticket(name: str, column: pa.Array) -> None:
    with pytest.raises(PayloadError, match=f"^{name} of ticket 'T1' is .*: it must be ") as raised:
        fields(**{name: column})
    assert "\n" not in str(raised.value)


def test_other_columns_and_no_rows_stay_as_they_are() -> None:
    assert fields(a=pa.array([1])) == [{"a": 1}]
    assert fields(due=pa.array([], pa.int64()), hold=pa.array([], pa.bool_())) == []
