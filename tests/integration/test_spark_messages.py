"""A log, a table or files without a sequence as messages: what becomes of each column, and what orders a ticket."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from routing.errors import ConfigurationError, InputError, PayloadError
from spark.eventlog import MALFORMED, TABLE, follow_events, parsed_lines, read_events
from spark.failures import one_line
from spark.messages import Mapping, parse_map, to_messages
from spark.run_id import run_id_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def payloads(events: DataFrame, mapping: Mapping) -> list[tuple[str, int | None, Any]]:
    """Ticket, sequence and payload of each message, by ticket and sequence."""
    found = to_messages(events, mapping)
    rows = found.frame.select(found.key, f"`{found.sequence}`", "payload").collect()
    told = [(row[0], row[1], json.loads(row[2])) for row in rows]
    return sorted(told, key=lambda row: (row[0], row[1] is not None, row[1] or 0))


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
    told = one_line(failed.value)
    assert "\n" not in str(told)


def test_a_tolerant_read_keeps_the_text_of_what_cannot_be_read(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("ticket_id,seq,x\nA,1,u\nA,2\nB,3,v\n")
    (tmp_path / "log.jsonl").write_text('{"ticket_id": "A", "seq": 1}\n{"ticket_id": oops\n')
    for name, text in (("log.csv", "A,2"), ("log.jsonl", '{"ticket_id": oops')):
        frame = to_messages(read_events(session, str(tmp_path / name), tolerant=True), Mapping()).frame
        rows = frame.collect()
        assert [row[MALFORMED] for row in rows if row[MALFORMED] is not None] == [text]
        assert [row["ticket_id"] for row in rows if row[MALFORMED] is None] == (["A", "B"] if ".csv" in name else ["A"])


def test_a_line_with_a_member_that_nobody_knows_is_not_sent_without_it(session: SparkSession) -> None:
    # Spark's reader would leave it out in silence
    columns = StructType.fromDDL("ticket_id string, n long")
    assert isinstance(columns, StructType)
    good, new, broken = ['{"ticket_id": "A", "n": 1}', ""], '{"ticket_id": "A", "n": 2, "later": 3}', "[1"

    def parsed(lines: list[str], *, tolerant: bool) -> list[Any]:
        frame = session.createDataFrame([(line,) for line in lines], "value string")
        return [tuple(row) for row in parsed_lines(frame, columns, tolerant=tolerant).collect()]

    assert parsed(good, tolerant=False) == [("A", 1)]
    for line, kind, said in ((new, PayloadError, "a member 'later' that is no column"), (broken, InputError, "cannot")):
        with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's
            parsed([*good, line], tolerant=False)
        told = one_line(failed.value)
        assert isinstance(told, kind)
        assert said in str(told)
    assert parsed([*good, new, broken], tolerant=True) == [("A", 1, None), ("A", 2, new), (None, None, broken)]


def test_a_push_is_known_by_what_it_pushes_not_by_where_it_lies(session: SparkSession, tmp_path: Path) -> None:
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


def test_a_folder_to_follow_needs_columns(session: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name them with --schema"):
        follow_events(session, str(tmp_path), "csv", schema=None, files=1)
    for wrong in ("no such", "string", ""):
        with pytest.raises(ConfigurationError, match="--schema must be columns with types"):
            follow_events(session, str(tmp_path), "csv", schema=wrong, files=1)
    events = follow_events(session, str(tmp_path), "csv", schema="ticket_id string, n string", files=1)
    with pytest.raises(InputError, match="--follow needs --seq"):
        to_messages(events, Mapping())
