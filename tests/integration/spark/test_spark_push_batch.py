"""A push of a file: each row once, all rows or none, and what the push reports."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from bridge.routing.errors import PayloadError, RunChanged, StreamFull
from bridge.routing.layouts import claim_layout
from bridge.routing.partitions import partition_of
from bridge.spark.job.failures import one_line
from bridge.spark.push import main, plan_of
from bridge.spark.pushing.batch import push
from bridge.spark.pushing.plan import PushPlan
from bridge.stack.embedded import EmbeddedServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("nothing_runs_on")]

STREAM = "ticket_stream"
ROWS, TICKETS = 300, 20
Said = list[dict[str, Any]]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text("ticket_id,seq,x\n" + "".join(f"T{n % TICKETS},{n},v{n}\n" for n in range(ROWS)))
    return path


def plan(server: EmbeddedServer, source: Path | str, *arguments: str) -> PushPlan:
    """A push as somebody types it."""
    typed = [str(source), "--url", server.url, "--progress", "json", *arguments]
    return plan_of(main.make_context("push", typed).params)


class Pusher:
    """Pushes in the module's session, and reads what was said."""

    def __init__(self, session: SparkSession, server: EmbeddedServer, capsys: pytest.CaptureFixture[str]) -> None:
        self._session, self._server, self._capsys = session, server, capsys

    def push(self, source: Path | str, *arguments: str) -> Said:
        self._capsys.readouterr()
        push(self._session, plan(self._server, source, *arguments))
        return [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]

    def refused(self, source: Path | str, *arguments: str) -> Exception:
        with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's; one_line reads it
            self.push(source, *arguments)
        error = one_line(failed.value)
        assert "\n" not in str(error)
        return error

    def entries(self) -> list[tuple[str, int]]:
        """Ticket and sequence of each entry, in stream order."""
        with self._server.client() as client:
            found = client.xrange(STREAM)
        return [(fields[b"ticket_id"].decode(), int(json.loads(fields[b"payload"])["seq"])) for _, fields in found]


@pytest.fixture
def pusher(session: SparkSession, valkey: EmbeddedServer, capsys: pytest.CaptureFixture[str]) -> Pusher:
    return Pusher(session, valkey, capsys)


def all_once_in_order(entries: list[tuple[str, int]]) -> bool:
    in_order = all(
        [seq for name, seq in entries if name == ticket] == list(range(n, ROWS, TICKETS))
        for n, ticket in enumerate(f"T{n}" for n in range(TICKETS))
    )
    return in_order and len(entries) == ROWS


def test_the_same_push_again_adds_nothing_and_says_so_unless_a_second_time_is_asked_for(
    pusher: Pusher, log: Path, tmp_path: Path
) -> None:
    first = pusher.push(log, "--partitions", "2")
    assert (first[-1]["rows"], first[-1]["already"]) == (ROWS, 0)
    # A second download of the same, on a machine with other cores
    copy = log.with_name("again.csv")
    copy.write_bytes(log.read_bytes())
    second = pusher.push(copy)
    assert (second[0]["partitions"], second[0]["run"]) == (2, first[0]["run"])
    assert (second[-1]["rows"], second[-1]["already"]) == (ROWS, ROWS)
    # One that goes about it otherwise is refused, not mixed in
    error = pusher.refused(log, "--partitions", "3")
    assert isinstance(error, RunChanged)
    assert "began with --partitions 2" in str(error)
    assert all_once_in_order(pusher.entries())
    # And a deliberate second time adds all; without bad rows there is no table of them
    again = pusher.push(log, "--again", "--rejects", str(tmp_path / "aside"))
    assert (again[-1]["rows"], again[-1]["already"], again[-1]["rejected"]) == (ROWS, 0, 0)
    assert set(Counter(pusher.entries()).values()) == {2}
    assert not (tmp_path / "aside").exists()


def test_a_push_into_a_split_stream_is_in_the_partition_of_each_ticket_once(
    pusher: Pusher, log: Path, valkey: EmbeddedServer
) -> None:
    with valkey.client(decode_responses=True) as client:
        streams = claim_layout(client, STREAM, 4).streams(STREAM)
        said = [pusher.push(log)[-1] for _ in range(2)]
        assert [(one["rows"], one["already"]) for one in said] == [(ROWS, 0), (ROWS, ROWS)]
        found: list[tuple[str, int]] = []
        for n, stream in enumerate(streams):
            page: Any = client.xrange(stream)
            assert {partition_of(fields["ticket_id"], 4) for _, fields in page} == {n}
            found += [(fields["ticket_id"], int(json.loads(fields["payload"])["seq"])) for _, fields in page]
        assert all_once_in_order(found)
        assert not client.exists(STREAM)


def test_a_push_that_was_broken_off_goes_on_where_it_was(pusher: Pusher, log: Path, valkey: EmbeddedServer) -> None:
    # Given a push that a full stream ended: nobody takes anything out
    full = pusher.refused(log, "--high-water", "100", "--chunk-size", "30", "--max-wait", "1")
    assert isinstance(full, StreamFull)
    written = len(pusher.entries())
    assert 100 <= written < 100 + 30
    # When it is started again as it was, with room in the stream
    said = pusher.push(log, "--high-water", "1000")
    # Then what was there is not there twice, and the push knows how much that was
    assert (said[-1]["rows"], said[-1]["already"]) == (ROWS, written)
    assert all_once_in_order(pusher.entries())


def test_a_name_of_ones_own_makes_the_same_push_of_a_table(
    pusher: Pusher, session: SparkSession, valkey: EmbeddedServer
) -> None:
    session.range(50).selectExpr("'T' || id % 5 ticket_id", "id seq").createOrReplaceTempView("orders")
    arguments = ("--format", "table", "--run-id", "orders-of-monday")
    assert pusher.push("orders", *arguments)[-1]["already"] == 0
    assert pusher.push("orders", *arguments)[-1]["already"] == 50
    assert len(pusher.entries()) == 50
    # Another content of this name is refused, with what the user of the command can do
    session.range(50).selectExpr("'T' || id % 5 ticket_id", "id + 1 seq").createOrReplaceTempView("orders")
    refused = str(pusher.refused("orders", *arguments))
    assert refused.startswith("orders-of-monday began with other messages: ")
    assert refused.endswith("or name another --run-id")


def test_a_view_has_no_name_by_itself_whatever_files_are_below_it(
    pusher: Pusher, session: SparkSession, log: Path, tmp_path: Path
) -> None:
    session.read.csv(str(log), header=True).createOrReplaceTempView("logged")
    for below, above in ((2, 2), (4, 6)):
        session.sql(f"select * from logged where seq < {below}").createOrReplaceTempView("some")
        assert pusher.push("some", "--format", "table")[-1]["already"] == 0
        assert len(pusher.entries()) == above
    # The same rejects make the same push, so another limit makes other messages
    log.write_text("ticket_id,seq,x\nA,1,short\nA,2,long\n")
    aside = ("--rejects", str(tmp_path / "aside"))
    assert pusher.push(log, *aside, "--max-payload", "22")[-1]["rejected"] == 1
    assert str(pusher.refused(log, *aside)).endswith("or push all of it again with --again")


def test_by_the_tickets_numbers_it_says_what_was_offered_not_what_was_added(
    pusher: Pusher, session: SparkSession, valkey: EmbeddedServer, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--idempotence", "ticket")
    done = pusher.push(log, *arguments)[-1]
    assert (done["rows"], done["already"]) == (ROWS, None)
    push(session, plan(valkey, log, *arguments, "--progress", "text"))
    said = capsys.readouterr().out
    assert f"offered {ROWS} messages to {STREAM} in " in said
    assert "pushed" not in said
    assert all_once_in_order(pusher.entries())


BAD = """ticket_id,seq,x
A,1,u
,2,v
A,three,w
B,1
B,4,fine
B,4,gone
"""


@pytest.fixture
def batches_of_300(session: SparkSession) -> Iterator[None]:
    """The writer gets so many rows at a time. With Spark's number, 10,000, a test would need many more rows."""
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "300")
    yield
    session.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.usefixtures("batches_of_300")
def test_bad_rows_refuse_the_whole_push_and_the_first_are_named(pusher: Pusher, tmp_path: Path) -> None:
    # Given a log with bad rows among so many good ones that some would be on their way before the bad ones are seen
    path = tmp_path / "log.csv"
    path.write_text(BAD.replace("B,1\n", "") + "".join(f"C,{n},{'x' * 100}\n" for n in range(1500)))
    error = pusher.refused(path)
    assert isinstance(error, PayloadError)
    for part in (
        "ticket 'A' has a row whose seq is not a whole number",
        "a row has an empty ticket",
        "seq does not rise within ticket 'B': 4 comes more than once",
        "nothing was pushed",
        "--rejects",
    ):
        assert part in str(error)
    assert pusher.entries() == []


def test_bad_rows_are_put_aside_with_the_reason_and_the_rest_is_pushed(pusher: Pusher, tmp_path: Path) -> None:
    path, aside = tmp_path / "log.csv", tmp_path / "aside"
    path.write_text(BAD)
    for _ in range(2):
        # A second time the same rows are put aside, not once more
        said = pusher.push(path, "--rejects", str(aside))
        assert (said[-1]["rows"], said[-1]["rejected"]) == (2, 4)
        assert sorted(pusher.entries()) == [("A", 1), ("B", 4)]
        rows = pq.read_table(aside).to_pylist()
        assert Counter(row["reason"] for row in rows) == {
            "a row has an empty ticket": 1,
            "ticket 'A' has a row whose seq is not a whole number (times go with --order)": 1,
            "seq does not rise within ticket 'B': 4 comes more than once": 1,
            "the row cannot be read": 1,
        }
        # What was there is there to be looked at
        assert {row["row"] for row in rows} == {None, "B,1"}
        assert any("three" in row["payload"] for row in rows)


@pytest.mark.usefixtures("batches_of_300")
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_bad_row_far_behind_is_found_before_anything_is_pushed(
    pusher: Pusher, session: SparkSession, tmp_path: Path, kind: str
) -> None:
    # Given a log with one bad row, far behind what the writer looks at first: a truth value that is none in one log,
    # a ticket of bytes that are no text in the other
    path, aside = tmp_path / f"log.{kind}", tmp_path / "aside"
    if kind == "csv":
        lines = (f"T{n % 50},{n},2030-01-01,{'yes' if n == 2_500 else 'true'}\n" for n in range(3_000))
        path.write_text("ticket_id,seq,due,hold\n" + "".join(lines))
        said = "hold of ticket 'T0' is no option: it must be true or false, or 1 or 0"
    else:
        ticket = "case when id = 2500 then cast(x'41ff42' as string) else concat('T', id % 50) end"
        session.sql(f"select {ticket} as ticket_id, id as seq, 1 as n from range(3000)").coalesce(1).write.parquet(
            str(path)
        )
        said = "a ticket is not valid UTF-8"
    columns = ("--due-column", "due", "--hold-column", "hold") if kind == "csv" else ()
    # When it is pushed, then nothing of it is
    assert said in str(pusher.refused(path, *columns))
    assert pusher.entries() == []
    # And with a folder for it, all but that row
    done = pusher.push(path, *columns, "--rejects", str(aside))[-1]
    assert (done["rows"], done["rejected"], len(pusher.entries())) == (2_999, 1, 2_999)


def test_the_name_of_a_push_stays_within_the_folder_of_rejects(pusher: Pusher, tmp_path: Path) -> None:
    # Given a folder of somebody else's, and a name that leads there
    path, aside, precious = tmp_path / "log.csv", tmp_path / "aside", tmp_path / "precious"
    path.write_text(BAD)
    precious.mkdir()
    (precious / "kept").touch()
    assert pusher.push(path, "--rejects", str(aside), "--run-id", "x/../../precious")[-1]["rejected"] == 4
    # Then nothing is there that was not, and the rows are found under the name
    assert [file.name for file in precious.iterdir()] == ["kept"]
    assert [folder.name for folder in aside.iterdir()] == ["run=x%2F..%2F..%2Fprecious"]
    assert len(pq.read_table(aside)) == 4


@pytest.mark.parametrize(
    "name", ["row", "reason", pytest.param("Payload", marks=pytest.mark.long), "TICKET_ID", "__times", " n "]
)
def test_a_sequence_may_have_any_name(pusher: Pusher, tmp_path: Path, name: str) -> None:
    path, aside = tmp_path / "log.csv", tmp_path / "aside"
    path.write_text(f"ticket,{name},seq\nA,2,2\nA,1,1\nA,x,9\nB,3,3\nB,3,4\n")
    said = pusher.push(path, "--key", "ticket", "--seq", name, "--rejects", str(aside))
    assert (said[-1]["rows"], said[-1]["rejected"]) == (3, 2)
    assert [seq for ticket, seq in pusher.entries() if ticket == "A"] == [1, 2]
    [first, second] = sorted(row["reason"] for row in pq.read_table(aside).to_pylist())
    # Where other columns have its name, it gets another one.
    assert first.removeprefix(name).removeprefix(" (sequence)").startswith(" does not rise within ticket 'B': 3 comes ")
    assert f"ticket 'A' has a row whose {name} is not a whole number" in second


@pytest.mark.parametrize(
    "name",
    # Those whose names are used while the reasons are looked for. The others are in the test before this one.
    ["reason", "__times", *(pytest.param(name, marks=pytest.mark.long) for name in ("row", "TICKET_ID", " n "))],
)
def test_a_refusal_names_a_sequence_of_any_name(pusher: Pusher, tmp_path: Path, name: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"ticket,{name},seq\nA,2,2\nA,x,9\n")
    error = str(pusher.refused(path, "--key", "ticket", "--seq", name))
    assert f"ticket 'A' has a row whose {name} is not a whole number" in error


def test_a_ticket_of_two_lines_is_printed_on_one(pusher: Pusher, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text('ticket_id,seq\n"A\nB",x\n"A\rC\x1b",1\n"A\rC\x1b",1\n')
    error = str(pusher.refused(path))
    assert r"ticket 'A\nB' has a row" in error
    assert "\\rC\ufffd': 1 comes more than once" in error


def test_a_payload_that_is_no_json_is_a_bad_row(pusher: Pusher, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        "".join(json.dumps({"ticket_id": "A", "seq": n, "body": b}) + "\n" for n, b in ((1, "{}"), (2, "{")))
    )
    error = pusher.refused(path, "--payload-column", "body")
    assert "the payload of ticket 'A' is not JSON" in str(error)


def test_a_payload_that_is_no_utf_8_is_no_json(pusher: Pusher, session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    session.sql("select 'A' as ticket_id, 1L as seq, cast(x'2241ff22' as string) as body").write.parquet(str(path))
    assert "the payload of ticket 'A' is not JSON" in str(pusher.refused(path, "--payload-column", "body"))
