"""The jobs with a real Spark: pushing a log, and the states that its incidents must end in."""

from __future__ import annotations

import csv
import gzip
import json
import os
import zlib
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bridge.routing.errors import ConfigurationError, InputError, PayloadError
from bridge.spark.generate import incident_log, write_log
from bridge.spark.incidents import expected_states, write_states
from bridge.spark.job.eventlog import read_events
from bridge.spark.job.failures import one_line
from bridge.spark.push import main
from bridge.spark.pushing.messages import Mapping, to_messages
from bridge.spark.write.order import in_ticket_order
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.process import ROOT
from tests.integration.spark.spark_jobs import JobsHere, refused
from tests.integration.spark.spark_session import DEALT_OUT, session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("nothing_runs_on")]

STREAM = "ticket_stream"
#: A real incident log of the same columns, where there is one.
REAL_LOG = os.environ.get("TICKET_BRIDGE_INCIDENT_LOG", "")

Row = dict[str, str]
State = dict[str, str]


@pytest.fixture(scope="module")
def session() -> SparkSession:
    return session_of(conf=DEALT_OUT)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return incident_log(3000, 500, seed=11)


@pytest.fixture(scope="module")
def log(rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "events.csv.gz"
    write_log(rows, path)
    return path


def test_workers_import_pyspark_from_where_it_is_installed(session: SparkSession) -> None:
    """Not from the archive in Spark's home, which each process would compile again."""

    def origin(_: Iterable[int]) -> list[str]:
        import pyspark

        return [pyspark.__file__]

    import pyspark

    found = session.sparkContext.parallelize([1, 2], 2).mapPartitions(origin).collect()
    assert set(found) == {pyspark.__file__}


def messages(server: EmbeddedServer, stream: str = STREAM) -> list[tuple[str, Any]]:
    """Ticket and payload of each entry, in stream order."""
    with server.client() as client:
        entries = client.xrange(stream)
    return [(fields[b"ticket_id"].decode(), json.loads(fields[b"payload"])) for _, fields in entries]


def test_the_values_of_folder_names_are_texts(jobs_here: JobsHere, valkey: EmbeddedServer, tmp_path: Path) -> None:
    # Given two stores whose names are one number
    for store in ("007", "7"):
        (tmp_path / f"store={store}").mkdir()
        (tmp_path / f"store={store}" / "log.csv").write_text("seq,note\n1,x\n")
    jobs_here(main, tmp_path, "--format", "csv", "--url", valkey.url, "--key", "store")
    assert sorted(ticket for ticket, _ in messages(valkey)) == ["007", "7"]


def per_ticket(events: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for ticket, payload in events:
        found[ticket].append(payload)
    return found


def folded(events: list[Row]) -> State:
    """The final state of one incident, event by event: what the Spark job computes another way."""
    state = {"reassignments": 0, "reopenings": 0, "sla_seconds": 0, "digest": 0}
    done = ("Resolved", "Closed")
    for before, event in pairwise([None, *events]):
        assert event is not None
        if before is not None:
            state["reassignments"] += event["assignment_group"] != before["assignment_group"]
            state["reopenings"] += before["activity"] in done and event["activity"] not in done
            runs = before["activity"] not in done and not before["activity"].startswith("Awaiting")
            if runs and before["timestamp"] and event["timestamp"]:
                passed = datetime.fromisoformat(event["timestamp"]) - datetime.fromisoformat(before["timestamp"])
                state["sla_seconds"] += max(0, int(passed.total_seconds()))
        text = "|".join((event["seq"], event["activity"], event["assignment_group"], event["timestamp"]))
        state["digest"] = (state["digest"] * 31 + zlib.crc32(text.encode())) % 2**32
    last = events[-1]
    return {
        "seq": last["seq"],
        "events": str(len(events)),
        "status": last["activity"],
        "assignment_group": last["assignment_group"],
        "updated_at": last["timestamp"],
        **{name: last[name] for name in ("opened_at", "priority", "made_sla")},
        **{name: str(value) for name, value in state.items()},
    }


def states_by_fold(rows: Iterable[Row]) -> dict[str, State]:
    tickets = per_ticket((row["ticket_id"], row) for row in rows)
    return {ticket: folded(sorted(events, key=lambda row: int(row["seq"]))) for ticket, events in tickets.items()}


def states_by_spark(session: SparkSession, path: Path) -> dict[str, State]:
    collected = expected_states(read_events(session, str(path))).collect()
    return {row["ticket_id"]: row["state"].asDict() for row in collected}


def test_a_pushed_log_is_all_there_in_order_and_its_payloads_round_trip(
    jobs_here: JobsHere, valkey: EmbeddedServer, log: Path, rows: list[Row]
) -> None:
    # When the job pushes the log
    lines = jobs_here(main, log, "--url", valkey.url, "--order", "timestamp")
    # Then it says so
    assert (lines[0]["event"], lines[0]["partitions"]) == ("started", 2)
    assert (lines[-1]["event"], lines[-1]["rows"]) == ("done", len(rows))
    # And every event is there once, its payload the other columns as they are in the file, in the ticket's order
    expected = per_ticket(
        (row["ticket_id"], {name: value for name, value in row.items() if name != "ticket_id"}) for row in rows
    )
    assert per_ticket(messages(valkey)) == expected


def test_tickets_interleave_by_time_within_a_partition(
    session: SparkSession, valkey: EmbeddedServer, log: Path, rows: list[Row]
) -> None:
    push(session, valkey, log, order="timestamp", partitions=1)
    times = [payload["timestamp"] for _, payload in messages(valkey)]
    assert times == [row["timestamp"] for row in rows]


def push(
    session: SparkSession,
    server: EmbeddedServer,
    path: Path,
    *,
    order: str | None = None,
    partitions: int = 2,
    task: str | None = None,
    task_column: str | None = None,
) -> None:
    mapping = Mapping(order=order, task=task, task_column=task_column)
    found = to_messages(read_events(session, str(path)), mapping)
    ordered = in_ticket_order(
        found.frame, key=found.key, sequence=found.sequence, time=found.time, partitions=partitions
    )
    (
        ordered.write.format("redisstream")
        .mode("append")
        .options(url=server.url, stream=STREAM, seqColumn=found.sequence, fields=",".join(found.fields))
        .save()
    )


@pytest.mark.parametrize("time", [None, "timestamp"])
def test_each_ticket_is_whole_in_one_of_exactly_as_many_partitions_as_asked_for(
    session: SparkSession, log: Path, time: str | None
) -> None:
    from pyspark.sql import functions as fn

    events = read_events(session, str(log)).withColumn("seq", fn.col("seq").cast("long"))
    ordered = in_ticket_order(events, key="ticket_id", sequence="seq", partitions=5, time=time)
    placed = [
        (row["ticket_id"], row["partition"], row["seq"])
        for row in ordered.select("ticket_id", "seq", fn.spark_partition_id().alias("partition")).collect()
    ]
    assert {partition for _, partition, _ in placed} == set(range(5))
    assert len({(ticket, partition) for ticket, partition, _ in placed}) == 500
    tickets = per_ticket((ticket, seq) for ticket, _, seq in placed)
    assert all(seqs == sorted(seqs) for seqs in tickets.values())


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"sequence": "text"}, "sequence: 'text' is string, not a whole number; cast it to long"),
        ({"sequence": "part"}, "sequence: 'part' is double, not a whole number"),
        ({"sequence": "Seq"}, "sequence: there is no column 'Seq'; did you mean seq?"),
        ({"key": "Ticket_ID"}, "key: there is no column 'Ticket_ID'; did you mean ticket_id?"),
        ({"time": "when"}, "time: there is no column 'when'"),
    ],
)
def test_a_column_that_would_order_wrongly_is_refused_at_once(
    session: SparkSession, columns: dict[str, str], said: str
) -> None:
    rows = session.createDataFrame([], "ticket_id string, seq long, text string, part double")
    given: dict[str, Any] = {"key": "ticket_id", "sequence": "seq", "partitions": 2, **columns}
    with pytest.raises(ConfigurationError, match=said):
        in_ticket_order(rows, **given)


def test_inside_a_ticket_the_sequence_decides_and_not_the_times(
    session: SparkSession, valkey: EmbeddedServer, tmp_path: Path
) -> None:
    # Given a ticket whose times tie, go back and are unreadable, and numbers that text would sort wrongly
    times = ["09:00", "09:00", "08:00", "", "12:00", "nonsense", "07:00", "12:00", "12:00", "12:00", "10:00"]
    lines = [f"A,{seq},{'' if not time else f'2024-01-01T{time}:00'}" for seq, time in enumerate(times, start=1)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["ticket_id,seq,timestamp", *reversed(lines), "B,1,2024-01-01T08:30:00"]) + "\n")
    # When it is pushed in the order of its times
    push(session, valkey, path, order="timestamp", partitions=1)
    # Then its own order is that of seq
    found = messages(valkey)
    assert [int(payload["seq"]) for ticket, payload in found if ticket == "A"] == list(range(1, 12))
    # And the other ticket came first, as its time says
    assert found[0][0] == "B"


def test_types_of_json_lines_survive_and_absent_values_stay_absent(
    session: SparkSession, valkey: EmbeddedServer, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    given = [
        {"ticket_id": "A", "seq": 10, "n": {"list": [1, 2]}, "yes": True},
        {"ticket_id": "A", "seq": 9, "text": 'ü "quoted"\n'},
    ]
    path.write_text("".join(json.dumps(event) + "\n" for event in given))
    push(session, valkey, path)
    assert messages(valkey) == [
        ("A", {"seq": 9, "text": 'ü "quoted"\n'}),
        ("A", {"seq": 10, "n": {"list": [1, 2]}, "yes": True}),
    ]


def test_cells_of_a_csv_are_strings_as_they_are_in_the_file(
    session: SparkSession, valkey: EmbeddedServer, tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    path.write_text('ticket_id,seq,a.b,kind\nT,1,"line\nbreak, ""quote""",t.one\nT,2,,\nT,3, 007 ,t.two\n')
    push(session, valkey, path, task_column="kind")
    assert [payload for _, payload in messages(valkey)] == [
        {"seq": "1", "a.b": 'line\nbreak, "quote"'},
        {"seq": "2", "a.b": ""},
        {"seq": "3", "a.b": " 007 "},
    ]
    with valkey.client() as client:
        assert [fields.get(b"task") for _, fields in client.xrange(STREAM)] == [b"t.one", None, b"t.two"]


def test_parquet_is_read_like_the_rest(
    session: SparkSession, valkey: EmbeddedServer, log: Path, rows: list[Row], tmp_path: Path
) -> None:
    read_events(session, str(log)).write.parquet(str(tmp_path / "log.parquet"))
    push(session, valkey, tmp_path / "log.parquet", task="tasks.x")
    assert len(messages(valkey)) == len(rows)
    with valkey.client() as client:
        assert client.xrange(STREAM, count=1)[0][1][b"task"] == b"tasks.x"


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("ticket_id,seq,x\nA,1\n", InputError, "the input cannot be read"),
        ("ticket_id,seq,x\nA,one,\n", PayloadError, "ticket 'A' has a row whose seq is not a whole number"),
        ("ticket_id,seq,x\nA,1,\nA,1,\n", PayloadError, "seq does not rise within ticket 'A'"),
        ("ticket_id,seq,x\n,1,\n", PayloadError, "empty ticket"),
        ("id,seq,x\nA,1,\n", InputError, "--key: the log has no column 'ticket_id'"),
    ],
    ids=["short-row", "no-number", "tie", "no-ticket", "no-column"],
)
def test_a_log_that_cannot_be_pushed_is_one_line_and_leaves_nothing(
    session: SparkSession, valkey: EmbeddedServer, tmp_path: Path, text: str, kind: type[Exception], said: str
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's; one_line reads it
        push(session, valkey, path)
    error = one_line(failed.value)
    assert isinstance(error, kind)
    assert said in str(error)
    assert "\n" not in str(error)
    assert messages(valkey) == []


def test_states_equal_an_independent_fold(session: SparkSession, log: Path, rows: list[Row], tmp_path: Path) -> None:
    out = tmp_path / "states.jsonl"
    states = states_by_fold(rows)
    urgent = ("1 - Critical", "2 - High")
    assert write_states(expected_states(read_events(session, str(log)), urgent), str(out)) == len(states)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["ticket_id"] for line in lines] == sorted(states)
    assert {line["ticket_id"]: line["state"] for line in lines} == states
    seqs = per_ticket((row["ticket_id"], int(row["seq"])) for row in rows if row["priority"] in urgent)
    assert {line["ticket_id"]: line["seqs"] for line in lines if line["seqs"]} == {
        ticket: sorted(found) for ticket, found in seqs.items()
    }
    assert seqs


def test_states_of_awkward_events_equal_an_independent_fold(session: SparkSession, tmp_path: Path) -> None:
    # Given time that runs back, empty cells, unicode, states that only look done or waiting, and rows out of order
    columns = "ticket_id,seq,activity,assignment_group,timestamp,opened_at,priority,made_sla"
    events = [
        ("A", "New", "ü", "2024-03-31T01:30:00"),
        ("A", "New", "", "2024-03-31T03:30:00"),
        ("A", "Awaiting", "", "2024-03-31T03:00:00"),
        ("A", "awaiting x", "g|h", "2024-04-01T00:00:00"),
        ("A", "Resolved", "g|h", "2024-04-02T00:00:00"),
        ("A", "Closed", "?", "2024-04-03T00:00:00"),
        ("A", "New", "?", "2024-04-03T00:00:59"),
        ("A", "Resolvedly", "x", "2024-04-04T00:00:00"),
        ("A", "Closed", "x", "2024-04-05T00:00:00"),
        ("A", "", "x", "2024-04-06T00:00:00"),
        ("A", "Active", "x", "2024-10-27T03:00:00"),
        ("B", "Closed", "", "2024-01-01T00:00:00"),
        ("C", "New", "", "2024-01-01T00:00:00"),
        ("C", "Active", "", ""),
        ("C", "Active", "", "2024-01-02T00:00:00"),
        ("C", "Active", "", "2024-01-02T00:00:07"),
        ("D", "New", "", ""),
    ]
    lines = [
        f"{t},{place},{activity},{group},{time},,3,true" for place, (t, activity, group, time) in enumerate(events)
    ]
    path = tmp_path / "log.csv"
    path.write_text("\n".join([columns, *reversed(lines)]) + "\n")
    with path.open(newline="") as file:
        expected = states_by_fold(csv.DictReader(file))
    assert states_by_spark(session, path) == expected
    assert expected["A"]["reopenings"] == "2"
    assert expected["C"]["sla_seconds"] == "7"


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("T 1,,New,,2024-01-01T00:00:00,,,", "an event of ticket 'T 1' has no whole number as its seq: ''"),
        ("T,1.5,New,,2024-01-01T00:00:00,,,", "an event of ticket 'T' has no whole number as its seq: '1.5'"),
        ("T,1,New,,yesterday,,,", "an event of ticket 'T' has no time as its timestamp: 'yesterday'"),
    ],
)
def test_an_event_whose_place_or_time_cannot_be_read_is_one_line(
    session: SparkSession, tmp_path: Path, event: str, said: str
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"ticket_id,seq,activity,assignment_group,timestamp,opened_at,priority,made_sla\n{event}\n")
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's; one_line reads it
        states_by_spark(session, path)
    assert str(one_line(failed.value)) == f"{said}; nothing was written"


def test_a_log_without_a_needed_column_is_refused_by_name(session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("ticket_id,seq\nA,1\n")
    with pytest.raises(InputError, match="no column 'activity'"):
        states_by_spark(session, path)


def test_states_of_a_real_log_equal_an_independent_fold(session: SparkSession) -> None:
    if not REAL_LOG:
        pytest.skip("set TICKET_BRIDGE_INCIDENT_LOG to a real incident log to compare its states too")
    with gzip.open(REAL_LOG, "rt", newline="") as file:
        expected = states_by_fold(csv.DictReader(file))
    assert states_by_spark(session, Path(REAL_LOG)) == expected


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["nowhere.csv"], 1, "there is no file nowhere.csv"),
        (["{log}", "--url", "redis://127.0.0.1:1"], 1, "no Redis at redis://127.0.0.1:1"),
        (["{log}", "--url", "ftp://:hunter2@h"], 2, "--url must start with redis://"),
        (["{log}", "--chunk-size", "0"], 2, "option chunkSize must be a whole number"),
        (["{log}", "--task", "a", "--task-column", "b"], 2, "--task and --task-column exclude each other"),
        (["pyproject.toml"], 2, "cannot tell the format"),
    ],
    ids=["file", "server", "url", "option", "both", "format"],
)
def test_wrong_usage_is_one_line_before_java_starts(
    log: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, text: str
) -> None:
    monkeypatch.chdir(ROOT)
    done = refused(main, [word.format(log=log) for word in arguments], monkeypatch)
    assert (done.exit_code, text in done.stderr) == (code, True), done.stderr
    assert "hunter2" not in done.stderr


def test_a_column_that_is_not_there_is_named_with_the_nearest(session: SparkSession, log: Path) -> None:
    with pytest.raises(InputError, match=r"^--seq: the log has no column 'sequ'; did you mean seq\?$"):
        to_messages(read_events(session, str(log)), Mapping(seq="sequ"))
