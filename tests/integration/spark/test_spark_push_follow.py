"""A push that follows a folder: each epoch is written once, however the push ends, and bad rows are put aside."""

from __future__ import annotations

import gzip
import json
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from bridge.routing.errors import ConfigurationError, InputError, PayloadError, RunChanged, StreamFull
from bridge.spark.job.failures import Terminated, one_line
from bridge.spark.push import main, plan_of
from bridge.spark.pushing import follow as push_follow
from bridge.spark.pushing.follow import follow
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import wait_until
from tests.integration.spark.spark_jobs import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("nothing_runs_on")]

STREAM = "ticket_stream"
TICKETS = 5


class Following:
    """A folder that files land in, and pushes of it that end when all that is there is pushed."""

    def __init__(self, session: SparkSession, server: EmbeddedServer, folder: Path) -> None:
        self._session, self._server, self._home = session, server, folder
        self.folder = folder / "landing"
        self.folder.mkdir()
        self.rejects = folder / "rejects"

    def land(self, name: str, numbers: range, *more: str) -> None:
        """A file with these numbers of every ticket, the last first: the writer has to sort."""
        rows = [{"ticket_id": f"T{t}", "seq": n} for n in reversed(numbers) for t in range(TICKETS)]
        hidden = self._home / name
        hidden.write_text("".join(f"{line}\n" for line in (*map(json.dumps, rows), *more)))
        hidden.rename(self.folder / name)

    def push(self, *arguments: str, partitions: str | None = "2") -> None:
        typed = ["--follow", "--available-now", "--format", "json", "--checkpoint", str(self._home / "checkpoint")]
        typed += ["--url", self._server.url, "--progress", "json", *arguments]
        typed += [] if partitions is None else ["--partitions", partitions]
        follow(self._session, plan_of(main.make_context("push", [str(self.folder), *typed]).params))

    def entries(self) -> dict[str, list[int]]:
        """The numbers of each ticket, in stream order."""
        found: dict[str, list[int]] = defaultdict(list)
        with self._server.client() as client:
            for _, fields in client.xrange(STREAM):
                found[fields[b"ticket_id"].decode()].append(json.loads(fields[b"payload"])["seq"])
        return dict(found)


@pytest.fixture
def following(session: SparkSession, valkey: EmbeddedServer, tmp_path: Path) -> Following:
    return Following(session, valkey, tmp_path)


def every_ticket(count: int) -> dict[str, list[int]]:
    return {f"T{ticket}": list(range(count)) for ticket in range(TICKETS)}


def said(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_new_files_are_written_once_in_order_and_bad_rows_are_put_aside(
    following: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    # When files land, and one push after another takes the new ones, the last one none
    following.land("1.jsonl", range(10))
    following.push("--rejects", str(following.rejects))
    two = '{"ticket_id": "T0", "seq": 20}{"ticket_id": "T1", "seq": 20}'
    following.land("2.jsonl", range(10, 20), '{"ticket_id": "", "seq": 1}', "{oops", two, '{"ticket_id": "T0", "n": 1}')
    for _ in range(2):
        following.push("--rejects", str(following.rejects))
    # Then all is there once, each ticket in order
    assert following.entries() == every_ticket(20)
    ends = [line for line in said(capsys) if line["event"] == "done"]
    assert [(end["rows"], end["epochs"]) for end in ends] == [(10 * TICKETS, 1), (10 * TICKETS, 1), (0, 0)]
    # And what is no message is put aside, once, with the reason
    rows = pq.read_table(following.rejects).to_pylist()
    assert sorted((row["reason"], row["row"]) for row in rows) == [
        ("a row has an empty ticket", None),
        ("the row cannot be read", two),
        ("the row cannot be read", "{oops"),
        ("ticket 'T0' has a row whose seq is not a whole number", None),
    ]


def test_a_file_that_is_older_than_the_last_one_is_pushed_once_too(following: Following) -> None:
    # Given files that were pushed, and one that comes after them with a time of long before, as a backfill does
    following.land("1.jsonl", range(10))
    following.push()
    following.land("2.jsonl", range(10, 20))
    os.utime(following.folder / "2.jsonl", (0, 0))
    following.push()
    assert following.entries() == every_ticket(20)
    # When it is touched, it is still the same file
    os.utime(following.folder / "2.jsonl")
    following.push()
    assert following.entries() == every_ticket(20)


def test_a_bad_row_ends_the_push_with_nothing_of_its_epoch_written(following: Following) -> None:
    following.land("1.jsonl", range(1000), '{"ticket_id": null, "seq": 1}')
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's; one_line reads it
        following.push()
    error = one_line(failed.value)
    assert isinstance(error, PayloadError)
    assert "a row has no ticket" in str(error)
    assert following.entries() == {}


COLUMNS = ("--schema", "ticket_id string, seq string")
HEADER = b"ticket_id,seq\n"


@pytest.mark.parametrize(
    ("kind", "name", "content", "said"),
    [
        ("csv", "1.csv", HEADER + b"A,1\nA\n", "the input cannot be read: Malformed CSV record: A (file:"),
        ("csv", "1.csv", b"ticket_id,no\nA,1\n", "has 'no' where 'seq' is expected"),
        ("csv", "1.csv.gz", gzip.compress(HEADER)[:20], "the input cannot be read: Unexpected end of input stream"),
        ("json", "1.jsonl", b'{"ticket_id": "A", "seq"\n', "a line is not one JSON object and nothing else"),
        ("parquet", "1.parquet", b"PAR1 and no more", "the input cannot be read: is not a Parquet file (file:"),
    ],
    ids=["row", "header", "gzip", "json", "parquet"],
)
def test_a_file_that_cannot_be_read_ends_the_push_with_what_is_wrong_in_it(
    following: Following, kind: str, name: str, content: bytes, said: str
) -> None:
    (following.folder / name).write_bytes(content)
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's; one_line reads it
        following.push("--format", kind, *COLUMNS)
    error = one_line(failed.value)
    assert isinstance(error, InputError | PayloadError)
    assert said in str(error)
    assert following.entries() == {}


def test_a_value_of_another_type_is_reported_with_its_name(following: Following) -> None:
    following.land("1.jsonl", range(0), '{"ticket_id": "A", "seq": "two"}')
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's; one_line reads it
        following.push("--schema", "ticket_id string, seq long")
    assert "the field name 'seq' and the value two" in str(one_line(failed.value))


def test_a_checkpoint_of_another_folder_or_stream_is_refused(
    following: Following, valkey: EmbeddedServer, tmp_path: Path
) -> None:
    following.land("1.jsonl", range(2))
    following.push()
    # Of another folder
    own, following.folder = following.folder, tmp_path / "other"
    following.folder.mkdir()
    following.land("2.jsonl", range(2, 4))
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's; one_line reads it
        following.push()
    error = one_line(failed.value)
    assert isinstance(error, ConfigurationError)
    assert "another --checkpoint" in str(error)
    assert following.entries() == every_ticket(2)
    # Of another stream, where it would go on in the middle
    following.folder = own
    following.land("2.jsonl", range(2, 4))
    for other in (("--stream", "other_stream"), ("--url", valkey.url.replace("/0", "/1"))):
        with pytest.raises(
            ConfigurationError, match=r"of pushes into stream 'ticket_stream' in database 0; .*another --check"
        ):
            following.push(*other)
    # And the one that it is of goes on
    following.push()
    assert following.entries() == every_ticket(4)
    with valkey.client() as client:
        assert client.exists("other_stream") == 0


def test_what_a_checkpoint_lacks_is_named_and_nothing_is_pushed_twice(following: Following, tmp_path: Path) -> None:
    following.land("1.jsonl", range(2))
    following.push()
    checkpoint = tmp_path / "checkpoint"
    metadata, commit, form = (checkpoint / name for name in ("push/metadata", "push/commits/0", "form.json"))
    # Files that a full disk, or an end of the machine, left empty. The form is needed for an epoch that was cut off
    commit.rename(tmp_path / "commit")
    for damaged in (metadata, form):
        content = damaged.read_text()
        damaged.write_text("")
        with pytest.raises(ConfigurationError, match=f"cannot read .*{damaged.name}: put it back from a copy, or name"):
            following.push()
        damaged.write_text(content)
    (tmp_path / "commit").rename(commit)
    # Spark's part alone is gone: without it, all would be pushed again
    (checkpoint / "push").rename(tmp_path / "gone")
    with pytest.raises(ConfigurationError, match="push is gone: put it back, or name another --checkpoint"):
        following.push()
    (tmp_path / "gone").rename(checkpoint / "push")
    following.push()
    assert following.entries() == every_ticket(2)


def test_a_file_in_the_place_of_the_folder_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.csv"
    log.write_bytes(HEADER)
    arguments = [str(log), "--follow", "--format", "csv", "--checkpoint", str(tmp_path / "checkpoint")]
    assert "is a file: push it without --follow" in refused(main, arguments, monkeypatch).stderr


@contextmanager
def stopped_when_full(server: EmbeddedServer) -> Iterator[None]:
    """Tells this process to end as soon as the stream has 150 entries; not when the block has ended before that."""
    over = threading.Event()

    def stop() -> None:
        with server.client() as client:
            wait_until(
                lambda: over.is_set() or client.xlen(STREAM) >= 150, description="the stream to be full", timeout_s=300
            )
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    try:
        yield
    finally:
        over.set()
        stopping.join()


def test_a_push_that_is_stopped_while_it_waits_goes_on_from_its_checkpoint(
    following: Following, valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_follow, "GRACE_S", 0.5)
    # Given a push in the middle of an epoch that waits for room
    following.land("1.jsonl", range(100))

    # When it is told to end, it says that it did not push everything
    with stopped_when_full(valkey), pytest.raises(Terminated):
        following.push("--high-water", "150", "--chunk-size", "20")
    assert 150 <= sum(map(len, following.entries().values())) < 150 + 20
    # And when there is room again, the next one adds what is left of the epoch
    following.push()
    assert following.entries() == every_ticket(100)


@pytest.mark.parametrize(
    ("first", "cores", "later"),
    [
        pytest.param([], (1, 3), [{"seq": 200, "n": 1.5, "more": True}], id="all"),
        # What the first one has, one by one
        pytest.param([], (2, 3), [], id="cores", marks=pytest.mark.long),
        pytest.param([], (1, 1), [{"seq": 200, "n": 1.5}], id="types", marks=pytest.mark.long),
        pytest.param([], (1, 1), [{"seq": 200, "n": 3, "more": True}], id="columns", marks=pytest.mark.long),
        pytest.param(
            ["--partitions", "3", "--schema", "ticket_id string, seq int, n double"], (2, 2), [], id="options"
        ),
    ],
)
def test_an_epoch_that_was_cut_off_ends_as_it_began_and_the_next_start_is_as_it_would_be(
    first: list[str],
    cores: tuple[int, int],
    later: list[dict[str, Any]],
    session: SparkSession,
    following: Following,
    valkey: EmbeddedServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def on(cores: int) -> None:
        monkeypatch.setattr(type(session.sparkContext), "defaultParallelism", property(lambda _: cores))

    # Given a push that ended in the middle of an epoch
    monkeypatch.setattr(push_follow, "GRACE_S", 0.5)
    on(cores[0])
    before = [json.dumps({"ticket_id": f"T{ticket}", "seq": -1, "n": 1}) for ticket in range(TICKETS)]
    following.land("1.jsonl", range(100), *before)
    with stopped_when_full(valkey), pytest.raises(Terminated):
        following.push("--high-water", "150", "--chunk-size", "20", *first, partitions=None)
    # When another form is asked for, it is refused, and forgotten
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's; one_line reads it
        following.push(partitions="4")
    assert isinstance(one_line(failed.value), RunChanged)
    # When it is started on another machine, and files have come whose rows have other types or columns
    on(cores[1])
    if later:
        following.land("2.jsonl", range(0), *(json.dumps({"ticket_id": "T0", **row}) for row in later))
        # Then they end it, as they would have ended the first one
        with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's; one_line reads it
            following.push(partitions=None)
        assert isinstance(one_line(failed.value), InputError | PayloadError)
    else:
        following.push(partitions=None)
    # But the epoch was ended before, and the next start takes what there is now
    expected = {ticket: [-1, *numbers] for ticket, numbers in every_ticket(100).items()}
    assert following.entries() == expected
    capsys.readouterr()
    following.push(partitions=None)
    expected["T0"] += [row["seq"] for row in later]
    assert following.entries() == expected
    assert said(capsys)[0]["partitions"] == cores[1]


def test_an_epoch_that_fails_after_the_signal_is_a_failure(
    following: Following, valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_follow, "GRACE_S", 120.0)
    # Given a push that is told to end while it waits for room that does not come
    following.land("1.jsonl", range(100))

    # Then that is what it ends with: there was time for the epoch to end by itself
    with stopped_when_full(valkey), pytest.raises((Exception, Terminated)) as failed:
        following.push("--high-water", "150", "--chunk-size", "20", "--max-wait", "4")
    assert isinstance(one_line(failed.value), StreamFull)


class WithoutJava(Exception):
    """As PySpark's errors are when there is nobody to ask for their words."""

    def __str__(self) -> str:
        raise ConnectionRefusedError


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("[STREAM_FAILED] x\nCaused by: org.apache.spark.SparkException: Python worker exited\n"), False),
        (WithoutJava(), False),
        (RuntimeError("  bridge.routing.errors.StreamFull: the stream is full\n"), True),
    ],
    ids=["worker", "java", "full"],
)
def test_the_end_of_a_querys_helpers_is_no_cause(error: Exception, reason: bool) -> None:
    assert push_follow._has_a_reason(error) == reason
