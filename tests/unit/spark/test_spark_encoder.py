"""The encoder's bytes equal those of redis-py's packer."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.connection import Connection

from bridge.routing.pushes import Columns, Partition, once_opening
from bridge.spark.wire.encoder import EncodedRows, RowEncoder, as_bytes, parts

NASTY = ["plain", "", "ü", "日本語", "\0", "a\0b", "\r\n", "*3\r\n$4\r\n", "$-1\r\n", "🎫" * 100]


def packed(*arguments: str | bytes) -> bytes:
    """Arguments of a command as redis-py packs them, without the command."""
    return b"".join(bytes(piece) for piece in Connection().pack_command("X", *arguments)).partition(b"$1\r\nX\r\n")[2]


def encoded(batch: pa.RecordBatch, fields: Sequence[str], sequence: str | None = None) -> EncodedRows:
    return RowEncoder("ticket_id", fields, sequence).encode(batch)


def wire(rows: EncodedRows) -> bytes:
    return bytes(rows.wire(0, len(rows)))


def present(rows: EncodedRows) -> bytes:
    return rows.present(0, len(rows))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
def test_every_text_is_encoded_as_redis_py_packs_it(kind: pa.DataType) -> None:
    # Given texts that look like the protocol, are empty, have NUL bytes and many bytes per character
    values = [text.encode() for text in NASTY] if "binary" in str(kind) else NASTY
    batch = pa.record_batch({"ticket_id": pa.array(NASTY), "payload": pa.array(values, kind)})
    # When they are encoded
    rows = encoded(batch, ["payload"])
    # Then the bytes are those of redis-py
    assert wire(rows) == b"".join(packed(text, text) for text in NASTY)
    assert present(rows) == b""


def test_numbers_and_truth_values_are_encoded_as_their_usual_text() -> None:
    batch = pa.record_batch({"ticket_id": ["T"], "whole": pa.array([-7], pa.int64()), "yes": [True], "half": [0.5]})
    assert wire(encoded(batch, ["whole", "yes", "half"])) == packed("T", "-7", "true", "0.5")


def test_a_sequence_comes_before_the_ticket() -> None:
    batch = pa.record_batch({"ticket_id": ["T"], "seq": pa.array([12], pa.int32()), "x": ["v"]})
    rows = encoded(batch, ["x"], "seq")
    assert wire(rows) == packed("12", "T", "v")


def test_nulls_are_marked_beside_the_values() -> None:
    batch = pa.record_batch(
        {"ticket_id": ["A", "B", "C", "D"], "x": [None, "1", None, "2"], "y": ["3", None, None, "4"]}
    )
    rows = encoded(batch, ["x", "y"])
    assert present(rows) == b"101110100111"
    assert rows.present(1, 3) == b"110100"
    # A piece without nulls needs no word about it
    assert rows.present(3, 4) == b""


def test_a_null_and_an_empty_text_differ_in_their_bytes() -> None:
    null = encoded(pa.record_batch({"ticket_id": ["A"], "x": pa.array([None], pa.string())}), ["x"])
    empty = encoded(pa.record_batch({"ticket_id": ["A"], "x": [""]}), ["x"])
    assert wire(null) != wire(empty)
    assert (present(null), present(empty)) == (b"10", b"")


@pytest.mark.parametrize("with_null", [False, True])
def test_a_slice_encodes_its_own_rows_and_no_others(with_null: bool) -> None:
    # Given arrays that start in the middle of their buffers
    values = [None if with_null and row % 3 == 0 else f"value {row}" for row in range(10)]
    batch = pa.record_batch({"ticket_id": [f"T{row}" for row in range(10)], "x": values}).slice(4, 3)
    # When the slice is encoded
    rows = encoded(batch, ["x"])
    # Then it is exactly rows 4 to 6
    assert wire(rows) == b"".join(packed(f"T{row}", values[row] or "\0") for row in (4, 5, 6))
    assert present(rows) == (b"111110" if with_null else b"")


def test_a_piece_of_a_column_of_more_than_2_gib_is_encoded_like_any_other() -> None:
    # Given two values behind the place that numbers of 32 bits can name (of memory that is never touched)
    behind = 2**31
    memory = mmap.mmap(-1, behind + 16)
    memory[behind : behind + 6] = b"abcdef"
    places = pa.py_buffer(struct.pack("=3q", behind, behind + 2, behind + 6))
    piece = pa.Array.from_buffers(pa.large_string(), 2, [None, places, pa.py_buffer(memory)])
    assert as_bytes(piece).to_pylist() == [b"ab", b"cdef"]


@given(st.lists(st.tuples(st.text(), st.none() | st.text(), st.none() | st.binary()), max_size=20), st.integers(1, 7))
def test_any_rows_are_encoded_as_redis_py_packs_them_however_they_are_cut(
    rows: list[tuple[str, str | None, bytes | None]], per_piece: int
) -> None:
    batch = pa.record_batch(
        {
            "ticket_id": pa.array([row[0] for row in rows], pa.string()),
            "x": pa.array([row[1] for row in rows], pa.string()),
            "y": pa.array([row[2] for row in rows], pa.binary()),
        }
    )
    made = encoded(batch, ["x", "y"])
    for start in range(0, len(rows), per_piece):
        end = min(start + per_piece, len(rows))
        piece = [tuple("\0" if value is None else value for value in row) for row in rows[start:end]]
        assert bytes(made.wire(start, end)) == b"".join(packed(*row) for row in piece)
        expected = "".join("".join("0" if value is None else "1" for value in row) for row in rows[start:end])
        assert made.present(start, end).decode() == (expected if "0" in expected else "")


@given(st.lists(st.integers(0, 300), min_size=1, max_size=40), st.integers(1, 50), st.integers(1, 1000), st.data())
def test_a_piece_is_the_longest_that_fits_and_never_empty(
    sizes: list[int], most: int, limit: int, data: st.DataObject
) -> None:
    made = encoded(pa.record_batch({"ticket_id": ["x" * size for size in sizes]}), [])
    start = data.draw(st.integers(0, len(sizes) - 1))
    end = made.fitting(start, most, limit)
    assert start < end <= min(start + most, len(sizes))
    assert end == start + 1 or len(made.wire(start, end)) <= limit
    if end < min(start + most, len(sizes)):
        assert len(made.wire(start, end + 1)) > limit


def test_a_call_is_its_opening_and_its_rows() -> None:
    # Given a chunk as it is sent in two pieces
    batch = pa.record_batch({"ticket_id": ["A", "B"], "fü\r\n": ["1", None]})
    rows = encoded(batch, ["fü\r\n"])
    columns = Columns(("ticket_id", "fü\r\n"))
    at = Partition("{strüam}:\0", "guard", 3, 1, None, 20, 60)
    opening = once_opening(at, "0 0", "2 7", columns, 2, rows.present(0, 2))
    # Then it is what redis-py would send in one
    keys = ["guard", "{strüam}:\0/layout", "{strüam}:\0"]
    signs = ["{strüam}:\0:p0", "{strüam}:\0/layout:copy"]
    arguments = ["", "", *signs, "3", "1", "", "0 0", "2 7", "20", "60", "1110", "2", "ticket_id", "fü\r\n"]
    sha = opening.split(b"\r\n")[4]
    whole = Connection().pack_command("EVALSHA", sha, "3", *keys, *arguments, "A", "1", "B", "\0")
    assert opening + wire(rows) == b"".join(bytes(piece) for piece in whole)


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
