"""The reader of the data source, called as Spark calls it, without a JVM, against real servers."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from pyspark.sql.types import StringType, StructField, StructType

from bridge.routing.errors import ConfigurationError, EntriesLost, ServerUnavailable
from bridge.spark.read import fetch
from bridge.spark.read.columns import default_schema
from bridge.spark.read.options import parse_read
from bridge.spark.read.ranges import Range, TaskRanges
from bridge.spark.read.reader import RedisStreamReader
from bridge.spark.read.streams import Source
from bridge.spark.wire.entry_ids import EntryId
from bridge.spark.wire.replies import RefusedByServer
from bridge.stack.embedded import EmbeddedServer

STREAM = "{events}:stream"
Row = dict[str, Any]


def reader(server: EmbeddedServer, /, schema: StructType | None = None, **options: Any) -> RedisStreamReader:
    parsed = parse_read({"url": server.url, "stream": STREAM, **options})
    made = RedisStreamReader(parsed, schema or default_schema(parsed.fields))
    # Spark sends it to the task so.
    sent = pickle.loads(pickle.dumps(made))
    assert isinstance(sent, RedisStreamReader)
    return sent


def planned(made: RedisStreamReader) -> list[TaskRanges]:
    found = pickle.loads(pickle.dumps(made.partitions()))
    assert all(isinstance(part, TaskRanges) for part in found)
    return list(found)


def rows_of(made: RedisStreamReader) -> list[Row]:
    return [row for part in planned(made) for batch in made.read(part) for row in batch.to_pylist()]


def fill(client: redis.Redis, ids: list[str], **fields: str) -> None:
    pipeline = client.pipeline(transaction=False)
    for number, id_ in enumerate(ids):
        entry: dict[Any, Any] = {"ticket_id": f"T{number % 7}", "payload": f'{{"n": {number}}}', **fields}
        pipeline.xadd(STREAM, entry, id=id_)
    pipeline.execute()


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with server.client() as made:
        yield made


def test_every_entry_is_read_once_in_order_and_no_group_is_touched(
    server: EmbeddedServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given entries of several kinds, more than one page of them, and a group that has read some
    monkeypatch.setattr(fetch, "PAGE_ROWS", 700)
    fill(client, ["*"] * 3000)
    client.xadd(STREAM, {b"\xff": b"\xfe\r\n", "ticket_id": "T"})
    fill(client, ["*"] * 500, task="t")
    client.xgroup_create(STREAM, "group", "0")
    client.xreadgroup("group", "master", {STREAM: ">"}, count=10)
    groups = client.execute_command("XINFO", "GROUPS", STREAM)
    # When the stream is read in one part and in five
    expected = [id_.decode() for id_, _ in client.execute_command("XRANGE", STREAM, "-", "+")]
    whole = rows_of(reader(server, numPartitions="1"))
    parts = rows_of(reader(server, numPartitions="5"))
    # Then both have every entry once, in stream order
    assert [row["id"] for row in whole] == expected
    assert whole == parts
    assert whole[3000]["fields"] == [(r"\xff", "\\xfe\r\n")]
    assert (whole[0]["payload"], whole[0]["task"], whole[-1]["task"]) == ('{"n": 0}', None, "t")
    # And the group stands where it stood
    assert client.execute_command("XINFO", "GROUPS", STREAM) == groups


def test_a_stream_that_is_empty_or_missing_has_no_rows(server: EmbeddedServer, client: redis.Redis) -> None:
    made = reader(server)
    assert rows_of(made) == []
    client.xdel(STREAM, client.xadd(STREAM, {"a": "b"}))
    assert rows_of(made) == []
    # Spark makes up a partition of its own where there are none
    from pyspark.sql.datasource import InputPartition

    assert list(made.read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["5-1", "5-2", "9-0", "10-0"]),
        ({"startingId": "earliest", "endingId": "latest"}, ["5-1", "5-2", "9-0", "10-0"]),
        ({"startingId": "5-2"}, ["5-2", "9-0", "10-0"]),
        ({"startingId": "6", "endingId": "9-7"}, ["9-0"]),
        ({"startingId": "11"}, []),
        ({"endingId": "5"}, ["5-1", "5-2"]),
        ({"endingId": "5-1"}, ["5-1"]),
    ],
)
def test_both_ends_can_be_named_and_belong_to_what_is_read(
    valkey: EmbeddedServer, options: dict[str, Any], expected: list[str]
) -> None:
    with valkey.client() as client:
        fill(client, ["5-1", "5-2", "9-0", "10-0"])
    assert [row["id"] for row in rows_of(reader(valkey, **options))] == expected


@pytest.mark.parametrize(
    "ids",
    [
        [f"{n}-1" for n in range(1, 8001)],
        [f"5-{n}" for n in range(1, 8001)],
        # Nearly all in one short burst, and the rest far away on both sides.
        ["1-0", *(f"{10**9 + n // 10}-{n % 10}" for n in range(7998)), f"{10**12}-0"],
    ],
    ids=["even", "one-millisecond", "burst"],
)
def test_parts_are_about_equal_however_the_ids_lie(valkey: EmbeddedServer, ids: list[str]) -> None:
    with valkey.client() as client:
        fill(client, ids)
    made = reader(valkey, numPartitions="4")
    counts = [sum(batch.num_rows for batch in made.read(part)) for part in planned(made)]
    assert sum(counts) == len(ids)
    assert len(counts) == 4
    assert max(counts) < 1.5 * len(ids) / 4


def test_trimming_that_overtakes_the_reader_is_noticed_between_two_pages(
    server: EmbeddedServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fetch, "PAGE_ROWS", 100)
    ids = [f"{n}-0" for n in range(1, 1001)]

    def read_while_trimming(keep_from: str, **options: Any) -> list[int]:
        client.delete(STREAM)
        fill(client, ids)
        made = reader(server, numPartitions="1", **options)
        (part,) = planned(made)
        batches = made.read(part)
        found = next(batches)["id"].to_pylist()
        # The second page is asked for before the first one is handed over.
        client.execute_command("XTRIM", STREAM, "MINID", keep_from)
        return [EntryId.of(id_).ms for id_ in [*found, *(id_ for batch in batches for id_ in batch["id"].to_pylist())]]

    # Given a read under way, when what it has read is trimmed, then nothing is lost
    assert read_while_trimming("150") == list(range(1, 1001))
    # When more is trimmed, it fails, and says what is gone
    with pytest.raises(EntriesLost, match=r"entries between 200-0 and 500-0 are gone; .*failOnDataLoss"):
        read_while_trimming("500")
    with pytest.raises(EntriesLost, match=r"entries between 200-0 and the end of the range are gone"):
        read_while_trimming("2000")
    # Unless it is told to go on
    assert read_while_trimming("500", failOnDataLoss="false") == [*range(1, 201), *range(500, 1001)]
    assert "entries between 200-0 and 500-0 are gone" in caplog.text


def test_trimming_between_plan_and_read_is_noticed(server: EmbeddedServer, client: redis.Redis) -> None:
    fill(client, [f"{n}-0" for n in range(1, 101)])
    made = reader(server, numPartitions="1")
    (part,) = planned(made)
    client.execute_command("XTRIM", STREAM, "MINID", "50")
    with pytest.raises(EntriesLost, match="between 1-0 and 50-0"):
        list(made.read(part))


def test_there_are_no_more_parts_than_entries(valkey: EmbeddedServer) -> None:
    with valkey.client() as client:
        fill(client, ["0-1", "5-0", f"{2**64 - 1}-0"])
        client.config_resetstat()
        assert len(planned(reader(valkey, numPartitions="100000"))) <= 3
        # Nor does it ask more often than that takes
        assert client.info("commandstats")["cmdstat_xrange"]["calls"] < 1000


def test_an_entry_deleted_singly_under_the_reader_does_not_stop_it(
    server: EmbeddedServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a read whose last entry so far is deleted, though everything behind it is there
    monkeypatch.setattr(fetch, "PAGE_ROWS", 100)
    fill(client, [f"{n}-0" for n in range(1, 1001)])
    made = reader(server, numPartitions="1")
    (part,) = planned(made)
    batches = made.read(part)
    found = next(batches)["id"].to_pylist()
    client.xdel(STREAM, "200-0")
    found += [id_ for batch in batches for id_ in batch["id"].to_pylist()]
    # Then nothing is missing, and nothing is there twice
    assert found == [f"{n}-0" for n in range(1, 1001)]


def test_entries_that_suddenly_are_large_are_read_in_smaller_pages(
    valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a page size made for small entries, and a limit that a page of large ones breaks
    monkeypatch.setattr(fetch, "MOST_BYTES", 4 * 1024 * 1024)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    with valkey.client() as client:
        fill(client, [f"{n}-0" for n in range(1, 3001)])
        large = [draw.randbytes(100_000).hex() for _ in range(60)]
        for number, text in enumerate(large):
            client.xadd(STREAM, {"payload": text}, id=f"{3001 + number}-0")
    rows = rows_of(reader(valkey, numPartitions="1"))
    assert [row["id"] for row in rows] == [f"{n}-0" for n in range(1, 3061)]
    assert [row["payload"] for row in rows[3000:]] == large


def test_neighbours_that_are_too_large_for_one_page_are_read(
    valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page begins with the last entry of the one before it, and so has two entries at least."""
    monkeypatch.setattr(fetch, "MOST_BYTES", 4 * 1024 * 1024)
    with valkey.client() as client:
        for number in (1, 2, 3):
            client.xadd(STREAM, {"payload": str(number) * 3 * 1024 * 1024}, id=f"{number}-0")
    rows = rows_of(reader(valkey, numPartitions="1"))
    assert [(row["id"], row["payload"][0]) for row in rows] == [("1-0", "1"), ("2-0", "2"), ("3-0", "3")]


def test_a_refusal_of_the_server_is_one_line_without_secrets(own_server: EmbeddedServer) -> None:
    with own_server.client() as client:
        client.set(STREAM, "no stream")
        with pytest.raises(RefusedByServer, match=r"cannot read '{events}:stream' at redis://.*WRONGTYPE"):
            reader(own_server).partitions()
        part = TaskRanges((Range(Source(STREAM, STREAM, ""), EntryId(0, 0), EntryId(9, 9)),))
        with pytest.raises(RefusedByServer, match="WRONGTYPE"):
            list(reader(own_server).read(part))
        client.delete(STREAM)
        fill(client, ["*"])
        # The least that a reader needs
        client.execute_command(
            "ACL", "SETUSER", "eve", "on", ">hunter2", f"~{STREAM}", "+xrange", "+xrevrange", "+ping", "+xinfo|stream"
        )
    named = own_server.url.replace("redis://", "redis://eve:hunter2@")
    made = RedisStreamReader(parse_read({"url": named, "stream": STREAM}), default_schema())
    assert len(rows_of(made)) == 1
    assert "hunter2" not in repr(made)
    with own_server.client() as client:
        client.execute_command("ACL", "SETUSER", "eve", "-xrange")
    with pytest.raises(RefusedByServer, match="NOPERM") as refused:
        list(made.read(part))
    assert "hunter2" not in str(refused.value)


def test_a_server_that_dies_under_the_reader_is_one_clear_line(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "PAGE_ROWS", 100)
    with own_server.client() as client:
        fill(client, ["*"] * 1000)
    made = reader(own_server)
    (part,) = planned(made)
    batches = made.read(part)
    next(batches)
    own_server.kill()
    with pytest.raises(ServerUnavailable) as failed:
        list(batches)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingId": "latest"}, "startingId=latest is for a streaming read"),
        ({"maxRowsPerTrigger": "5"}, "maxRowsPerTrigger is for a streaming read"),
    ],
)
def test_a_batch_refuses_what_is_for_streaming(valkey: EmbeddedServer, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        reader(valkey, **options)


def test_only_the_columns_that_are_asked_for_are_made(valkey: EmbeddedServer) -> None:
    with valkey.client() as client:
        fill(client, ["1-0"], amount="3")
    assert rows_of(reader(valkey, fields="amount, never"))[0].keys() == {"id", "amount", "never", "enqueued_at"}
    assert rows_of(reader(valkey, StructType([StructField("amount", StringType())]))) == [{"amount": "3"}]
