"""A log, a table or files without a sequence as messages: what each column becomes, and what orders a ticket."""

from __future__ import annotations

import gzip
import json
import re
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from bridge.routing.errors import ConfigurationError, InputError, PayloadError
from bridge.spark.job.eventlog import TABLE, declared_columns, follow_events, present_columns, read_events
from bridge.spark.job.failures import one_line
from bridge.spark.job.json_lines import parsed_lines, what_is_wrong
from bridge.spark.job.log_columns import MALFORMED
from bridge.spark.pushing.messages import Mapping, parse_map, to_messages
from bridge.spark.pushing.rejects import first_reasons
from bridge.spark.pushing.run_id import run_id_of
from bridge.spark.write.columns import column
from bridge.spark.write.message_options import as_fields
from bridge.spark.write.rejects import Checks, refusal, split_rejects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    for name, first in (("b", 3), ("a", 1), ("c", 5)):
        (tmp_path / f"{name}.csv").write_text(f"ticket_id,n\nA,{first}\nA,{first + 1}\n")
    found = payloads(read_events(session, str(tmp_path), "csv"), Mapping())
    assert [payload["n"] for _, _, payload in found] == ["1", "2", "3", "4", "5", "6"]


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


def test_a_sequence_of_times_is_exact_to_the_microsecond(session: SparkSession) -> None:
    events = session.sql(
        "select 'A' ticket_id, timestamp'2024-01-01 00:00:00.000002' at, 1 n "
        "union all select 'A', timestamp'2024-01-01 00:00:00.000001', 2"
    )
    found = payloads(events, Mapping(seq="at"))
    assert [(place, payload["n"]) for _, place, payload in found] == [(1704067200000001, 2), (1704067200000002, 1)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("date'2024-01-02'", 1704153600000000),
        ("timestamp_ntz'2024-01-02 00:00:00.000001'", 1704153600000001),
        ("2.0D", 2),
        ("cast(2 as decimal(5, 2))", 2),
        ("cast(2.5 as decimal(5, 2))", None),
        ("cast(2.5 as float)", None),
        ("1e300D", None),
        ("cast(2 as tinyint)", 2),
        ("' 7'", 7),
        ("'2.5'", None),
    ],
)
def test_a_sequence_is_a_whole_number_or_a_time_and_nothing_is_cut_off(
    session: SparkSession, value: str, expected: int | None
) -> None:
    events = session.sql(f"select 'A' ticket_id, {value} at, 1 n")
    found = to_messages(events, Mapping(seq="at"))
    assert [row["at"] for row in found.frame.collect()] == [expected]


def test_a_key_or_sequence_column_of_a_wrong_type_is_refused(session: SparkSession) -> None:
    events = session.sql("select 'A' ticket_id, 1 seq, true yes, struct(1 x) o, array(1) l, map('a', 1) m, 1 n")
    for name, kind in (("yes", "boolean"), ("o", "struct<x:int>"), ("l", "array<int>")):
        with pytest.raises(InputError, match=f"--seq: the column '{name}' is {kind}: whole numbers or times order"):
            to_messages(events, Mapping(seq=name))
    for name in ("o", "l", "m"):
        with pytest.raises(InputError, match=f"--key: the column '{name}' holds objects or lists"):
            to_messages(events, Mapping(key=name))
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


def test_keys_of_a_map_that_are_no_text_are_refused_wherever_the_map_is(session: SparkSession) -> None:
    for place, key in product(PLACES, ODD_KEYS):
        events = session.sql(f"select 'A' ticket_id, 1 seq, 2 n, {place.format(f'map({key}, 1)')} odd")
        said = re.escape(f"the column 'odd' has a map whose keys are {ODD_KEYS[key]}")
        for mapping in (Mapping(), Mapping(renamed=(("m", "odd"),)), Mapping(payload_column="odd")):
            with pytest.raises(InputError, match=said):
                to_messages(events, mapping)
        assert payloads(events, Mapping(excluded=("odd", "seq"))) == [("A", 1, {"n": 2})]
        # As the line advises
        if place == "{}":
            texts = events.withColumn("odd", fn.expr("transform_keys(odd, (k, v) -> string(k))"))
            assert len(payloads(texts, Mapping(payload_column="odd"))) == 1


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


def test_a_csv_that_is_no_utf_8_does_not_make_one_ticket_of_two(session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(b"ticket_id,x\nB\xe9,1\nB\xea,2\nB\xc3\xa9,3\n")
    with pytest.raises(Exception, match="a row is not valid UTF-8") as failed:
        read_events(session, str(path)).select("x").collect()
    assert isinstance(one_line(failed.value), PayloadError)
    rows = read_events(session, str(path), tolerant=True).collect()
    assert [(row["ticket_id"], row["x"]) for row in rows if row[MALFORMED] is None] == [("Bé", "3")]
    assert [row[MALFORMED] for row in rows if row[MALFORMED] is not None] == ["B\ufffd,1", "B\ufffd,2"]
    path.write_bytes(b"ticket_id,caf\xe9\nA,1\n")
    with pytest.raises(InputError, match="the header of a CSV is not valid UTF-8"):
        read_events(session, str(path))


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
    ("header", "said"),
    [
        ("ticket_id,note,note", "has the column 'note' twice"),
        ("ticket_id,note,Note", "has the columns 'note' and 'Note', which are one"),
        ("ticket_id,,note", "has a column without a name"),
        ("ticket_id,note,", "has a column without a name"),
    ],
)
def test_a_header_that_does_not_name_its_columns_is_refused_by_what_is_wrong(
    session: SparkSession, tmp_path: Path, header: str, said: str
) -> None:
    path = tmp_path / "log 1.csv"
    path.write_text(f"{header}\nA,1,2\n")
    for tolerant in (False, True):
        with pytest.raises(InputError, match=f"the header of {path} {said}"):
            read_events(session, str(path), tolerant=tolerant)
    # Names that only look as if they were made up are names
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


def test_a_line_with_an_unknown_member_is_not_sent_without_that_member(session: SparkSession) -> None:
    # Spark's reader would leave it out in silence
    columns = StructType.fromDDL(
        "ticket_id string, n long, o struct<x: long>, l array<struct<x: long>>, m map<string, struct<x: long>>"
    )
    assert isinstance(columns, StructType)
    good = ['{"ticket_id": "A", "n": 1, "o": {"x": 1}, "l": [{"x": 1}, null], "m": {"any": {"x": 1}}}', "", " \t"]
    bad = {
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


@pytest.mark.parametrize(
    "more",
    ['{"ticket_id": "LOST", "n": 2}', "}}} ]", ', {"ticket_id": "LOST", "n": 2}', "]", "// of the first day"],
    ids=["object", "closed", "listed", "list-closed", "comment"],
)
def test_text_behind_the_object_of_a_line_is_an_error(session: SparkSession, tmp_path: Path, more: str) -> None:
    path, first = tmp_path / "log.jsonl", '{"ticket_id": "A", "n": 1}'
    path.write_text(f'{first}\n{first}{more}\n{{"ticket_id": "B", "n": NaN}}\n')
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's
        # Even of a column that is left out
        read_events(session, str(path)).select("n").collect()
    assert "a line is not one JSON object and nothing else" in str(one_line(failed.value))
    rows = read_events(session, str(path), tolerant=True).collect()
    assert [row[MALFORMED] for row in rows] == [None, first + more, None]
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


def test_a_line_that_is_no_utf_8_is_not_made_into_another_one(session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"ticket_id": "B\xe9"}\n{"ticket_id": "B\xea"}\n{"ticket_id": "\\ufffd\xef\xbf\xbd"}\n')
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's
        read_events(session, str(path))
    assert "the input cannot be read" in str(one_line(failed.value))
    rows = read_events(session, str(path), tolerant=True).collect()
    assert [row["ticket_id"] for row in rows if row[MALFORMED] is None] == ["\ufffd\ufffd"]


@pytest.mark.parametrize("name", ["x[1]", "x{1,2}", "x*", "x?", "x%20 1"])
def test_a_name_that_looks_like_a_pattern_is_that_of_one_file(session: SparkSession, tmp_path: Path, name: str) -> None:
    for place, ticket in ((tmp_path / name, "A"), (tmp_path / "x1", "B"), (tmp_path / "x 1", "B")):
        place.mkdir()
        (place / f"{name}.csv").write_text(f"ticket_id,n\n{ticket},1\n")
        (place / "x1.csv").write_text("ticket_id,n\nB,1\n")
        (place / f"{name}.jsonl").write_text(f'{{"ticket_id": "{ticket}"}}\n')
    for file in (f"{name}.csv", f"{name}.jsonl"):
        events = read_events(session, str(tmp_path / name / file))
        assert [row["ticket_id"] for row in events.collect()] == ["A"]
        assert run_id_of(session, events, Mapping(), stream="s") is not None
    (tmp_path / name / f"{name}.jsonl").unlink()
    (tmp_path / name / "x1.csv").unlink()
    streamed = follow_events(
        session, str(tmp_path / name), "csv", columns=declared_columns("ticket_id string, n string"), files=1
    )
    query = streamed.writeStream.format("memory").queryName("followed").trigger(availableNow=True).start()
    query.awaitTermination()
    assert {row["ticket_id"] for row in session.table("followed").collect()} == {"A"}


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


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl"])
def test_columns_say_when_a_message_is_due(session: SparkSession, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    rows = [
        {"ticket_id": "A", "seq": 1, "n": 1, "at": "1900000000123", "wait": "true"},
        {"ticket_id": "A", "seq": 2, "n": 2, "at": "2030-03-17T17:46:40.123Z", "wait": "false"},
        {"ticket_id": "A", "seq": 3, "n": 3, "at": "", "wait": ""},
        {"ticket_id": "B", "seq": 1, "n": 4, "at": "tomorrow", "wait": ""},
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
    [row] = bad.collect()
    wanted = "a time, or milliseconds since 1970, at most 100 years ahead"
    assert row["reason"] == f"due of ticket 'B' is no option: it must be {wanted}"
    with pytest.raises(ConfigurationError, match="--hold-column needs --due-column"):
        Mapping(hold_column="wait")


def refused_by_the_writer(batch: pa.RecordBatch) -> str:
    """What the writer refuses in a batch; ``None`` as text: nothing."""
    try:
        as_fields(batch, "ticket_id", ("due", "hold"))
    except PayloadError as error:
        return str(error).partition(" is ")[0]
    return "None"


def test_what_the_writer_refuses_is_found_before_anything_is_written(session: SparkSession) -> None:
    # Given rows with every kind of value in the columns that are options, and tickets as a file may have them
    values: dict[str, list[Any]] = {
        "string": ["", "1", "TRUE", "false", "yes", "1\n", "-1", "9" * 14, "9" * 30, "1900000000123", None],
        "binary": [b"1", b"true", b"\xff", b"1900000000123", None],
        "bigint": [0, 1, 2, -1, 1_900_000_000_123, 10**13, 2**62, None],
        "boolean": [True, False, None],
        "timestamp": [datetime(2030, 3, 17, tzinfo=UTC), datetime(1960, 1, 1, tzinfo=UTC), None],
    }
    kinds = [(due, hold) for due in values if due != "boolean" for hold in values if hold != "timestamp"]
    for kind, (due, hold) in enumerate(kinds):
        every = [(f"T{kind}", *pair) for pair in product(values[due], values[hold])]
        rows = session.createDataFrame(every, f"ticket_id string, due {due}, hold {hold}")
        why = refusal(rows, key="ticket_id", checks=Checks(["due", "hold"], 1000)).alias("why")
        # When Spark says which can be written, and the writer looks at each by itself
        table = rows.select(column("ticket_id"), column("due"), column("hold"), why).toArrow()
        found = [str(reason).partition(" is ")[0] for reason in table["why"].to_pylist()]
        # Then they agree
        assert found == [refused_by_the_writer(batch) for batch in table.to_batches(max_chunksize=1)]
    for text in ("string", "binary"):
        odd = session.sql(f"select cast(x'41ff' as {text}) as ticket_id")
        assert odd.select(refusal(odd, key="ticket_id")).collect()[0][0] == "a ticket is not valid UTF-8"
