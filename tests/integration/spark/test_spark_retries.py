"""With a real Spark: retried tasks, replayed epochs and killed drivers write each row once, in order, and lose none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext

from bridge.routing.errors import PayloadError
from bridge.spark.job.failures import one_line
from bridge.spark.wire.address import connect
from bridge.spark.write.guard import summary_of
from bridge.spark.write.options import parse
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import wait_until
from tests.integration.spark import spark_stream_job
from tests.integration.spark.spark_session import DEALT_OUT, session_of, trying

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("nothing_runs_on")]

STREAM = "ticket_stream"
TICKETS = 20
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    # The writer gets a few rows at a time: an attempt that fails half way has written some.
    few = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
    with trying(session_of({**DEALT_OUT, **few}), 3) as session:
        yield session


def rows_of(session: SparkSession, count: int) -> DataFrame:
    """Rows of some tickets, numbered through."""
    return session.range(count).selectExpr(
        f"concat('T', id % {TICKETS}) AS ticket_id", "id AS seq", "to_json(struct(id)) AS payload"
    )


def placed(rows: DataFrame, partitions: int = 3) -> DataFrame:
    from bridge.spark.write.order import in_ticket_order

    return in_ticket_order(rows, key="ticket_id", sequence="seq", partitions=partitions)


def write(rows: DataFrame, server: EmbeddedServer, **options: str | None) -> None:
    written = rows.write.format("redisstream").mode("append").options(url=server.url, stream=STREAM)
    given = {name: value for name, value in options.items() if value is not None}
    written.options(seqColumn="seq", fields="seq,payload", chunkSize="50", **given).save()


def in_stream(server: EmbeddedServer) -> dict[str, list[int]]:
    """The numbers of each ticket, in stream order."""
    found: dict[str, list[int]] = defaultdict(list)
    with server.client() as client:
        for _, fields in client.xrange(STREAM):
            found[fields[b"ticket_id"].decode()].append(int(fields[b"seq"]))
    return found


def expected(count: int) -> dict[str, list[int]]:
    return {f"T{ticket}": list(range(ticket, count, TICKETS)) for ticket in range(TICKETS)}


def failing_once(seq: int, payload: str) -> str:
    """What comes before the writer in its task: dies in the middle of each partition's first attempt."""
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0 and seq >= 1500:
        raise RuntimeError("the executor dies here")
    return payload


@pytest.mark.parametrize("idempotence", ["watermark", "ticket"])
def test_a_task_that_fails_half_way_and_is_retried_writes_each_row_once(
    session: SparkSession, valkey: EmbeddedServer, idempotence: str
) -> None:
    # Given partitions whose first attempts die behind some hundred rows
    from pyspark.sql import functions as fn

    rows = placed(rows_of(session, 3000)).withColumn("payload", fn.udf(failing_once)("seq", "payload"))
    # When they are written, by a Spark that tries again
    write(rows, valkey, idempotence=idempotence, runId="r" if idempotence == "watermark" else None)
    # Then each row is there once, each ticket in order
    assert in_stream(valkey) == expected(3000)
    if idempotence == "watermark":
        # And what that came to is known. How much the first attempts wrote is a matter of how soon their writers began:
        # that later ones go on behind it is shown without a JVM (test_source_once.py).
        noted = summary_of(connect(valkey.url), parse({"stream": STREAM}), "r")
        assert noted is not None
        assert (noted.rows, noted.partitions) == (3000, 3)
        assert noted.there_already < 1500


def test_a_job_that_is_run_again_adds_nothing_and_knows_its_partitions(
    session: SparkSession, valkey: EmbeddedServer
) -> None:
    rows = placed(rows_of(session, 1000))
    write(rows, valkey, runId="monday")
    write(rows, valkey, runId="monday")
    assert in_stream(valkey) == expected(1000)
    # And with another number of partitions, all is refused
    with pytest.raises(Exception, match="partitions") as refused:
        write(placed(rows_of(session, 1000), partitions=4), valkey, runId="monday")
    assert "the first attempt had 3 partitions, this one has 4" in str(one_line(refused.value))
    assert in_stream(valkey) == expected(1000)


def test_a_bad_row_anywhere_leaves_nothing_written_of_the_whole_job(
    session: SparkSession, valkey: EmbeddedServer
) -> None:
    # Given a job whose very last row has no ticket
    rows = rows_of(session, 3000).selectExpr("if(seq = 2999, null, ticket_id) AS ticket_id", "seq", "payload")
    # When it is written
    with pytest.raises(Exception, match="no ticket") as refused:
        write(placed(rows), valkey)
    # Then it is refused in one line, and no partition has written anything
    told_ = one_line(refused.value)
    assert isinstance(told_, PayloadError)
    assert str(told_) == "a row has no ticket (null); nothing was written"
    assert in_stream(valkey) == {}


def test_rows_that_cannot_be_written_are_a_table_with_reasons(session: SparkSession) -> None:
    from bridge.spark.write.rejects import Checks, split_rejects

    rows = session.createDataFrame(
        [
            ("A", 1, '{"a": 1}'),
            (None, 2, "{}"),
            ("", 3, "{}"),
            ("x" * 513, 4, "{}"),
            ("B", None, "{}"),
            ("C", 6, '"' + "ü" * 50 + '"'),
            ("D", 7, "{} {}"),
            ("E", 8, "1], [2"),
            ("F", 9, "{'a': 1}"),
            ("G", 10, None),
            ("ü" * 256, 11, "[1, 2]"),
        ],
        "ticket_id string, seq long, payload string",
    )
    good, rejects = split_rejects(rows, key="ticket_id", sequence="seq", checks=Checks(max_payload=100, json=True))
    assert [row.ticket_id for row in good.collect()] == ["A", "G", "ü" * 256]
    assert {row.seq: row.reason for row in rejects.collect()} == {
        2: "a row has no ticket (null)",
        3: "a row has an empty ticket",
        4: f"ticket '{'x' * 40}'… has 513 bytes, at most 512 are allowed",
        None: "ticket 'B' has a row whose seq is not a whole number",
        6: "the payload of ticket 'C' has 102 bytes; maxPayload allows 100",
        7: "the payload of ticket 'D' is not JSON",
        8: "the payload of ticket 'E' is not JSON",
        9: "the payload of ticket 'F' is not JSON",
    }


def put_file(folder: Path, name: str, first: int, count: int) -> None:
    """A file of the folder that a query follows, its rows in no order."""
    numbers = sorted(range(first, first + count), key=lambda number: number * 7919 % 1009)
    columns = {
        "ticket_id": [f"T{number % TICKETS}" for number in numbers],
        "seq": numbers,
        "payload": [f'{{"id": {number}}}' for number in numbers],
    }
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / f".{name}")
    (folder / f".{name}").rename(folder / name)


def test_epochs_are_written_in_order_and_a_replayed_one_adds_nothing(
    session: SparkSession, valkey: EmbeddedServer, tmp_path: Path
) -> None:
    from bridge.spark.write.order import by_ticket

    def run() -> str:
        source = session.readStream.schema("ticket_id string, seq long, payload string")
        rows = by_ticket(
            source.option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in")), key="ticket_id", partitions=2
        )
        query = (
            rows.writeStream.format("redisstream")
            .options(url=valkey.url, stream=STREAM, seqColumn="seq", fields="seq,payload", chunkSize="50")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return str(query.id)

    # Given two epochs, and a third one without a row of some partitions
    put_file(tmp_path / "in", "1.parquet", 0, 400)
    put_file(tmp_path / "in", "2.parquet", 400, 600)
    query = run()
    assert in_stream(valkey) == expected(1000)
    # When Spark died between the write and its own note of it, and runs the last epoch again
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink(missing_ok=True)
    assert run() == query
    # Then nothing was added, and the guard knows of this epoch only
    assert in_stream(valkey) == expected(1000)
    with valkey.client() as client:
        (guard,) = client.keys("*/push:run:*")
        assert sorted(client.hkeys(guard)) == [b"1/0", b"1/1", b"1/of", b"floor", b"told"]
        assert client.ttl(guard) > 0


class Driver:
    """A driver, its Java and its workers, as processes of one session."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.spark.spark_stream_job", *arguments],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def kill_group(self) -> None:
        """SIGKILL to the process group. Python workers have one of their own: they outlive this, as stragglers."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def kill_all(self) -> None:
        """SIGKILL to everything that came out of it."""
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if os.getsid(process.pid) == self.process.pid:
                    process.kill()
        self.process.wait()


@pytest.mark.long
def test_a_driver_that_is_killed_in_the_middle_of_epochs_loses_and_doubles_nothing(
    session: SparkSession, valkey: EmbeddedServer, tmp_path: Path
) -> None:
    # Given three epochs, each far larger than the stream may get: a writer is in the middle of one when it is full
    for number in range(3):
        put_file(tmp_path / "in", f"{number}.parquet", number * 2000, 2000)
    arguments = (valkey.url, STREAM, str(tmp_path / "in"), str(tmp_path / "checkpoint"), "500")
    found: dict[str, list[int]] = defaultdict(list)
    drivers: list[Driver] = []

    # One client: it is asked many times a second, for as long as a driver takes to start.
    reader: Any = valkey.client()

    def take() -> int:
        """Moves what is in the stream to ``found``."""
        entries = reader.xrange(STREAM)
        for _, fields in entries:
            found[fields[b"ticket_id"].decode()].append(int(fields[b"seq"]))
        if entries:
            reader.xdel(STREAM, *(id_ for id_, _ in entries))
        return len(entries)

    def length() -> int:
        return int(reader.xlen(STREAM))

    try:
        for kill in range(3):
            drivers.append(Driver(*arguments))
            # When it is killed in mid-epoch, the first time after 500 rows, then after 1,500 and 2,500
            for _ in range(1 + kill % 2):
                wait_until(lambda: length() >= 500, description="the stream to be full", timeout_s=600)
                take()
            wait_until(lambda: length() >= 500, description="the stream to be full", timeout_s=600)
            if kill == 1:
                drivers[-1].kill_all()
            else:
                drivers[-1].kill_group()
        # And another driver takes its checkpoint, and is left alone
        query = spark_stream_job.start(session, *arguments)
        wait_until(
            lambda: take() == 0 and not query.isActive and length() == 0,
            description="the query to end",
            timeout_s=600,
        )
        assert query.exception() is None
    finally:
        for driver in drivers:
            driver.kill_all()
        for running in session.streams.active:
            running.stop()
        reader.close()
    # Then each row came once, each ticket in order
    assert found == expected(6000)
