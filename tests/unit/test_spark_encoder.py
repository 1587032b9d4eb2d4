"""The bytes that go over the wire, against redis-py's own packer."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.connection import Connection

from spark.encoder import EntryEncoder, chunks, parts

NASTY = ["plain", "", "ü", "日本語", "\0", "a\0b", "\r\n", "*3\r\n$4\r\n", "$-1\r\n", "🎫" * 100]


def packed(*words: str | bytes) -> bytes:
    """One command as redis-py packs it."""
    return b"".join(bytes(piece) for piece in Connection().pack_command(*words))


def entry(ticket: str, *pairs: str | bytes) -> bytes:
    return packed("XADD", "a stream", "*", "ticket_id", ticket, *pairs)


def encoded(batch: pa.RecordBatch, fields: Sequence[str], rows_per_chunk: int = 1000) -> bytes:
    commands = EntryEncoder("a stream", "ticket_id", fields).encode(batch)
    return b"".join(bytes(wire) for wire, _ in chunks(commands, rows_per_chunk))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
def test_every_text_is_encoded_as_redis_py_packs_it(kind: pa.DataType) -> None:
    # Given texts that look like the protocol, are empty, have NUL bytes and many bytes per character
    values = [text.encode() for text in NASTY] if "binary" in str(kind) else NASTY
    batch = pa.record_batch({"ticket_id": pa.array(NASTY), "payload": pa.array(values, kind)})
    # When they are encoded
    wire = encoded(batch, ["payload"])
    # Then the bytes are those of redis-py
    assert wire == b"".join(entry(text, "payload", text) for text in NASTY)


def test_numbers_and_truth_values_are_encoded_as_their_usual_text() -> None:
    batch = pa.record_batch({"ticket_id": ["T"], "whole": pa.array([-7], pa.int64()), "yes": [True], "half": [0.5]})
    assert encoded(batch, ["whole", "yes", "half"]) == entry("T", "whole", "-7", "yes", "true", "half", "0.5")


def test_a_null_leaves_its_field_out_of_its_own_row_only() -> None:
    batch = pa.record_batch(
        {"ticket_id": ["A", "B", "C", "D"], "x": [None, "1", None, "2"], "y": ["3", None, None, "4"]}
    )
    wire = encoded(batch, ["x", "y"])
    assert wire == entry("A", "y", "3") + entry("B", "x", "1") + entry("C") + entry("D", "x", "2", "y", "4")


def test_a_null_between_fields_that_are_never_null_keeps_the_order_of_fields() -> None:
    batch = pa.record_batch({"ticket_id": ["A", "B"], "x": ["1", "2"], "y": [None, "3"], "z": ["4", "5"]})
    wire = encoded(batch, ["x", "y", "z"])
    assert wire == entry("A", "x", "1", "z", "4") + entry("B", "x", "2", "y", "3", "z", "5")


def test_a_column_of_nulls_is_left_out_of_every_row() -> None:
    batch = pa.record_batch({"ticket_id": ["A", "B"], "x": pa.array([None, None], pa.string())})
    assert encoded(batch, ["x"]) == entry("A") + entry("B")


def test_an_empty_text_is_sent_and_is_no_null() -> None:
    assert encoded(pa.record_batch({"ticket_id": ["A"], "x": [""]}), ["x"]) == entry("A", "x", "")


@pytest.mark.parametrize("with_null", [False, True])
def test_a_slice_encodes_its_own_rows_and_no_others(with_null: bool) -> None:
    # Given arrays that start in the middle of their buffers
    values = [None if with_null and row % 3 == 0 else f"value {row}" for row in range(10)]
    batch = pa.record_batch({"ticket_id": [f"T{row}" for row in range(10)], "x": values}).slice(4, 3)
    # When the slice is encoded
    wire = encoded(batch, ["x"])
    # Then it is exactly rows 4 to 6
    rows = [(f"T{row}", values[row]) for row in (4, 5, 6)]
    assert wire == b"".join(entry(ticket, *(("x", value) if value is not None else ())) for ticket, value in rows)


def test_the_stream_and_the_field_names_may_hold_any_text() -> None:
    batch = pa.record_batch({"key": ["T"], "fü\r\n": ["v"]})
    commands = EntryEncoder("{strüam}:\0", "key", ["fü\r\n"]).encode(batch)
    assert commands[0].as_py() == packed("XADD", "{strüam}:\0", "*", "ticket_id", "T", "fü\r\n", "v")


@given(st.lists(st.tuples(st.text(), st.none() | st.text(), st.none() | st.binary()), max_size=20), st.integers(1, 7))
def test_any_rows_are_encoded_as_redis_py_packs_them_however_they_are_chunked(
    rows: list[tuple[str, str | None, bytes | None]], per_chunk: int
) -> None:
    batch = pa.record_batch(
        {
            "ticket_id": pa.array([row[0] for row in rows], pa.string()),
            "x": pa.array([row[1] for row in rows], pa.string()),
            "y": pa.array([row[2] for row in rows], pa.binary()),
        }
    )
    expected = b""
    for ticket, x, y in rows:
        pairs: list[str | bytes] = [*(("x", x) if x is not None else ()), *(("y", y) if y is not None else ())]
        expected += entry(ticket, *pairs)
    assert encoded(batch, ["x", "y"], per_chunk) == expected


def test_chunks_hold_whole_commands_and_say_how_many() -> None:
    batch = pa.record_batch({"ticket_id": [f"T{row}" for row in range(7)]})
    commands = EntryEncoder("s", "ticket_id", []).encode(batch)
    cut = list(chunks(commands, 3))
    assert [rows for _, rows in cut] == [3, 3, 1]
    assert bytes(cut[1][0]) == b"".join(packed("XADD", "s", "*", "ticket_id", f"T{row}") for row in (3, 4, 5))


def test_chunks_of_a_sliced_command_array_start_at_the_slice() -> None:
    batch = pa.record_batch({"ticket_id": [f"T{row}" for row in range(7)]})
    commands = EntryEncoder("s", "ticket_id", []).encode(batch).slice(5)
    assert [bytes(wire) for wire, _ in chunks(commands, 10)] == [
        packed("XADD", "s", "*", "ticket_id", "T5") + packed("XADD", "s", "*", "ticket_id", "T6")
    ]


def test_a_large_batch_is_cut_into_parts_that_keep_every_row_in_order() -> None:
    # Given rows that take far more than the limit
    batch = pa.record_batch({"n": list(range(1000)), "x": ["v" * 100] * 1000})
    # When the batch is cut
    cut = list(parts(batch, limit=20_000))
    # Then each part is small and together they are the batch
    assert len(cut) > 10
    assert pa.Table.from_batches(cut)["n"].to_pylist() == list(range(1000))


def test_one_row_over_the_limit_is_not_cut() -> None:
    batch = pa.record_batch({"x": ["v" * 1000, "w" * 1000]})
    assert [part.num_rows for part in parts(batch, limit=100)] == [1, 1]


def test_a_batch_without_rows_has_no_parts() -> None:
    assert list(parts(pa.record_batch({"x": pa.array([], pa.string())}))) == []
