"""The streaming reader, called as Spark calls it, without a JVM: epochs and missing entries, on both servers."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import redis
from pyspark.sql.streaming.datasource import ReadMaxRows

from bridge.routing.errors import ConfigurationError, EntriesLost
from bridge.stack.embedded import EmbeddedServer
from tests.integration.spark.streaming_query import STREAM, Query


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with server.client() as made:
        yield made


@pytest.fixture
def counts(client: redis.Redis) -> bool:
    """Whether this server counts what was ever added."""
    client.xadd("probe", {"a": "b"})
    return b"entries-added" in client.execute_command("XINFO", "STREAM", "probe")


class NumbersQuery(Query[int]):
    """A query of a stream whose entries have the ids 1-0, 2-0, and so on."""

    def row(self, id_: str) -> int:
        return int(id_.partition("-")[0])


def add(client: redis.Redis, first: int, last: int) -> None:
    pipeline = client.pipeline(transaction=False)
    for number in range(first, last + 1):
        pipeline.xadd(STREAM, {"payload": "{}"}, id=f"{number}-0")
    pipeline.execute()


def trim(client: redis.Redis, keep_from: int) -> None:
    client.execute_command("XTRIM", STREAM, "MINID", f"{keep_from}-0")


@pytest.mark.parametrize("partitions", ["1", "3"])
def test_epochs_are_exact_and_can_be_run_again(server: EmbeddedServer, client: redis.Redis, partitions: str) -> None:
    # Given a stream, read in epochs of limited size
    add(client, 1, 1000)
    query = NumbersQuery(server, numPartitions=partitions, maxRowsPerTrigger="300")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(300)
    sizes = [query.epoch(300) for _ in range(5)]
    assert sizes == [
        list(range(1, 301)), list(range(301, 601)), list(range(601, 901)), list(range(901, 1001)), [],
    ]  # fmt: skip
    # When an epoch is run again by a reader that knows nothing, though more was added meanwhile
    add(client, 1001, 1010)
    fresh = NumbersQuery(server, numPartitions=partitions)
    assert [fresh.read(*epoch) for epoch in query.epochs] == sizes[:4]
    # And the next one is what was added
    assert query.epoch() == list(range(1001, 1011))


def test_a_query_may_begin_at_the_end_or_anywhere(server: EmbeddedServer, client: redis.Redis) -> None:
    assert NumbersQuery(server).epoch() == []
    add(client, 1, 10)
    at_end, inside = NumbersQuery(server, startingId="latest"), NumbersQuery(server, startingId="6")
    future = NumbersQuery(server, startingId="13-0")
    assert (at_end.epoch(), inside.epoch(3), inside.epoch(3), future.epoch()) == ([], [6, 7, 8], [9, 10], [])
    add(client, 11, 14)
    assert (at_end.epoch(), inside.epoch(), future.epoch()) == ([11, 12, 13, 14], [11, 12, 13, 14], [13, 14])


def test_entries_deleted_before_the_query_began_are_no_loss(server: EmbeddedServer, client: redis.Redis) -> None:
    add(client, 1, 10)
    client.xdel(STREAM, "7-0")
    trim(client, 4)
    assert NumbersQuery(server).epoch() == [4, 5, 6, 8, 9, 10]


def test_deletions_behind_the_reader_are_no_loss(server: EmbeddedServer, client: redis.Redis) -> None:
    # Given a reader that has read ten entries
    add(client, 1, 10)
    query = NumbersQuery(server)
    query.epoch()
    # When they are deleted in every way, singly and by trimming, and others come
    client.xdel(STREAM, "3-0", "10-0", "9-0")
    add(client, 11, 12)
    assert query.epoch() == [11, 12]
    trim(client, 8)
    add(client, 13, 14)
    assert query.epoch() == [13, 14]
    trim(client, 100)
    assert query.epoch() == []
    add(client, 15, 16)
    # Then it goes on
    assert query.epoch(1) == [15]
    assert query.epoch(1) == [16]
    assert query.at["lost"] == 0


def test_a_trim_just_to_where_the_reader_is_is_no_loss(server: EmbeddedServer, client: redis.Redis) -> None:
    add(client, 1, 10)
    query = NumbersQuery(server)
    assert query.epoch(5) == [1, 2, 3, 4, 5]
    trim(client, 6)
    assert query.epoch(2) == [6, 7]
    trim(client, 8)
    assert query.epoch() == [8, 9, 10]
    assert query.at["lost"] == 0


@pytest.mark.parametrize(
    ("deleted", "lost", "left"),
    [
        ([], 12, [18, 19, 20]),  # only trimmed, see below
        ([15], 1, [6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 18, 19, 20]),
        ([6, 7], 2, list(range(8, 21))),
        ([20], 1, list(range(6, 20))),
        ([2, 20, 19], 2, list(range(6, 19))),
        (list(range(1, 21)), 15, []),
    ],
    ids=["trimmed", "inside", "next", "last", "both-sides", "all"],
)
def test_entries_deleted_before_they_were_read_are_noticed_and_counted_once(
    server: EmbeddedServer, client: redis.Redis, counts: bool, deleted: list[int], lost: int, left: list[int]
) -> None:
    # Given a reader that has read five entries of twenty
    add(client, 1, 20)
    strict, lenient = NumbersQuery(server), NumbersQuery(server, failOnDataLoss="false")
    assert strict.epoch(5) == lenient.epoch(5) == [1, 2, 3, 4, 5]
    # When entries that it has not read are deleted singly, or trimmed
    if deleted:
        client.xdel(STREAM, *(f"{number}-0" for number in deleted))
    else:
        trim(client, 18)
    # Then it fails, with their number, and does so again when it is started again
    if counts:
        for _ in range(2):
            with pytest.raises(
                EntriesLost, match=rf"^{lost} entr(y|ies) after 5-0 left stream 'events' .*failOnDataLoss"
            ):
                strict.plan(3)
    # And one that was told to go on reads what is left, in epochs or at once, and counts them once
    found = [number for _ in range(6) for number in lenient.epoch(3)]
    assert found == left
    assert lenient.at["lost"] == (lost if counts else 0)
    # And nothing is counted against what comes later
    add(client, 21, 25)
    assert lenient.epoch() == [21, 22, 23, 24, 25]
    assert lenient.at["lost"] == (lost if counts else 0)


def test_random_deletions_are_counted_exactly(valkey: EmbeddedServer) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    with valkey.client() as client:
        query = NumbersQuery(valkey, failOnDataLoss="false", numPartitions=str(draw.choice([1, 3])))
        added, read, gone_unread = 0, set[int](), set[int]()
        for _ in range(200):
            match draw.choice(["add", "add", "delete", "trim", "read", "read"]):
                case "add":
                    more = draw.randint(1, 12)
                    add(client, added + 1, added + more)
                    added += more
                case "delete" | "trim" as how:
                    before = ids_of(client)
                    if how == "delete" and before:
                        client.xdel(
                            STREAM,
                            *(
                                f"{number}-0"
                                for number in draw.sample(sorted(before), draw.randint(1, len(before)))[:4]
                            ),
                        )
                    elif before:
                        trim(client, draw.choice(sorted(before)))
                    gone_unread |= before - ids_of(client) - read
                case _:
                    found = query.epoch(draw.choice([None, 1, 5, 50]))
                    assert not read & set(found)
                    read |= set(found)
        # Two more, since the last loss is counted by the epoch after it
        read |= set(query.epoch()) | set(query.epoch())
        assert read | gone_unread == set(range(1, added + 1))
        assert query.at["lost"] == len(gone_unread)
        assert query.at["rows"] == len(read)


def ids_of(client: redis.Redis) -> set[int]:
    return {int(id_.partition(b"-")[0]) for id_, _ in client.execute_command("XRANGE", STREAM, "-", "+")}


@pytest.mark.parametrize("partitions", ["1", "3"])
def test_entries_that_vanish_from_a_planned_epoch_are_noticed(
    server: EmbeddedServer, client: redis.Redis, partitions: str
) -> None:
    # Given an epoch that is in the checkpoint, and a crash before it was read
    add(client, 1, 100)
    query = NumbersQuery(server, numPartitions=partitions)
    end = query.plan()
    # When some of its entries go meanwhile
    client.xdel(STREAM, "40-0", "41-0")
    trim(client, 5)
    # Then every reader notices when it reads: a query may have handled the epoch, and read nothing of it
    fresh = NumbersQuery(server, numPartitions=partitions)
    assert fresh.reader.partitions(query.at, end)
    with pytest.raises(
        EntriesLost, match=r"6 of 100 entries .* between 0-1 and 100-0 vanished after they were planned"
    ):
        fresh.read(query.at, end)
    # Unless it was told to go on
    lenient = NumbersQuery(server, numPartitions=partitions, failOnDataLoss="false")
    assert len(lenient.read(query.at, end)) == 94


def test_a_stream_that_was_deleted_and_made_again_is_noticed(server: EmbeddedServer, client: redis.Redis) -> None:
    add(client, 101, 120)
    strict, lenient = NumbersQuery(server), NumbersQuery(server, failOnDataLoss="false")
    assert strict.epoch() == lenient.epoch() == list(range(101, 121))
    # When the stream is deleted
    client.delete(STREAM)
    with pytest.raises(EntriesLost, match="deleted or created again: its last id was 120-0 or later"):
        strict.plan()
    assert lenient.epoch() == []
    # And created again
    add(client, 1, 3)
    with pytest.raises(EntriesLost, match="is 3-0 now"):
        strict.plan()
    assert lenient.epoch() == [1, 2, 3]
    add(client, 4, 5)
    assert lenient.epoch() == [4, 5]


def test_a_stream_made_again_with_more_entries_than_were_read_is_noticed(valkey: EmbeddedServer) -> None:
    """Where the server counts: neither its ids nor its length went back."""
    with valkey.client() as client:
        add(client, 1, 100)
        strict, lenient = NumbersQuery(valkey), NumbersQuery(valkey, failOnDataLoss="false")
        assert strict.epoch() == lenient.epoch() == list(range(1, 101))
        client.delete(STREAM)
        add(client, 1001, 1150)
    with pytest.raises(EntriesLost, match="was deleted and created again since 100-0 was read"):
        strict.plan()
    assert lenient.epoch() == list(range(1001, 1151))
    assert lenient.at["lost"] == 0


def test_a_query_that_catches_up_ends_where_the_stream_ended_when_it_began(
    server: EmbeddedServer, client: redis.Redis
) -> None:
    add(client, 1, 10)
    query = NumbersQuery(server, failOnDataLoss="false")
    query.reader.prepareForTriggerAvailableNow()
    assert query.epoch(4) == [1, 2, 3, 4]
    # When entries are added and deleted meanwhile, then those added wait for the next query
    add(client, 11, 30)
    client.xdel(STREAM, "2-0", "20-0")
    assert [query.epoch(4), query.epoch(4), query.epoch(4)] == [[5, 6, 7, 8], [9, 10], []]
    again = NumbersQuery(server, failOnDataLoss="false")
    again.at = query.at
    again.reader.prepareForTriggerAvailableNow()
    assert again.epoch() == [*range(11, 20), *range(21, 31)]


def test_a_server_that_cannot_count_says_once_what_cannot_be_known(
    redis6: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    with redis6.client() as client:
        add(client, 1, 10)
        query = NumbersQuery(redis6)
        query.epoch()
        trim(client, 9)
        add(client, 11, 12)
        query.epoch()
        assert caplog.text == ""
        trim(client, 100)
        for number in (13, 14):
            add(client, number, number)
            query.epoch()
        assert caplog.text.count("cannot tell whether") == 1


def test_a_streaming_query_refuses_an_end(valkey: EmbeddedServer) -> None:
    with pytest.raises(ConfigurationError, match="endingId is for a batch read"):
        NumbersQuery(valkey, endingId="5")
