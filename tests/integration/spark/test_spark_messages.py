"""A log, a table or files without a sequence as messages: what each column becomes, and what orders a ticket."""

from __future__ import annotations

import gzip
import json
import re
from datetime import UTC, datetime
from functools import reduce
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from bridge.routing.errors import ConfigurationError, InputError, PayloadError
from bridge.routing.messages import EntryParser, Message
from bridge.spark.job.eventlog import TABLE, declared_columns, follow_events, present_columns, read_events
from bridge.spark.job.failures import one_line
from bridge.spark.job.json_lines import parsed_lines, what_is_wrong
from bridge.spark.job.log_columns import MALFORMED
from bridge.spark.pushing.messages import Mapping, parse_map, to_messages
from bridge.spark.pushing.rejects import first_reasons
from bridge.spark.pushing.run_id import run_id_of
from bridge.spark.write.columns import column
from bridge.spark.write.message_options import as_fields
from bridge.spark.write.refusals import check_tasks
from bridge.spark.write.rejects import Checks, refusal, split_rejects

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def payloads(events: DataFrame, mapping: Mapping) -> list[tuple[str, int | None, Any]]:
    """Ticket, sequence and payload of each message, by ticket and sequence."""
    found = to_messages(events, mapping)
    rows = found.frame.select(found.key, f"`{found.sequence}`", "payload").collect()
    parsed = [(row[0], row[1], json.loads(row[2])) for row in rows]
    return sorted(parsed, key=lambda row: (row[0], row[1] is not None, row[1] or 0))


def test_columns_are_renamed_left_out_and_made_the_ticket_as_the_mapping_says(
    session: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("nr,place,amount,secret,note\nA,2,7,x,hi\nA,10,8,y,\n")
    renamed = parse_map(["sum=amount", "twice=amount", "ticket=nr"])
    mapping = Mapping(key="nr", seq="place", renamed=renamed, excluded=("secret", "place"))
    assert payloads(read_events(session, str(path)), mapping) == [
        ("A", 2, {"ticket": "A", "sum": "7", "twice": "7", "note": "hi"}),
        ("A", 10, {"ticket": "A", "sum": "8", "twice": "8", "note": ""}),
    ]


def test_a_column_of_json_is_the_payload_as_it_is(session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    rows = [
        {"ticket_id": "A", "seq": 1, "body": '{"a": [1, 2.50]}', "other": 1},
        {"ticket_id": "A", "seq": 2, "other": 2},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = to_messages(read_events(session, str(path)), Mapping(payload_column="body"))
    texts = [row["payload"] for row in found.frame.orderBy("seq").collect()]
    # Byte for byte; and a null is JSON's null, since an entry without the field would have its other fields as payload.
    assert texts == ['{"a": [1, 2.50]}', "null"]


def test_a_structured_column_can_be_the_payload(session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"ticket_id": "A", "seq": 1, "body": {"n": 1, "deep": {"list": [1]}}}\n')
    found = payloads(read_events(session, str(path)), Mapping(payload_column="body"))
    assert found == [("A", 1, {"n": 1, "deep": {"list": [1]}})]


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ({"key": "number"}, "--key: the log has no column 'number'"),
        ({"renamed": (("a", "amuont"),)}, "--map: the log has no column 'amuont'; did you mean amount?"),
        ({"excluded": ("nothing",)}, "--exclude: the log has no column 'nothing'"),
        ({"payload_column": "pay"}, "--payload-column: the log has no column 'pay'"),
        ({"renamed": (("note", "amount"),)}, "the payload would have 'note' twice"),
        ({"excluded": ("seq", "amount", "note")}, "no column beside the ticket"),
    ],
    ids=["key", "map", "exclude", "payload", "twice", "nothing"],
)
def test_a_mapping_that_does_not_fit_the_log_is_one_line(
    session: SparkSession, tmp_path: Path, mapping: dict[str, Any], said: str
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("ticket_id,seq,amount,note\nA,1,2,\n")
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        to_messages(read_events(session, str(path)), Mapping(**mapping))


def test_a_log_without_columns_is_named_with_what_it_is(session: SparkSession, tmp_path: Path) -> None:
    for name, content, said in (
        ("log.csv", "", "is empty"),
        ("log.jsonl", "\n", "is empty"),
        ("log.jsonl", "oops\n", "has no line that is an object with members"),
    ):
        path = tmp_path / name
        path.write_text(content)
        with pytest.raises(InputError, match=f"{re.escape(str(path))} {said}"):
            read_events(session, str(path), tolerant=True)


def test_a_mapping_that_contradicts_itself_is_refused() -> None:
    for wrong, said in (
        ({"task": "a", "task_column": "b"}, "--task and --task-column exclude each other"),
        ({"payload_column": "p", "excluded": ("x",)}, "--payload-column is the whole payload"),
        ({"renamed": (("a", "x"), ("a", "y"))}, "--map names 'a' twice"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            Mapping(**wrong)
    with pytest.raises(ConfigurationError, match="must be member=column"):
        parse_map(["amount"])


def test_without_a_sequence_a_ticket_is_in_the_order_of_its_rows_in_the_file(
    session: SparkSession, tmp_path: Path
) -> None:
    # Given a log that several tasks read in pieces, as Spark cuts it for its cores
    path = tmp_path / "log.jsonl"
    rows = [{"ticket_id": f"T{n * n % 7}", "n": n, "pad": "x" * 200} for n in range(2000)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    session.conf.set("spark.sql.files.maxPartitionBytes", "64k")
    try:
        events = read_events(session, str(path))
        assert events.rdd.getNumPartitions() > 4
        found = payloads(events, Mapping(excluded=("pad",)))
    finally:
        session.conf.unset("spark.sql.files.maxPartitionBytes")
    assert to_messages(events, Mapping()).ordered_by == "the order of the rows in the file"
    for ticket in {row["ticket_id"] for row in rows}:
        expected = [row["n"] for row in rows if row["ticket_id"] == ticket]
        assert [payload["n"] for name, _, payload in found if name == ticket] == expected
        assert [place for name, place, _ in found if name == ticket] == list(range(1, len(expected) + 1))


def test_several_files_follow_each_other_by_their_names(session: SparkSession, tmp_path: Path) -> None:
    # Given names with characters that a URI has in another form, and with some that look like that form
    names = ["a a", "a!", "a%20b", "a+", "a1", "a[1]", "b", "bé"]
    assert names == sorted(names)
    for at, name in reversed([*enumerate(names)]):
        (tmp_path / f"{name}.csv").write_text(f"ticket_id,n\nA,{2 * at}\nA,{2 * at + 1}\n")
    found = payloads(read_events(session, str(tmp_path), "csv"), Mapping())
    assert [payload["n"] for _, _, payload in found] == [str(n) for n in range(2 * len(names))]


def test_without_a_sequence_times_order_a_ticket_and_ties_stay_as_in_the_file(
    session: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    times = ["2024-01-01T10:00", "2024-01-01T09:00", "2024-01-01T09:00", "nonsense", "2024-01-01T08:00"]
    path.write_text("ticket_id,n,at\n" + "".join(f"A,{n},{time}\n" for n, time in enumerate(times)))
    found = to_messages(read_events(session, str(path)), Mapping(order="at"))
    placed = found.frame.select(f"`{found.sequence}`", "payload").collect()
    # A time that is none has no place: it is null, and so refused.
    by_place = {json.loads(row[1])["n"]: row[0] for row in placed}
    assert by_place.pop("3") is None
    assert sorted(by_place, key=lambda n: by_place[n]) == ["4", "1", "2", "0"]
    assert "equal ones" in found.ordered_by


def test_columns_that_are_called_as_places_are_keep_their_values(session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("ticket_id,place in the file,at,place by at\nA,x,2024-01-02,y\nA,z,2024-01-01,\n")
    rows = [
        {"place in the file": "x", "at": "2024-01-02", "place by at": "y"},
        {"place in the file": "z", "at": "2024-01-01", "place by at": ""},
    ]
    events = read_events(session, str(path))
    assert payloads(events, Mapping()) == [("A", place, row) for place, row in enumerate(rows, start=1)]
    by_time = [("A", place, row) for place, row in enumerate(reversed(rows), start=1)]
    assert payloads(events, Mapping(order="at")) == by_time


def test_a_sequence_of_times_is_exact_to_the_microsecond(session: SparkSession) -> None:
    events = session.sql(
        "select 'A' ticket_id, timestamp'2024-01-01 00:00:00.000002' at, 1 n "
        "union all select 'A', timestamp'2024-01-01 00:00:00.000001', 2"
    )
    found = payloads(events, Mapping(seq="at"))
    assert [(place, payload["n"]) for _, place, payload in found] == [(1704067200000001, 2), (1704067200000002, 1)]


#: Values of a sequence, and the number that each is.
NUMBERS = {
    "date'2024-01-02'": 1704153600000000,
    "timestamp_ntz'2024-01-02 00:00:00.000001'": 1704153600000001,
    "2.0D": 2,
    "cast(2 as decimal(5, 2))": 2,
    "cast(2.5 as decimal(5, 2))": None,
    "cast(2.5 as float)": None,
    "1e300D": None,
    "cast(2 as tinyint)": 2,
    "' 7'": 7,
    "'2.5'": None,
}


def test_a_sequence_is_a_whole_number_or_a_time_and_nothing_is_cut_off(session: SparkSession) -> None:
    found: dict[str, int | None] = {}
    every = [
        to_messages(session.sql(f"select 'A' ticket_id, {value} at, 1 n"), Mapping(seq="at"))
        .frame.select(fn.lit(value), "at")
        for value in NUMBERS
    ]  # fmt: skip
    # One query for all: to plan a query takes longer than to run it.
    found.update(reduce(DataFrame.union, every).collect())
    assert found == NUMBERS


def test_a_key_or_sequence_column_of_a_wrong_type_is_refused(session: SparkSession) -> None:
    events = session.sql("select 'A' ticket_id, 1 seq, true yes, struct(1 x) o, array(1) l, map('a', 1) m, 1 n")
    for name, kind in (("yes", "boolean"), ("o", "struct<x:int>"), ("l", "array<int>")):
        with pytest.raises(InputError, match=f"--seq: the column '{name}' is {kind}: whole numbers or times order"):
            to_messages(events, Mapping(seq=name))
    for name in ("o", "l", "m"):
        with pytest.raises(InputError, match=f"--key: the column '{name}' holds objects or lists"):
            to_messages(events, Mapping(key=name))
    fractions = session.sql("select 7.0d ticket_id, cast(7 as float) f, 7.0 d, cast(7 as decimal(38, 0)) whole, 1 seq")
    for name in ("ticket_id", "f", "d"):
        with pytest.raises(InputError, match=f"--key: the column '{name}' holds numbers with fractions"):
            to_messages(fractions, Mapping(key=name))
    to_messages(fractions, Mapping(key="whole"))
    with pytest.raises(InputError, match="--task-column: the column 'o' holds objects or lists"):
        to_messages(events, Mapping(task_column="o"))


def test_a_wrong_number_and_a_wrong_time_have_different_errors(session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("ticket_id,at\nA,soon\n")
    for mapping, said in (
        (Mapping(seq="at"), "ticket 'A' has a row whose at is not a whole number (times go with --order)"),
        (Mapping(order="at"), "ticket 'A' has a row whose at is not a time"),
    ):
        assert first_reasons(to_messages(read_events(session, str(path)), mapping), limit=1000) == said


def test_times_in_a_payload_have_their_microseconds(session: SparkSession) -> None:
    times = "timestamp'2024-01-01 00:00:00.123456' at, timestamp_ntz'2024-01-01 00:00:00.000001' there"
    events = session.sql(f"select 'A' ticket_id, 1 seq, date'2024-01-01' day, {times}, struct({times}) within")
    expected = {"at": "2024-01-01T00:00:00.123456Z", "there": "2024-01-01T00:00:00.000001"}
    found = payloads(events, Mapping())
    assert found == [("A", 1, {"seq": 1, "day": "2024-01-01", **expected, "within": expected})]
    assert payloads(events, Mapping(payload_column="within")) == [("A", 1, expected)]


#: Where a map may be.
PLACES = ("{}", "array({})", "struct(1 x, {} y)", "map('a', {})", "array(struct(map('a', array({})) m))")
#: Keys of a map, and the member that each becomes.
GOOD_KEYS = {"'a'": "a", "7": "7", "7L": "7", "true": "true", "1.50BD": "1.50", "1.5D": "1.5", "1.5F": "1.5"}
ODD_KEYS = {
    "cast('ab' as binary)": "binary",
    "date'2026-01-02'": "date",
    "timestamp'2026-01-02 03:04:05'": "timestamp",
    "timestamp_ntz'2026-01-02 03:04:05'": "timestamp_ntz",
    "interval '1' day": "interval day",
    "interval '1-2' year to month": "interval year to month",
    "struct(1, 2)": "struct<col1:int,col2:int>",
    "array(1)": "array<int>",
}


#: The mappings that make a payload of the column ``odd``.
OF_ODD = (Mapping(), Mapping(renamed=(("m", "odd"),)), Mapping(payload_column="odd"))


@pytest.mark.parametrize(
    "pairs",
    [
        # Each key in a place, and each place with a key: what looks for places does not look at keys.
        [*((place, "date'2026-01-02'") for place in PLACES), *(("{}", key) for key in ODD_KEYS)],
        pytest.param([*product(PLACES, ODD_KEYS)], marks=pytest.mark.long),
    ],
    ids=["each", "all"],
)
def test_keys_of_a_map_that_are_no_text_are_refused_wherever_the_map_is(
    session: SparkSession, pairs: list[tuple[str, str]]
) -> None:
    made = ", ".join(f"{place.format(f'map({key}, 1)')} odd{at}" for at, (place, key) in enumerate(pairs))
    whole = session.sql(f"select 'A' ticket_id, 1 seq, 2 n, {made}")
    for at, (_, key) in enumerate(pairs):
        events = whole.select("ticket_id", "seq", "n", fn.col(f"odd{at}").alias("odd"))
        said = re.escape(f"the column 'odd' has a map whose keys are {ODD_KEYS[key]}")
        for mapping in OF_ODD:
            with pytest.raises(InputError, match=said):
                to_messages(events, mapping)
    # As the line advises: without the column, and with texts
    odd = [f"odd{at}" for at in range(len(pairs))]
    assert payloads(whole, Mapping(excluded=("seq", *odd))) == [("A", 1, {"n": 2})]
    maps = {name: key for name, (place, key) in zip(odd, pairs, strict=True) if place == "{}"}
    texts = [fn.expr(f"transform_keys({name}, (k, v) -> string(k))").alias(name) for name in maps]
    [(_, _, found)] = payloads(whole.select("ticket_id", "seq", *texts), Mapping(excluded=("seq",)))
    assert {name: list(members.values()) for name, members in found.items()} == {name: [1] for name in maps}
    for name, text in zip(maps, texts, strict=True):
        to_messages(whole.select("ticket_id", "seq", text), Mapping(payload_column=name))


def test_keys_of_a_map_that_have_one_text_are_members(session: SparkSession) -> None:
    columns = ", ".join(f"map({key}, 1) m{at}" for at, key in enumerate(GOOD_KEYS))
    events = session.sql(f"select 'A' ticket_id, 1 seq, map() none, {columns}")
    [(_, _, found)] = payloads(events, Mapping(excluded=("seq",)))
    assert found == {"none": {}, **{f"m{at}": {text: 1} for at, text in enumerate(GOOD_KEYS.values())}}


def test_a_structure_that_has_a_name_twice_is_refused(session: SparkSession) -> None:
    for place in PLACES:
        odd = place.format("named_struct('a', 1, 'b', 2, 'a', 3)")
        events = session.sql(f"select 'A' ticket_id, 1 seq, {odd} odd")
        for mapping in (Mapping(), Mapping(payload_column="odd")):
            with pytest.raises(InputError, match="the column 'odd' has a structure that has 'a' twice: give one of"):
                to_messages(events, mapping)


def test_a_table_is_pushed_by_its_name_and_needs_something_that_orders_it(session: SparkSession) -> None:
    session.sql("select 'A' ticket_id, 2 place, 1.5 x").createOrReplaceTempView("orders")
    assert payloads(read_events(session, "orders", TABLE), Mapping(seq="place")) == [("A", 2, {"place": 2, "x": 1.5})]
    with pytest.raises(InputError, match="no order of their own"):
        to_messages(read_events(session, "orders", TABLE), Mapping())
    with pytest.raises(InputError, match=r"there is no table shop\.nothing"):
        read_events(session, "shop.nothing", TABLE)
    with pytest.raises(InputError, match="is not the name of a table"):
        read_events(session, "or'ders", TABLE)


def test_files_of_one_folder_whose_columns_differ_are_refused(session: SparkSession, tmp_path: Path) -> None:
    # Spark goes by position otherwise: numbers would become tickets without a word.
    (tmp_path / "1.csv").write_text("ticket_id,seq,x\nA,1,u\n")
    (tmp_path / "2.csv").write_text("seq,ticket_id,x\n2,A,v\n")
    with pytest.raises(Exception, match="header does not conform") as failed:
        to_messages(read_events(session, str(tmp_path), "csv"), Mapping()).frame.collect()
    error = one_line(failed.value)
    assert "\n" not in str(error)


def test_columns_that_only_some_parquet_files_have_are_not_lost(session: SparkSession, tmp_path: Path) -> None:
    for name, columns in (("a", {"x": [1]}), ("b", {"x": [2], "y": [9]}), ("c", {"z": ["t"]})):
        pq.write_table(pa.table({"ticket_id": [name], "seq": [1], **columns}), tmp_path / f"{name}.parquet")
    found = payloads(read_events(session, str(tmp_path), "parquet"), Mapping(excluded=("seq",)))
    assert found == [("a", 1, {"x": 1}), ("b", 1, {"x": 2, "y": 9}), ("c", 1, {"z": "t"})]
    assert set(present_columns(session, str(tmp_path), "parquet").names) == {"ticket_id", "seq", "x", "y", "z"}
    # And what cannot be one column is refused
    pq.write_table(pa.table({"ticket_id": ["d"], "x": ["text"]}), tmp_path / "d.parquet")
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's
        read_events(session, str(tmp_path), "parquet")
    assert 'Failed to merge incompatible data types "BIGINT" and "STRING"' in str(one_line(failed.value))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            pa.timestamp("ns"),
            r"INT64 \(TIMESTAMP\(NANOS,false\)\), which Spark cannot read: write it with microseconds",
        ),
        # Before Spark 4.2 it says the type of the file.
        (pa.time64("us"), r"(TIME, .*: write it as text|INT64 \(TIME\(MICROS,true\)\), .*: write it as another type)"),
    ],
    ids=["nanoseconds", "time"],
)
def test_a_type_that_spark_cannot_read_is_named_with_its_log(
    session: SparkSession, tmp_path: Path, kind: pa.DataType, said: str
) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"ticket_id": ["A"], "at": pa.array([1], kind)}), path)
    with pytest.raises(InputError, match=f"{re.escape(str(path))} has a column of the type {said}"):
        read_events(session, str(path))


def test_a_csv_that_is_no_utf_8_does_not_make_one_ticket_of_two(session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(b"ticket_id,x\nB\xe9,1\nB\xea,2\nB\xc3\xa9,3\n")
    with pytest.raises(Exception, match="a row is not valid UTF-8") as failed:
        read_events(session, str(path)).select("x").collect()
    assert isinstance(one_line(failed.value), PayloadError)
    rows = read_events(session, str(path), tolerant=True).collect()
    assert [(row["ticket_id"], row["x"]) for row in rows if row[MALFORMED] is None] == [("Bé", "3")]
    assert [row[MALFORMED] for row in rows if row[MALFORMED] is not None] == ["B\ufffd,1", "B\ufffd,2"]
    # Files of another file system, and those to come, are not searched for line ends of another kind.
    path.write_bytes(b"ticket_id,x\nA,1\r\nB,2\n")
    with pytest.raises(Exception, match=r"a row has a cell that ends in a carriage return.*: A,1"):
        read_events(session, f"file://{path}").collect()
    rows = read_events(session, f"file://{path}", tolerant=True).collect()
    assert [row["ticket_id"] for row in rows if row[MALFORMED] is None] == ["B"]
    path.write_bytes(b'ticket_id,x\nA,"1\r"\n')
    assert [row["x"] for row in read_events(session, str(path)).collect()] == ["1\r"]
    path.write_bytes(b"ticket_id,caf\xe9\nA,1\n")
    with pytest.raises(InputError, match="the header of a CSV is not valid UTF-8"):
        read_events(session, str(path))


def test_a_quote_that_is_never_closed_does_not_make_one_row_of_many(session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "day=1" / "log.csv"
    path.parent.mkdir()
    path.write_text('ticket_id,x\nA,"1\nB,2\n')
    for place, tolerant in ((path, False), (tmp_path, True)):
        with pytest.raises(InputError, match=f"the quote that begins a cell in line 2 of {path} is never closed"):
            read_events(session, str(place), "csv", tolerant=tolerant)


def test_a_column_of_a_name_that_is_used_here_is_refused(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("ticket_id,__Malformed\nA,1\n")
    (tmp_path / "log.jsonl").write_text('{"ticket_id": "A", "__row": 1}\n')
    for name in ("log.csv", "log.jsonl"):
        for tolerant in (False, True):
            with pytest.raises(InputError, match="that name is used here, rename it"):
                read_events(session, str(tmp_path / name), tolerant=tolerant)
    with pytest.raises(InputError, match="that name is used here, rename it"):
        follow_events(
            session, str(tmp_path), "csv", columns=declared_columns("ticket_id string, __file string"), files=1
        )


@pytest.mark.parametrize(
    ("header", "said", "tolerant"),
    [
        ("ticket_id,note,note", "has the column 'note' twice", True),
        ("ticket_id,note,Note", "has the columns 'note' and 'Note', which are one", False),
        ("ticket_id,,note", "has a column without a name", True),
        ("ticket_id,note,", "has a column without a name", False),
    ],
)
def test_a_header_that_does_not_name_its_columns_is_refused_by_what_is_wrong(
    session: SparkSession, tmp_path: Path, header: str, said: str, tolerant: bool
) -> None:
    path = tmp_path / "log 1.csv"
    path.write_text(f"{header}\nA,1,2\n")
    with pytest.raises(InputError, match=f"the header of {path} {said}"):
        read_events(session, str(path), tolerant=tolerant)


def test_names_of_columns_that_only_look_as_if_spark_made_them_up_are_names(
    session: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("ticket_id,x1,_c2\nA,1,2\n")
    assert read_events(session, str(path)).columns == ["ticket_id", "x1", "_c2"]


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_a_folder_without_files_is_named_in_the_error(session: SparkSession, tmp_path: Path, kind: str) -> None:
    for name in ("_log.csv", ".log.jsonl"):
        (tmp_path / name).write_text("{}\n")
    for tolerant in (False, True):
        with pytest.raises(InputError, match=r"there is no file in .* \(names that begin with _ or \. are skipped\)"):
            read_events(session, str(tmp_path), kind, tolerant=tolerant)


def test_a_folder_within_a_folder_is_an_error(session: SparkSession, tmp_path: Path) -> None:
    within = tmp_path / "day=1" / "more"
    within.mkdir(parents=True)
    for folder in (tmp_path / "day=1", tmp_path / "_hidden", tmp_path / "empty" / ".git"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log.csv").write_text("ticket_id,n\nA,1\n")
    assert read_events(session, str(tmp_path), "csv").columns == ["ticket_id", "n", "day"]
    (within / "log.csv").write_text("ticket_id,n\nLOST,1\n")
    with pytest.raises(InputError, match=f"the files in {within} would not be read"):
        read_events(session, str(tmp_path), "csv")
    with pytest.raises(InputError, match=f"the files in {within} would not be read"):
        follow_events(session, str(tmp_path), "csv", columns=declared_columns("ticket_id string, n string"), files=1)


def test_a_tolerant_read_keeps_the_text_of_what_cannot_be_read(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("ticket_id,seq,x\nA,1,u\nA,2\nB,3,v\n")
    (tmp_path / "log.jsonl").write_text('{"ticket_id": "A", "seq": 1}\n{"ticket_id": oops\n')
    for name, text in (("log.csv", "A,2"), ("log.jsonl", '{"ticket_id": oops')):
        frame = to_messages(read_events(session, str(tmp_path / name), tolerant=True), Mapping()).frame
        rows = frame.collect()
        assert [row[MALFORMED] for row in rows if row[MALFORMED] is not None] == [text]
        assert [row["ticket_id"] for row in rows if row[MALFORMED] is None] == (["A", "B"] if ".csv" in name else ["A"])


#: What may be behind the object of a line.
BEHIND = ('{"ticket_id": "LOST", "n": 2}', "}}} ]", ', {"ticket_id": "LOST", "n": 2}', "]", "// of the first day")


def test_a_line_with_an_unknown_member_is_not_sent_without_that_member(session: SparkSession) -> None:
    # Spark's reader would leave it out in silence
    columns = StructType.fromDDL(
        "ticket_id string, n long, o struct<x: long>, l array<struct<x: long>>, m map<string, struct<x: long>>"
    )
    assert isinstance(columns, StructType)
    good = ['{"ticket_id": "A", "n": 1, "o": {"x": 1}, "l": [{"x": 1}, null], "m": {"any": {"x": 1}}}', "", " \t"]
    bad = {
        **{good[0] + more: "is not one JSON object and nothing else" for more in BEHIND},
        '{"ticket_id": "A", "n": 2, "later": 3}': "has a member 'later' that is no column",
        '{"o": {"x": 2, "later": 3}}': "has a member 'later' that is no column",
        '{"l": [{}, {"x": 2, "later": null}]}': "has a member 'later' that is no column",
        '{"m": {"any": {"later": 2}}}': "has a member 'later' that is no column",
        '{"n": 1, "n": 2}': "has the member 'n' twice",
        '{"o": {"x": 1, "x": 1}}': "has the member 'x' twice",
        '{"m": {"any": {}, "any": {}}}': "has the member 'any' twice",
        "[1": "is not one JSON object and nothing else",
        '{"n": 1, "o": 2': "is not one JSON object",
    }

    def frame(lines: list[str]) -> DataFrame:
        return session.createDataFrame([(line,) for line in lines], "value string")

    def parsed(lines: list[str], *, tolerant: bool) -> list[Any]:
        found = parsed_lines(frame(lines), columns, tolerant=tolerant).collect()
        return [tuple(row)[:2] + tuple(row)[5:] for row in found]

    assert parsed(good, tolerant=False) == [("A", 1)]
    # One reads them all: planning such a query takes a second of a processor.
    reasons = frame([*good[:1], *bad]).select(what_is_wrong(fn.col("value"), columns)).collect()
    assert reasons[0][0] is None
    for (reason,), said in zip(reasons[1:], bad.values(), strict=True):
        assert said in reason
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's
        parsed([*good, "[1"], tolerant=False)
    error = one_line(failed.value)
    assert isinstance(error, PayloadError)
    assert "a line is not one JSON object and nothing else: [1" in str(error)
    found = parsed([*good, *bad], tolerant=True)
    assert found[0] == ("A", 1, None)
    assert [text for _, _, text in found[1:]] == list(bad)


def test_text_behind_the_object_of_a_line_is_an_error(session: SparkSession, tmp_path: Path) -> None:
    path, first = tmp_path / "log.jsonl", '{"ticket_id": "A", "n": 1}'
    bad = [first + more for more in BEHIND]
    path.write_text("".join(f"{line}\n" for line in (first, *bad, '{"ticket_id": "B", "n": NaN}')))
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's
        # Even of a column that is left out
        read_events(session, str(path)).select("n").collect()
    assert "a line is not one JSON object and nothing else" in str(one_line(failed.value))
    rows = read_events(session, str(path), tolerant=True).collect()
    assert [row[MALFORMED] for row in rows] == [None, *bad, None]
    assert [row["ticket_id"] for row in rows if row[MALFORMED] is None] == ["A", "B"]


def test_a_member_that_comes_twice_is_a_bad_row_of_a_batch_too(session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    twice = '{"ticket_id": "A", "o": {"x": 1, "x": 2}}'
    path.write_text(f'{twice}\n{{"ticket_id": "B", "o": {{"x": 1}}}}\n')
    with pytest.raises(InputError, match="a line has the member 'x' twice"):
        read_events(session, str(path))
    rows = read_events(session, str(path), tolerant=True).collect()
    assert [(row["ticket_id"], row[MALFORMED]) for row in rows][1] == ("B", None)
    assert rows[0][MALFORMED] == twice


def test_a_member_without_a_name_is_a_bad_row(session: SparkSession, tmp_path: Path) -> None:
    # Spark would leave it out in silence
    path = tmp_path / "log.jsonl"
    good = [json.dumps({"ticket_id": "A", "x": text, "o": {"y": ""}}) for text in ('"": 1', '""', "", "\\", '\\"":')]
    good.append(json.dumps({"ticket_id": "A", "o": {'a name that ends with "': 1}}))
    bad = ['{"ticket_id": "B", "": 1}', '{"ticket_id": "C", "x": "", "o": {"y": "z", "" : 1}}']
    path.write_text("".join(f"{line}\n" for line in (*good, *bad)))
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's
        read_events(session, str(path)).collect()
    assert "a line has a member whose name is empty" in str(one_line(failed.value))
    rows = read_events(session, str(path), tolerant=True).collect()
    assert [row[MALFORMED] for row in rows] == [*[None] * len(good), *bad]


def test_lines_keep_the_columns_that_their_folders_name(session: SparkSession, tmp_path: Path) -> None:
    for day in ("2026-11-21", "2026-11-22"):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}" / "log.jsonl").write_text('{"ticket_id": "A", "n": 1}\n')
    found = payloads(read_events(session, str(tmp_path), "json"), Mapping())
    assert found == [("A", 1, {"n": 1, "day": "2026-11-21"}), ("A", 2, {"n": 1, "day": "2026-11-22"})]


def test_a_column_that_files_and_folder_names_have_is_refused(session: SparkSession, tmp_path: Path) -> None:
    # Spark would take the value of the folder's name for that of each row, in silence
    logs = {"csv": "ticket_id,Store\nA,1\n", "json": '{"ticket_id": "A", "Store": "1"}\n'}
    for kind in (*logs, "parquet"):
        folder = tmp_path / kind / "store=007"
        folder.mkdir(parents=True)
        if kind in logs:
            (folder / f"log.{kind}").write_text(logs[kind])
        else:
            pq.write_table(pa.table({"ticket_id": ["A"], "Store": ["1"]}), folder / "log.parquet")
        for tolerant in (False, True):
            with pytest.raises(
                InputError, match="the files have a column 'Store', and their folders' names have it too"
            ):
                read_events(session, str(folder.parent), kind, tolerant=tolerant)
    # As with a member that comes later, the line of a file that is followed is a bad row
    columns = declared_columns("ticket_id string, store string")
    lines = session.createDataFrame([('{"ticket_id": "A", "store": "1"}', "007")], "value string, store string")
    assert parsed_lines(lines, columns, tolerant=True).collect()[0][MALFORMED] is not None


def test_a_line_that_is_no_utf_8_is_not_made_into_another_one(session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"ticket_id": "B\xe9"}\n{"ticket_id": "B\xea"}\n{"ticket_id": "\\ufffd\xef\xbf\xbd"}\n')
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's
        read_events(session, str(path))
    assert "the input cannot be read" in str(one_line(failed.value))
    rows = read_events(session, str(path), tolerant=True).collect()
    assert [row["ticket_id"] for row in rows if row[MALFORMED] is None] == ["\ufffd\ufffd"]


def test_half_of_a_surrogate_pair_does_not_make_one_ticket_of_two(session: SparkSession, tmp_path: Path) -> None:
    # Spark would make a question mark of it
    path = tmp_path / "log.jsonl"
    good = [r"\ud83d\ude00", r"\uD83D\uDE00x", r"\\ud83d", r"\\\ud83d\udE00", r"\ud7ff\ue000", "\U0001f600"]
    bad = [
        r"\ud83d",
        r"T\uDE00",
        r"\ude00\ud83d",
        r"\ud83d\ud83d\ude00",
        r"\ud83d\ude00\ude00",
        r"\\\ud83d",
        r"\\ud83d\ude00",
    ]
    path.write_text("".join(f'{{"ticket_id": "{text}"}}\n' for text in (*good, *bad)))
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's
        read_events(session, str(path)).collect()
    assert "a line has half of a surrogate pair" in str(one_line(failed.value))
    rows = read_events(session, str(path), tolerant=True).collect()
    assert [row[MALFORMED] is not None for row in rows] == [*[False] * len(good), *[True] * len(bad)]
    assert [row["ticket_id"] for row in rows[: len(good)]] == [json.loads(f'"{text}"') for text in good]


def test_a_name_that_looks_like_a_pattern_is_that_of_one_file(session: SparkSession, tmp_path: Path) -> None:
    # Given a name with everything that a pattern may have, and what it would match if one of these were one
    name = "x[1]{1,2}*?%20 1"
    parts = {"[1]": "1", "{1,2}": "1", "*": "yy", "?": "y", "%20": " "}
    others = [name.replace(part, match) for part, match in parts.items()]
    others.append("x11yyy%20 1")
    for place in (name, *others):
        (tmp_path / place).mkdir()
        for file in (name, *others):
            ticket = "A" if place == file == name else "B"
            column_name = "n" if ticket == "A" else "other"
            (tmp_path / place / f"{file}.csv").write_text(f"ticket_id,{column_name}\n{ticket},1\n")
            (tmp_path / place / f"{file}.jsonl").write_text(f'{{"ticket_id": "{ticket}"}}\n')
    # Then it is the name of one file
    for file in (f"{name}.csv", f"{name}.jsonl"):
        events = read_events(session, str(tmp_path / name / file))
        assert [row["ticket_id"] for row in events.collect()] == ["A"]
        assert run_id_of(session, events, Mapping(), stream="s") is not None
    # And that of one folder
    for path in (tmp_path / name).iterdir():
        if path.name != f"{name}.csv":
            path.unlink()
    streamed = follow_events(
        session, str(tmp_path / name), "csv", columns=declared_columns("ticket_id string, n string"), files=1
    )
    query = streamed.writeStream.format("memory").queryName("followed").trigger(availableNow=True).start()
    query.awaitTermination()
    assert {row["ticket_id"] for row in session.table("followed").collect()} == {"A"}
    # And that of a file or folder if nothing else is there
    alone = tmp_path / "alone" / "day=[1]" / "y[1].csv.gz"
    alone.parent.mkdir(parents=True)
    alone.write_bytes(gzip.compress(b'\n"ticket_id","n"\nA,1\n'))
    for given in (alone, tmp_path / "alone"):
        for tolerant in (False, True):
            [row] = read_events(session, str(given), "csv", tolerant=tolerant).collect()
            assert (row["ticket_id"], row["n"]) == ("A", "1")


def test_a_name_with_a_backslash_is_refused_since_spark_cannot_take_it(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "x\\[1].csv").write_text("ticket_id\nA\n")
    with pytest.raises(InputError, match="a path with a backslash cannot be read"):
        read_events(session, str(tmp_path / "x\\[1].csv"))


def test_the_id_of_a_push_depends_on_the_content_not_on_the_path(session: SparkSession, tmp_path: Path) -> None:
    def name(path: Path, mapping: Mapping | None = None, stream: str = "s") -> str | None:
        return run_id_of(session, read_events(session, str(path)), mapping or Mapping(), stream=stream)

    log = tmp_path / "log.csv"
    log.write_text("ticket_id,seq,at,x\nA,1,,u\n")
    known = name(log)
    # The same: a copy of another name and time, tickets that interleave otherwise
    copy = tmp_path / "copy with space.csv"
    copy.write_bytes(log.read_bytes())
    assert name(copy) == known
    assert name(log, Mapping(order="at")) == known
    # Another one: another stream, another mapping, other content, the same content packed
    packed = tmp_path / "log.csv.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    log.write_text("ticket_id,seq,at,x\nA,1,,v\n")
    others = [name(log), name(copy, stream="t"), name(copy, Mapping(task="t")), name(packed)]
    assert known is not None
    assert len({known, *others}) == 5
    # What is not made of files has no name
    session.range(3).createOrReplaceTempView("made_up")
    assert run_id_of(session, read_events(session, "made_up", TABLE), Mapping(key="id"), stream="s") is None


def test_the_names_of_a_folders_files_count_where_they_decide_the_order(session: SparkSession, tmp_path: Path) -> None:
    def name(*files: str) -> str | None:
        folder = tmp_path / "-".join(files)
        folder.mkdir()
        for n, file in enumerate(files):
            (folder / f"{file}.csv").write_text(f"ticket_id,n\nA,{n}\n")
        return run_id_of(session, read_events(session, str(folder), "csv"), Mapping(), stream="s")

    assert name("a", "b") != name("b", "a")


def test_the_values_of_folder_names_are_a_part_of_what_is_pushed(session: SparkSession, tmp_path: Path) -> None:
    def name(folder: str, below: str) -> str | None:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "log.csv").write_text("ticket_id,seq\nA,1\n")
        place = tmp_path / below
        return run_id_of(session, read_events(session, str(place), "csv"), Mapping(), stream="s", below=str(place))

    # The same rows of another day are another push; a folder that gives no column is none of its content
    days = [name("a/day=1", "a"), name("b/day=2", "b"), name("c/day=1/hour=1", "c")]
    assert len({*days, name("day=3/d", "day=3/d")}) == 4
    assert name("day=4/d", "day=4/d") == name("e", "e")
    assert name("f/day=2", "f") == days[1]


def test_a_folder_to_follow_needs_columns(session: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name them with --schema"):
        present_columns(session, str(tmp_path), "csv")
    for wrong in ("no such", "string", ""):
        with pytest.raises(ConfigurationError, match="--schema must be columns with types"):
            declared_columns(wrong)
    events = follow_events(
        session, str(tmp_path), "csv", columns=declared_columns("ticket_id string, n string"), files=1
    )
    with pytest.raises(InputError, match="--follow needs --seq"):
        to_messages(events, Mapping())


@pytest.mark.parametrize("name", ["log.csv", pytest.param("log.jsonl", marks=pytest.mark.long)])
def test_columns_say_when_a_message_is_due(session: SparkSession, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    rows = [
        {"ticket_id": "A", "seq": 1, "n": 1, "at": "1900000000123", "wait": "true"},
        {"ticket_id": "A", "seq": 2, "n": 2, "at": "2030-03-17T17:46:40.123Z", "wait": "false"},
        {"ticket_id": "A", "seq": 3, "n": 3, "at": "", "wait": ""},
        {"ticket_id": "B", "seq": 1, "n": 4, "at": "tomorrow", "wait": ""},
        # Spark takes it for a time of today.
        {"ticket_id": "B", "seq": 2, "n": 5, "at": "12:30", "wait": ""},
        {"ticket_id": "B", "seq": 3, "n": 6, "at": " T1:30:00.5+01:00", "wait": ""},
    ]
    if name.endswith("csv"):
        lines = [",".join(map(str, row.values())) for row in rows]
        path.write_text("\n".join([",".join(rows[0]), *lines]) + "\n")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = to_messages(read_events(session, str(path)), Mapping(due_column="at", hold_column="wait"))
    good, bad = split_rejects(made.frame, key=made.key, sequence=made.sequence, checks=made.checks(1000))
    found = [(row["due"], row["hold"], json.loads(row["payload"])) for row in good.orderBy("seq").collect()]
    assert [(due, str(int(payload["n"]))) for due, _, payload in found] == [
        ("1900000000123", "1"),
        ("1900000000123", "2"),
        (None, "3"),
    ]
    assert [hold for _, hold, _ in found] == ["true", "false", ""]
    assert all(set(payload) == {"seq", "n"} for _, _, payload in found), "they are no part of the payload"
    wanted = "a time, or milliseconds since 1970, at most 100 years ahead"
    said = f"due of ticket 'B' is no option: it must be {wanted}"
    assert [row["reason"] for row in bad.collect()] == [said] * 3
    with pytest.raises(ConfigurationError, match="--hold-column needs --due-column"):
        Mapping(hold_column="wait")


def nested(levels: int, opening: str = "[", closing: str = "]") -> str:
    return opening * levels + "1" + closing * levels


#: Payloads that masters take, and what Spark says of others; None: that they are not JSON.
TAKEN = (
    *("1", "-0.5e-400", f"0.{'1' * 400}", f"{'9' * 308}", "[1.7e308, 1]", '"1e400"', f'"{"9" * 400}"', " null "),
    *(nested(200), nested(100, '[{"a": ', "}]"), f"[{'[],' * 300}1]", f'"{"[" * 300}"', rf'["\\\"{"[" * 300}", 1]'),
    *(r'["\\", "\\\\", 1]', r'"é\ud83d\ude00"'),
)
LARGE, DEEP = "has a number that is too large", "is nested more than 200 levels deep"
REFUSED_PAYLOADS = {
    **dict.fromkeys(
        ("1e400", "[-1e309]", "9" * 309, f"{'9' * 300}e10", '{"a": 1E+000400}', "17.5e999999999999"), LARGE
    ),
    **dict.fromkeys((r'["\\", 1e400]', r'["\"", 1e400, "\\"]'), LARGE),
    **dict.fromkeys((nested(201), nested(101, '[{"a": ', "}]"), nested(900), rf'["\\", {nested(200)}]'), DEEP),
    **dict.fromkeys(("", "1 2", "[1,]", "{", "NaN", "[01]", "'a'", r'"\ud800"', "[1]]"), None),
}


def test_a_payload_that_masters_refuse_is_a_bad_row(session: SparkSession) -> None:
    every = [*TAKEN, *REFUSED_PAYLOADS]
    rows = session.createDataFrame([(text, text) for text in every], "ticket_id string, payload string")
    rows = rows.withColumn("ticket_id", fn.lit("A"))
    why = refusal(rows, key="ticket_id", checks=Checks(["payload"], json=True))
    found = [row[0] for row in rows.select(why).collect()]
    parser = EntryParser(default_task="t", max_payload=1 << 20, known_tasks=["t"])
    for text, reason in zip(every, found, strict=True):
        read = parser.parse("1-0", [b"ticket_id", b"A", b"payload", text.encode()])
        expected = None if text in TAKEN else f"the payload of ticket 'A' {REFUSED_PAYLOADS[text] or 'is not JSON'}"
        assert (reason, isinstance(read, Message)) == (expected, text in TAKEN), text[:40]


def test_a_payload_that_is_made_of_a_deep_column_is_checked_too(session: SparkSession) -> None:
    for levels, bad in ((199, 0), (200, 1)):
        events = session.sql(f"select 'A' ticket_id, 1 seq, {'array(' * levels}1{')' * levels} x")
        made = to_messages(events, Mapping(excluded=("seq",)))
        _, rejected = split_rejects(made.frame, key=made.key, sequence=made.sequence, checks=made.checks(1 << 20))
        assert [row["reason"] for row in rejected.collect()] == [f"the payload of ticket 'A' {DEEP}"] * bad


def refused_by_the_writer(batch: pa.RecordBatch) -> str:
    """What the writer refuses in a batch; ``None`` as text: nothing."""
    try:
        check_tasks(batch, batch["ticket_id"], ["task", "due", "hold"])
        as_fields(batch, "ticket_id", ("due", "hold"))
    except PayloadError as error:
        return str(error).partition(" is ")[0]
    return "None"


#: Values of every kind for the columns that are options.
VALUES: dict[str, list[Any]] = {
    "string": ["", "1", "TRUE", "false", "yes", "1\n", "-1", "9" * 14, "9" * 30, "1900000000123", None],
    "binary": [b"1", b"true", b"\xff", b"1900000000123", None],
    "bigint": [0, 1, 2, -1, 1_900_000_000_123, 10**13, 2**62, None],
    "boolean": [True, False, None],
    "timestamp": [datetime(2030, 3, 17, tzinfo=UTC), datetime(1960, 1, 1, tzinfo=UTC), None],
}
DUE_KINDS, HOLD_KINDS = ("string", "binary", "bigint", "timestamp"), ("bigint", "string", "boolean", "binary")


@pytest.mark.parametrize(
    "kinds",
    [
        # Each kind of the one column, and of the other one: they are looked at one by one.
        [*zip(DUE_KINDS, HOLD_KINDS, strict=True)],
        pytest.param([*product(DUE_KINDS, HOLD_KINDS)], marks=pytest.mark.long),
    ],
    ids=["each", "all"],
)
def test_what_the_writer_refuses_is_found_before_anything_is_written(
    session: SparkSession, kinds: list[tuple[str, str]]
) -> None:
    # Given rows with every kind of value in the columns that are options, and tickets as a file may have them
    for kind, (due, hold) in enumerate(kinds):
        every = [(f"T{kind}", *pair) for pair in product(VALUES[due], VALUES[hold])]
        rows = session.createDataFrame(every, f"ticket_id string, due {due}, hold {hold}")
        text = "binary" if kind % 2 else "string"
        rows = rows.withColumn("task", fn.explode(fn.array(*(fn.lit(task).cast(text) for task in (None, "t", "")))))
        why = refusal(rows, key="ticket_id", checks=Checks(["task", "due", "hold"], 1000)).alias("why")
        # When Spark says which can be written, and the writer looks at each by itself
        table = rows.select(*map(column, ("ticket_id", "task", "due", "hold")), why).toArrow()
        found = [str(reason).partition(" is ")[0] for reason in table["why"].to_pylist()]
        # Then they agree
        assert found == [refused_by_the_writer(batch) for batch in table.to_batches(max_chunksize=1)]
    for text in ("string", "binary"):
        odd = session.sql(f"select cast(x'41ff' as {text}) as ticket_id")
        assert odd.select(refusal(odd, key="ticket_id")).collect()[0][0] == "a ticket is not valid UTF-8"


def test_an_empty_task_is_none(session: SparkSession) -> None:
    events = session.sql("select 'A' ticket_id, 1 seq, task from values (''), (null), ('t') as t(task)")
    tasks = [row["task"] for row in to_messages(events, Mapping(task_column="task")).frame.collect()]
    assert tasks == [None, None, "t"]
