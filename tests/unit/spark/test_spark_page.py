"""Pages of entries of any content are read as hiredis reads them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from inspect import signature
from itertools import pairwise
from typing import Any

import hiredis
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bridge.routing.errors import ConfigurationError
from bridge.spark.read.columns import Columns, default_schema
from bridge.spark.read.decoder import Decoder
from bridge.spark.wire.page import MalformedReply, VariedPage, read_page
from bridge.spark.wire.uniform import UniformPage


@pytest.fixture(autouse=True, scope="module", params=["hiredis", "no hiredis"])
def parser(request: pytest.FixtureRequest) -> Iterator[None]:
    """All of it also in a Python that does not have hiredis."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "no hiredis":
            patch.setattr("bridge.spark.wire.page.HIREDIS", False)
        yield


Entry = tuple[bytes, list[tuple[bytes, bytes]]]

#: Values that look like the protocol, among any others.
NASTY = st.sampled_from(
    [b"", b"\r\n", b"\n", b"\r", b"$3\r\nabc\r\n", b"*2\r\n$3\r\n5-0\r\n*0", b"*2", b"$-1", b"\xff"]
)
VALUES = st.binary(max_size=12) | NASTY
NAMES = st.sampled_from([b"ticket_id", b"task", b"payload", b"x"]) | VALUES
BYTES_MAP = MapType(StringType(), BinaryType())
IDS = st.integers(0, 2**64 - 1).map(lambda ms: b"%d-%d" % (ms, ms % 7))


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(value), value)


def reply(entries: list[Entry]) -> bytes:
    """What a server answers, written the plain way."""
    wire = b"*%d\r\n" % len(entries)
    for id_, fields in entries:
        wire += b"*2\r\n" + bulk(id_) + b"*%d\r\n" % (2 * len(fields))
        wire += b"".join(bulk(name) + bulk(value) for name, value in fields)
    return wire


@st.composite
def pages(draw: st.DrawFn) -> list[Entry]:
    """Pages of all kinds, and often those of entries that have the same fields."""
    ids = draw(st.lists(IDS, max_size=6))
    if draw(st.booleans()):
        names = draw(st.lists(NAMES, min_size=1, max_size=4))
        return [(id_, [(name, draw(VALUES)) for name in names]) for id_ in ids]
    return [(id_, draw(st.lists(st.tuples(NAMES, VALUES), min_size=1, max_size=4))) for id_ in ids]


def by_hiredis(wire: bytes) -> list[tuple[bytes, dict[bytes, bytes]]] | None:
    """What redis-py's own parser makes of a reply; None when that is no list of entries."""
    reader = hiredis.Reader()
    try:
        reader.feed(wire)
        entries = [(id_, list(flat)) for id_, flat in reader.gets()]
        found = [(id_, dict(zip(flat[::2], flat[1::2], strict=True))) for id_, flat in entries]
    except (hiredis.ProtocolError, TypeError, ValueError):
        return None
    values = [value for id_, flat in entries for value in (id_, *flat)]
    return found if all(isinstance(value, bytes) for value in values) and not reader.has_data() else None


@st.composite
def bent(draw: st.DrawFn) -> bytes:
    """Replies that look uniform when only lines are counted: all entries are alike, except for a line or two.

    What stands there instead is another line of the page, or a number that is too large or too small, so that a value
    swallows what stands behind it, or ends in its midst.
    """
    names = draw(st.lists(st.sampled_from([b"ticket_id", b"a", b"b"]), min_size=1, max_size=3))
    ids = draw(st.lists(IDS, min_size=1, max_size=4))
    values = st.sampled_from([b"", b"x", b"$1", b"*2", b"T1", b"5-0", b"a"])
    lines = reply([(id_, [(name, draw(values)) for name in names]) for id_ in ids]).split(b"\r\n")
    numbers = st.integers(0, 40).flatmap(lambda n: st.sampled_from([b"$%d" % n, b"$0%d" % n, b"*%d" % n, b":%d" % n]))
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(lines) - 2))
        lines[at] = draw(st.sampled_from(lines) | numbers | st.sampled_from([b"\r", b"\n", b"$-1", b"*-1", b"", b"x"]))
    return b"\r\n".join(lines)


def lengths_bent(entries: list[Entry], most: int) -> list[bytes]:
    """A reply in which one value's length is another one, each in turn, and each other length up to ``most``."""
    lines = reply(entries).split(b"\r\n")
    places = [at for at, line in enumerate(lines) if line[:1] == b"$"]
    return [
        b"\r\n".join([*lines[:at], b"$%d" % length, *lines[at + 1 :]]) for at in places for length in range(most + 1)
    ]


@settings(max_examples=200)
@example(b"*1\r\n*2\r\n$3\r\n0-0\r\n*2\r\n$01\r\na\r\n$0\r\n\r\n")
@example(b"*1\r\n*2\r\n$3\r\n0-0\r\n*02\r\n$1\r\na\r\n$0\r\n\r\n")
@given(bent())
def test_a_reply_that_only_resembles_a_page_is_read_as_by_hiredis_or_refused(wire: bytes) -> None:
    expected = by_hiredis(wire)
    if expected is None:
        with pytest.raises(MalformedReply):
            read_page(pa.py_buffer(wire))
        return
    page = read_page(pa.py_buffer(wire))
    assert page.ids.to_pylist() == [id_ for id_, _ in expected]
    for name in (b"ticket_id", b"a", b"b", b"x"):
        assert page.values_of(name).to_pylist() == [fields.get(name) for _, fields in expected]


def test_a_value_ends_where_its_length_says_and_nowhere_else() -> None:
    # Given every page that differs from a good one in one length
    good: list[Entry] = [(b"1-0", [(b"a", b"xx"), (b"b", b"")]), (b"2-0", [(b"a", b"y"), (b"b", b"zz")])]
    for wire in lengths_bent(good, 60):
        expected = by_hiredis(wire)
        # Then it is the good one, or one that hiredis reads, or no page
        if expected is None:
            with pytest.raises(MalformedReply):
                read_page(pa.py_buffer(wire))
        else:
            page = read_page(pa.py_buffer(wire))
            assert [page.ids.to_pylist(), page.values_of(b"a").to_pylist()] == [
                [id_ for id_, _ in expected],
                [fields.get(b"a") for _, fields in expected],
            ]


@given(pages())
def test_replies_are_read_as_hiredis_reads_them(entries: list[Entry]) -> None:
    # Given a reply, and what redis-py's own parser makes of it
    wire = reply(entries)
    expected = by_hiredis(wire)
    assert expected is not None
    # When it is read as a page
    page = read_page(pa.py_buffer(wire))
    # Then ids, every field and the rest are the same, the last of doubled ones as in a dictionary
    assert page.ids.to_pylist() == [id_ for id_, _ in expected]
    names = {name for _, fields in expected for name in fields} | {b"never"}
    for name in names:
        assert page.values_of(name).to_pylist() == [fields.get(name) for _, fields in expected]
    for own in (frozenset[bytes](), frozenset({b"ticket_id", b"payload"}), frozenset(names)):
        offsets, rest, values = page.others(own)
        bounds = offsets.to_pylist()
        found = [
            dict(zip(rest[start:end].to_pylist(), values[start:end].to_pylist(), strict=True))
            for start, end in pairwise(bounds)
        ]
        assert len(rest) == sum(map(len, found))  # each name once
        assert found == [{name: value for name, value in fields.items() if name not in own} for _, fields in expected]


@given(st.lists(st.tuples(IDS, st.binary(max_size=9).filter(lambda value: b"\r" not in value)), min_size=1))
def test_entries_of_one_kind_are_read_without_an_object_for_each(entries: list[tuple[bytes, bytes]]) -> None:
    wire = reply([(id_, [(b"ticket_id", b"T"), (b"payload", value)]) for id_, value in entries])
    assert isinstance(read_page(pa.py_buffer(wire)), UniformPage)


def test_a_value_that_imitates_the_cut_is_found_out() -> None:
    # Given two entries whose tokens, cut at line ends, are as many as those of two entries of the first one's kind
    imitation = b"y\r\n$1\r\nc\r\n$1\r\nz"
    entries: list[Entry] = [(b"1-0", [(b"a", b"x"), (b"c", b"d")]), (b"2-0", [(b"a", imitation)])]
    assert reply(entries).count(b"\r\n") == 1 + 2 * 12
    # When they are read, then nobody is deceived
    page = read_page(pa.py_buffer(reply(entries)))
    assert isinstance(page, VariedPage)
    assert page.values_of(b"a").to_pylist() == [b"x", imitation]


def test_a_value_that_would_end_before_it_begins_is_not_looked_into() -> None:
    # Given a page with as many carriage returns as a good one, two of them side by side
    good = reply([(b"1-0", [(b"a", b"x")]), (b"2-0", [(b"a", b"y")])])
    wire = good.replace(b"$1\r\nx\r\n", b"$1\r\r\n", 1)
    assert wire.count(b"\r") == good.count(b"\r")
    assert by_hiredis(wire) is None
    with pytest.raises(MalformedReply):
        read_page(pa.py_buffer(wire))


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"*1\r\n",
        b"*0\r\n\r\n",
        b"+OK\r\n",
        b"*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\na\r\n$1\r\nb",
        b"*1\r\n:5\r\n",
        b":1\r\n",
    ],
)
def test_an_invalid_reply_is_refused(wire: bytes) -> None:
    with pytest.raises(MalformedReply):
        read_page(pa.py_buffer(wire))


def decode(schema: StructType, *entries: Entry) -> list[dict[str, object]]:
    batch = Decoder(Columns.of(schema)).decode(read_page(pa.py_buffer(reply(list(entries)))))
    rows: list[dict[str, object]] = batch.to_pylist()
    return rows


def test_a_batch_has_the_types_that_spark_asks_for() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    # Spark 4.1.0 means UTC without it.
    in_utc: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    binary_map = StructType(
        [StructField("fields", MapType(StringType(), BinaryType())), StructField("x", BinaryType())]
    )
    loose = StructType([StructField("id", StringType()), StructField("enqueued_at", TimestampType())])
    for schema in (
        default_schema(),
        default_schema(("seq", "payload")),
        default_schema(("fields",)),
        binary_map,
        loose,
    ):
        batch = Decoder(Columns.of(schema)).decode(read_page(pa.py_buffer(reply([(b"5-1", [(b"x", b"y")])]))))
        assert to_arrow_schema(schema, **in_utc).equals(batch.schema)


def test_the_columns_of_a_message() -> None:
    full = (b"1700000000123-4", [(b"ticket_id", b"T1"), (b"task", b"t"), (b"payload", b"{}")])
    plain = (b"1700000000124-0", [(b"ticket_id", b"T2"), (b"amount", b"3"), (b"note", "ü".encode())])
    assert decode(default_schema(), full, plain) == [
        {
            "id": "1700000000123-4", "ticket_id": "T1", "task": "t", "payload": "{}", "fields": [],
            "enqueued_at": datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC),
        },
        {
            "id": "1700000000124-0", "ticket_id": "T2", "task": None, "payload": None,
            "fields": [("amount", "3"), ("note", "ü")],
            "enqueued_at": datetime(2023, 11, 14, 22, 13, 20, 124000, tzinfo=UTC),
        },
    ]  # fmt: skip


def test_bytes_that_are_no_text_are_shown_in_text_and_kept_in_bytes() -> None:
    entry = (b"1-1", [(b"payload", b"a\xffb"), (b"\xfe", b"\xfd")])
    both = StructType(
        [StructField("payload", StringType()), StructField("fields", MapType(StringType(), BinaryType()))]
    )
    assert decode(both, entry) == [{"payload": r"a\xffb", "fields": [(r"\xfe", b"\xfd")]}]
    assert decode(StructType([StructField("payload", BinaryType())]), entry) == [{"payload": b"a\xffb"}]


#: Names that are few, so that some of an entry are shown alike: bytes that are not UTF-8, and texts that imitate them.
LOOK_ALIKES = st.sampled_from([b"\xff", rb"\xff", b"a\xff", rb"a\xff", b"\xfe", "ÿ".encode(), b"a", b""])


@given(st.lists(st.lists(st.tuples(LOOK_ALIKES, VALUES), min_size=1, max_size=5), max_size=4))
def test_names_that_are_shown_alike_are_one_field_of_an_entry(found: list[list[tuple[bytes, bytes]]]) -> None:
    rows = decode(
        StructType([StructField("fields", BYTES_MAP)]), *((b"%d-0" % at, fields) for at, fields in enumerate(found))
    )
    assert [row["fields"] for row in rows] == [
        list({name.decode(errors="backslashreplace"): value for name, value in dict(fields).items()}.items())
        for fields in found
    ]


def test_an_id_that_is_no_time_has_none_and_any_other_has() -> None:
    ids = [
        b"0-1",
        b"999999999999-0",
        b"1700000000000-18446744073709551615",
        b"253402300800000-0",
        b"%d-0" % (2**64 - 1),
    ]
    schema = StructType([StructField("enqueued_at", TimestampType())])
    for chosen in (ids, ids[2:3]):
        rows = decode(schema, *((id_, [(b"a", b"b")]) for id_ in chosen))
        found = [row["enqueued_at"] for row in rows]
        expected = [int(id_.partition(b"-")[0]) for id_ in chosen]
        assert [None if at is None else round(at.timestamp() * 1000) for at in found] == [  # type: ignore[attr-defined]
            ms if ms < 253_402_300_800_000 else None for ms in expected
        ]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (StructType([StructField("seq", LongType())]), "column seq cannot be read as bigint: .*cast it then"),
        (StructType([StructField("id", BinaryType())]), "it is a STRING"),
        (StructType([StructField("enqueued_at", StringType())]), "it is a TIMESTAMP"),
        (StructType([StructField("fields", StringType())]), "it is a MAP"),
        (
            StructType([StructField("task", StringType(), nullable=False)]),
            "column task may be null; leave NOT NULL out",
        ),
        (StructType([StructField("a", StringType()), StructField("a", StringType())]), "column a twice"),
    ],
)
def test_a_schema_that_a_stream_cannot_fill_is_refused(schema: StructType, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Columns.of(schema)
