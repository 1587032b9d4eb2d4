"""A split stream in a real Spark: a batch, a query that is started again, an archive, its report and a replay."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import redis
from pyspark.sql import functions as fn

from bridge.routing.errors import EntriesLost
from bridge.routing.keys import LaneKeys, layout_key
from bridge.routing.partitions import Layout, partition_of
from bridge.spark.archiving.reading import Range, read_table
from bridge.spark.archiving.selection import Selection
from bridge.spark.read.options import DEAD, HISTORY
from bridge.spark.replay import Replay, replay
from bridge.spark.reporting.deliveries import deliveries, due_times, messages
from bridge.spark.reporting.tables import letters
from bridge.stack.embedded import EmbeddedServer
from tests.integration.spark.spark_session import session_of
from tests.integration.spark.test_spark_archive import BEGIN_MS, KEYS, archived, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

STREAM, GROUP = KEYS.stream, KEYS.group
FIRST, SECOND = Layout(4), Layout(3, 1)
#: One of each partition.
TICKETS = {partition_of(ticket, 4): ticket for ticket in ("A", "B", "C", "D", "E", "F", "G", "H")}


@pytest.fixture(scope="module")
def session() -> SparkSession:
    from bridge.spark.archiving.run import CONF

    return session_of(conf=CONF)


def store(client: redis.Redis, layout: Layout) -> None:
    text = {"partitions": layout.partitions, "generation": layout.generation, "since_ms": 1}
    client.set(layout_key(STREAM), json.dumps(text))


def add(client: redis.Redis, ticket: str, numbers: range, layout: Layout) -> list[str]:
    """Messages of a ticket in its partition; returns their ids. Tickets of two partitions have the same stream ids."""
    number = partition_of(ticket, layout.partitions)
    pipeline = client.pipeline(transaction=False)
    for n in numbers:
        fields: dict[Any, Any] = {"ticket_id": ticket, "task": "t", "payload": f'{{"n": {n}}}'}
        pipeline.xadd(layout.stream(STREAM, number), fields, id=f"{BEGIN_MS + n}-0")
    pipeline.execute()
    return [f"{BEGIN_MS + n}-0{layout.suffix(number)}" for n in numbers]


def done(client: redis.Redis, ids: list[str], layout: Layout, ticket: str) -> None:
    """What the leader of the ticket's partition writes about its messages: one attempt each."""
    keys = LaneKeys(layout.stream(STREAM, partition_of(ticket, layout.partitions)), GROUP)
    for id_ in ids:
        own, ms = id_.partition("@")[0], int(id_.partition("-")[0])
        row = [own, ticket, "t", "w1@h", 1, ms * 1000, ms + 1, ms * 1000 + 2000, 1.0, "done"]
        client.xadd(keys.history, {"d": orjson.dumps([row])}, id=own)


def test_a_batch_and_a_query_that_is_started_again_have_each_entry_of_all_partitions_once(
    session: SparkSession, valkey: EmbeddedServer, tmp_path: Path
) -> None:
    options = {"url": valkey.url, "stream": STREAM}
    read: list[Counter[str]] = []

    def query(**more: str) -> None:
        rows = session.readStream.format("redisstream").options(**options, maxRowsPerTrigger="40", **more).load()

        def keep(batch: DataFrame, epoch: int) -> None:
            ids = Counter(row.id for row in batch.select("id").collect())
            # Spark runs the last epoch of a query that was killed again.
            if epoch < len(read):
                assert ids == read[epoch]
            else:
                read.append(ids)

        writer = rows.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with valkey.client() as client:
        store(client, FIRST)
        three = [TICKETS[number] for number in range(3)]
        ids = [id_ for ticket in three for id_ in add(client, ticket, range(20), FIRST)]
        # A batch reads each partition in tasks of its own
        batch = session.read.format("redisstream").options(**options).load()
        assert batch.rdd.getNumPartitions() == 3
        assert sorted(row.id for row in batch.collect()) == sorted(ids)
        # A query reads them in epochs
        query()
        assert [sum(epoch.values()) for epoch in read] == [40, 20]
        # When it is killed before Spark has noted its last epoch, and the stream has got another layout meanwhile
        for file in ("1", ".1.crc"):
            (tmp_path / "checkpoint" / "commits" / file).unlink()
        store(client, SECOND)
        for turn, ticket in enumerate(TICKETS.values()):
            ids += add(client, ticket, range(20 + 5 * turn, 25 + 5 * turn), SECOND)
        query()
        assert sum(read, Counter()) == Counter(ids)
        # And when a partition is deleted, the query says so, or goes on
        client.delete(SECOND.stream(STREAM, partition_of(three[0], 3)))
        with pytest.raises(Exception, match=r"EntriesLost.*stream 'ticket_stream:g1:p\d' was deleted"):
            query()
        ticket = next(ticket for ticket in three if partition_of(ticket, 3) != partition_of(three[0], 3))
        ids += add(client, ticket, range(50, 53), SECOND)
        query(failOnDataLoss="false")
        assert sum(read, Counter()) == Counter(ids)


def test_an_archive_has_all_partitions_once_and_its_report_and_replay_add_them_up(
    session: SparkSession, valkey: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "archive"
    with valkey.client() as client:
        # Given an archive that was begun when the stream was not split
        one = TICKETS[0]
        other = next(ticket for ticket in TICKETS.values() if partition_of(ticket, 3) != partition_of(one, 3))
        ids = add(client, one, range(5), Layout())
        done(client, ids, Layout(), one)
        assert archived(session, valkey, out, only=None, max_rows=20) == {"history": 5, "dead": 0, "messages": 5}
        # When the stream has partitions, two of which have the same ids
        store(client, SECOND)
        for ticket in (one, other):
            new = add(client, ticket, range(5, 15), SECOND)
            done(client, new, SECOND, ticket)
            ids += new
        letter = {"message_id": f"{BEGIN_MS + 5}-0", "ticket_id": other, "reason": "r", "at_ms": str(BEGIN_MS)}
        dead_in = SECOND.stream(STREAM, partition_of(other, 3))
        client.xadd(LaneKeys(dead_in, GROUP).dead, letter, id=f"{BEGIN_MS}-0")
        assert archived(session, valkey, out, only=None, max_rows=20) == {"history": 20, "dead": 1, "messages": 20}
        # Then each row is there once, and the tables agree about the ids
        for table in ("history", "messages"):
            assert Counter(row["message_id"] for row in rows_of(out, table)) == Counter(ids), table
        suffix = SECOND.suffix(partition_of(other, 3))
        assert [row["message_id"] for row in rows_of(out, "dead")] == [f"{BEGIN_MS + 5}-0{suffix}"]
        assert len({row["history_id"] for row in rows_of(out, "history")}) == 25
        # When it is killed before Spark has noted its last epoch, whose entries leave, and new ones leave unread
        before = {file: file.stat().st_mtime_ns for file in out.rglob("*.parquet")}
        commits = out / "_checkpoints" / "messages" / "commits"
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
        for file in (commits / f"{last}", commits / f".{last}.crc"):
            file.unlink()
        add(client, one, range(15, 20), SECOND)
        client.xtrim(SECOND.stream(STREAM, partition_of(one, 3)), maxlen=2, approximate=False)
        with pytest.raises(EntriesLost, match=r"^messages: 3 entries after .* left stream 'ticket_stream:g1:p\d'"):
            archived(session, valkey, out)
        # Then the files of that epoch are as they were, and what was lost is told
        assert {file: file.stat().st_mtime_ns for file in out.rglob("*.parquet")} == before
        capsys.readouterr()
        assert archived(session, valkey, out, fail_on_data_loss=False)["messages"] == 2
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["missing"] == {"messages": 3}
        check_report(session, out, one, other)
        check_replay(session, valkey, client, out, one, other)


def check_report(session: SparkSession, out: Path, one: str, other: str) -> None:
    """What every number of a report comes from: messages of two partitions with the same stream id are two."""
    # A range of ids holds for all partitions.
    within = Range.of(None, f"{BEGIN_MS + 9}-0@g1p0")
    rows = deliveries(read_table(session, str(out), HISTORY), within)
    counts = (
        messages(rows, due_times(read_table(session, str(out), "messages")))
        .groupBy("ticket_id")
        .agg(fn.count("*"), fn.sum("executions"), fn.count("turnaround_us"))
    )
    assert sorted(tuple(row) for row in counts.collect()) == sorted([(one, 10, 10, 10), (other, 5, 5, 5)])
    assert letters(read_table(session, str(out), DEAD), within).count() == 1


def check_replay(
    session: SparkSession, valkey: EmbeddedServer, client: redis.Redis, out: Path, one: str, other: str
) -> None:
    """Each ticket comes back in order, those of an earlier layout first."""
    options = {"url": valkey.url, "stream": "again", "runId": "again"}
    asked = Replay(str(out), Selection(Range()), "again", "again", options, partitions=1)
    assert replay(session, asked).replayable == 27
    found: dict[str, list[int]] = {one: [], other: []}
    for _, fields in client.execute_command("XRANGE", "again", "-", "+"):
        found[fields[b"ticket_id"].decode()].append(json.loads(fields[b"payload"])["n"])
    assert found == {one: [*range(15), 18, 19], other: list(range(5, 15))}
