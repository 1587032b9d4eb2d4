"""The data source reads a split stream, called as Spark calls it, without a JVM: all partitions, each entry once."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis

from bridge.routing.errors import ConfigurationError, EntriesLost, ServerUnavailable, StreamRetired
from bridge.routing.keys import LaneKeys, layout_key
from bridge.routing.layouts import Retired, text_of_layout
from bridge.routing.partitions import Layout
from bridge.spark.job.progress import entries_added
from bridge.spark.read.columns import default_schema
from bridge.spark.read.options import parse_read
from bridge.spark.read.ranges import TaskRanges
from bridge.spark.read.reader import RedisStreamReader
from bridge.spark.wire.address import connect
from bridge.stack.embedded import EmbeddedServer
from tests.integration.spark.streaming_query import STREAM, Query, kept

P = 4
FIRST, SECOND = Layout(P), Layout(3, 1)


def store(client: redis.Redis, layout: Layout) -> None:
    text = {"partitions": layout.partitions, "generation": layout.generation, "since_ms": 1}
    client.set(layout_key(STREAM), json.dumps(text))


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with server.client(decode_responses=True) as made:
        store(made, FIRST)
        yield made


def add(client: redis.Redis, number: int, first: int, last: int, layout: Layout = FIRST) -> list[str]:
    """Adds entries to one partition; returns their ids as rows have them."""
    pipeline = client.pipeline(transaction=False)
    for ms in range(first, last + 1):
        pipeline.xadd(layout.stream(STREAM, number), {"ticket_id": "T", "payload": "{}"}, id=f"{ms}-0")
    pipeline.execute()
    return [f"{ms}-0{layout.suffix(number)}" for ms in range(first, last + 1)]


class Batch:
    """What Spark does with a batch."""

    def __init__(self, server: EmbeddedServer, **options: str) -> None:
        parsed = parse_read({"url": server.url, "stream": STREAM, **options})
        self.reader: RedisStreamReader = pickle.loads(pickle.dumps(RedisStreamReader(parsed, default_schema())))
        self.tasks = [task for task in self.reader.partitions() if isinstance(task, TaskRanges)]

    def ids(self) -> list[list[str]]:
        """The ids that each task reads."""
        return [[id_ for rows in self.reader.read(task) for id_ in rows["id"].to_pylist()] for task in self.tasks]


class SplitQuery(Query[str]):
    """A query of a split stream."""

    def row(self, id_: str) -> str:
        return id_

    @property
    def lost(self) -> int:
        return sum(offset["lost"] for offset in self.at["streams"].values())


def test_the_progress_of_a_write_counts_the_entries_of_all_partitions(
    server: EmbeddedServer, client: redis.Redis
) -> None:
    connection = connect(server.url)
    assert entries_added(connection, STREAM) == 0
    for number in range(P - 1):
        add(client, number, 1, 10 + number)
    assert entries_added(connection, STREAM) == 10 + 11 + 12
    client.delete(layout_key(STREAM))
    client.xadd(STREAM, {"ticket_id": "T"})
    assert entries_added(connection, STREAM) == 1
    connection.disconnect()


def test_a_batch_has_all_partitions_each_in_tasks_of_its_own(server: EmbeddedServer, client: redis.Redis) -> None:
    # Given two partitions with the same stream ids, one that is empty, and one that nobody has written to
    whole = add(client, 0, 1, 30), add(client, 1, 11, 20)
    client.xdel(FIRST.stream(STREAM, 2), *(id_.partition("@")[0] for id_ in add(client, 2, 1, 3)))
    # Then each partition with entries has a task, and each row names its partition
    assert Batch(server).ids() == [*whole]
    assert whole[1][0] == "11-0@p1"
    # And more tasks are shared by the number of entries
    shares = Batch(server, numPartitions="4").ids()
    assert [len({id_.partition("@")[2] for id_ in ids}) for ids in shares] == [1] * 4
    assert Counter(ids[0].partition("@")[2] for ids in shares) == {"p0": 3, "p1": 1}
    assert sorted(id_ for ids in shares for id_ in ids) == sorted([*whole[0], *whole[1]])
    # And a task reads several partitions where there are fewer tasks
    assert Batch(server, numPartitions="1").ids() == [[*whole[0], *whole[1]]]
    # And both ends hold for each partition
    assert Batch(server, startingId="15", endingId="16").ids() == [["15-0@p0", "16-0@p0"], ["15-0@p1", "16-0@p1"]]


def test_one_partition_is_read_alone_under_the_ids_of_its_stream(server: EmbeddedServer, client: redis.Redis) -> None:
    add(client, 1, 1, 3)
    assert Batch(server, stream=f"{STREAM}:p1").ids() == [["1-0", "2-0", "3-0"]]


def test_history_and_dead_letters_are_those_of_all_partitions(server: EmbeddedServer, client: redis.Redis) -> None:
    for number, stream in enumerate(FIRST.streams(STREAM)):
        keys = LaneKeys(stream, "g")
        client.xadd(keys.history, {"d": "[]"}, id=f"{number + 1}-0")
        client.xadd(keys.dead, {"reason": "r"}, id=f"{number + 11}-0")
        client.xadd(LaneKeys(stream, "other").dead, {"reason": "r"}, id="99-0")
    history = [[f"{number + 1}-0@p{number}"] for number in range(P)]
    dead = [[f"{number + 11}-0@p{number}"] for number in range(P)]
    assert Batch(server, table="history", group="g").ids() == history
    assert Batch(server, table="dead", group="g").ids() == dead
    query = SplitQuery(server, table="dead", group="g")
    assert query.epoch() == [id_ for ids in dead for id_ in ids]
    # And of a stream that is not split, they are beside it
    client.delete(layout_key(STREAM))
    client.xadd(LaneKeys(STREAM, "g").dead, {"reason": "r"}, id="7-0")
    assert Batch(server, table="dead", group="g").ids() == [["7-0"]]


def test_a_trimmed_partition_is_noticed_by_a_batch(server: EmbeddedServer, client: redis.Redis) -> None:
    for number in range(P):
        add(client, number, 1, 50)
    batch = Batch(server)
    client.execute_command("XTRIM", FIRST.stream(STREAM, 2), "MINID", "20-0")
    with pytest.raises(EntriesLost, match=r"stream 'events:p2' was trimmed .* between 1-0 and 20-0"):
        batch.ids()


@pytest.mark.parametrize("tasks", [{}, {"numPartitions": "1"}, {"numPartitions": "7"}], ids=["own", "one", "seven"])
def test_an_epoch_is_shared_and_can_be_run_again(
    server: EmbeddedServer, client: redis.Redis, tasks: dict[str, str]
) -> None:
    # Given a long backlog in one partition, short ones in two, and none in the last
    long, short, other = add(client, 0, 1, 100), add(client, 1, 1, 5), add(client, 2, 1, 20)
    query = SplitQuery(server, **tasks)
    # When it is read in epochs of thirty
    epochs = [query.epoch(30)]
    assert query.tasks == int(tasks.get("numPartitions", "3"))
    epochs += [query.epoch(30) for _ in range(4)]
    # Then a short backlog is read at once, and the others share what is left
    assert [Counter(id_.partition("@")[2] for id_ in ids) for ids in epochs] == [
        {"p0": 13, "p1": 5, "p2": 12}, {"p0": 22, "p2": 8}, {"p0": 30}, {"p0": 30}, {"p0": 5},
    ]  # fmt: skip
    assert sorted(id_ for ids in epochs for id_ in ids) == sorted([*long, *short, *other])
    assert query.epoch(30) == []
    # And a reader that knows nothing reads each epoch again as it was, though more was added
    more = add(client, 3, 1, 2)
    again = SplitQuery(server, **tasks)
    assert [sorted(again.read(*epoch)) for epoch in query.epochs] == [sorted(ids) for ids in epochs]
    # And goes on from the checkpoint with what was added
    assert SplitQuery(server, query.at, **tasks).epoch(30) == more


def test_epochs_smaller_than_the_number_of_partitions_starve_none(server: EmbeddedServer, client: redis.Redis) -> None:
    # Given a backlog in each partition, one of which grows all the time
    wanted = [id_ for number in range(P) for id_ in add(client, number, 1, 10)]
    query = SplitQuery(server)
    found: list[str] = []
    for turn in range(21):
        wanted += add(client, 0, 11 + 2 * turn, 12 + 2 * turn)
        ids = query.epoch(2)
        assert len(ids) == 2
        found += ids
    # Then all others are read to their ends
    assert {id_ for id_ in wanted if not id_.endswith("@p0")} <= set(found)
    assert len(set(found)) == len(found)


def test_a_checkpoint_of_before_the_split_goes_on_and_a_new_layout_is_followed(
    server: EmbeddedServer, client: redis.Redis
) -> None:
    # Given a query of a stream that is not split
    client.delete(layout_key(STREAM))
    query = SplitQuery(server)
    plain = Layout()
    assert query.epoch() == []
    ids = add(client, 0, 1, 10, plain)
    assert query.epoch(6) == ids[:6]
    assert query.at.keys() == {"id", "position", "rows", "lost"}
    # When the stream gets a layout of a newer generation, and both are written to
    store(client, SECOND)
    new = [id_ for number in range(3) for id_ in add(client, number, 1, 4, SECOND)]
    ids += add(client, 0, 11, 12, plain)
    # Then a query that begins with the old checkpoint reads the rest of both, each entry once
    query = SplitQuery(server, query.at)
    found = query.epoch(5) + query.epoch(5) + query.epoch(5) + query.epoch(5)
    assert sorted(found) == sorted([*ids[6:], *new])
    assert set(query.at["streams"]) == {STREAM, *SECOND.streams(STREAM)}
    assert new[0] == "1-0@g1p0"
    # And epochs are the same when they are run again
    assert sorted(id_ for epoch in query.epochs for id_ in SplitQuery(server).read(*epoch)) == sorted(found)
    # And when the earlier stream is gone, it goes on without it
    client.delete(STREAM)
    more = add(client, 2, 5, 6, SECOND)
    assert SplitQuery(server, query.at).epoch() == more


@pytest.mark.parametrize("name", ["older", "leaving"])
def test_the_partitions_of_the_layout_before_are_read_until_they_are_deleted(
    server: EmbeddedServer, client: redis.Redis, name: str
) -> None:
    # Given a stream that is being repartitioned, and has messages in partitions of both layouts
    layout = replace(SECOND, older=FIRST) if name == "older" else replace(SECOND, leaving=FIRST)
    client.set(layout_key(STREAM), text_of_layout(layout))
    ids = [id_ for number in range(P) for id_ in add(client, number, 1, 3)]
    ids += [id_ for number in range(3) for id_ in add(client, number, 1, 3, SECOND)]
    # Then a batch and a query without a checkpoint have all of them
    assert sorted(id_ for some in Batch(server).ids() for id_ in some) == sorted(ids)
    query = SplitQuery(server)
    assert sorted(query.epoch()) == sorted(ids)
    # And nothing is missed when they are deleted one after the other
    for number in range(P):
        client.delete(FIRST.stream(STREAM, number))
        more = add(client, 1, 4 + number, 4 + number, SECOND)
        query = SplitQuery(server, query.at)
        assert query.epoch() == more


def test_entries_that_a_new_partition_lost_before_its_first_epoch_are_counted(valkey: EmbeddedServer) -> None:
    with valkey.client(decode_responses=True) as client:
        store(client, FIRST)
        query = SplitQuery(valkey, failOnDataLoss="false")
        store(client, SECOND)
        ids = add(client, 1, 1, 10, SECOND)
        client.execute_command("XTRIM", SECOND.stream(STREAM, 1), "MINID", "4-0")
        assert query.epoch() == ids[3:]
        assert query.lost == 3


def test_a_partition_that_is_deleted_is_noticed_and_the_others_go_on(
    server: EmbeddedServer, client: redis.Redis
) -> None:
    for number in range(P):
        add(client, number, 1, 5)
    strict, lenient = SplitQuery(server), SplitQuery(server, failOnDataLoss="false")
    assert strict.epoch() == lenient.epoch()
    # When one partition is deleted, and others get more
    client.delete(FIRST.stream(STREAM, 1))
    more = add(client, 0, 6, 7) + add(client, 3, 6, 6)
    with pytest.raises(EntriesLost, match="stream 'events:p1' was deleted or created again"):
        strict.plan()
    assert sorted(lenient.epoch()) == sorted(more)
    # And when it is there again, it is read from its beginning
    again = add(client, 1, 1, 2)
    assert lenient.epoch() == again
    assert SplitQuery(server, lenient.at).epoch() == []


def test_what_is_trimmed_from_one_partition_is_counted_for_it(valkey: EmbeddedServer) -> None:
    with valkey.client(decode_responses=True) as client:
        store(client, FIRST)
        for number in range(P):
            add(client, number, 1, 10)
        strict, lenient = SplitQuery(valkey), SplitQuery(valkey, failOnDataLoss="false")
        strict.epoch(8)
        lenient.epoch(8)
        client.execute_command("XTRIM", FIRST.stream(STREAM, 2), "MINID", "6-0")
        client.xdel(FIRST.stream(STREAM, 3), "9-0", "10-0")
        with pytest.raises(EntriesLost, match=r"3 entries after 2-0 left stream 'events:p2'"):
            strict.plan(8)
        found = [id_ for _ in range(4) for id_ in lenient.epoch(8)]
        assert len(set(found)) == len(found) == 4 * 8 - 3 - 2
        lost = {name: offset["lost"] for name, offset in lenient.at["streams"].items()}
        assert lost == {"events:p0": 0, "events:p1": 0, "events:p2": 3, "events:p3": 2}


def test_random_additions_deletions_and_restarts_lose_nothing_and_double_nothing(valkey: EmbeddedServer) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    with valkey.client(decode_responses=True) as client:
        store(client, FIRST)
        options = {"failOnDataLoss": "false", "numPartitions": str(draw.choice([1, 3, 9]))}
        query = SplitQuery(valkey, **options)
        layout, ends = FIRST, Counter[str]()
        added, read, gone = set[str](), Counter[str](), set[str]()
        for turn in range(150):
            if turn == 75:
                layout = SECOND
                store(client, layout)
            number = draw.randrange(layout.partitions)
            stream = layout.stream(STREAM, number)
            match draw.choice(["add", "add", "delete", "trim", "read", "read", "restart"]):
                case "add":
                    more = draw.randint(1, 12)
                    added |= set(add(client, number, ends[stream] + 1, ends[stream] + more, layout))
                    ends[stream] += more
                case "delete" | "trim" as how:
                    before = [id_ for id_, _ in client.xrange(stream)]
                    if not before:
                        continue
                    if how == "delete":
                        client.xdel(stream, *draw.sample(before, min(3, len(before))))
                    else:
                        client.execute_command("XTRIM", stream, "MINID", draw.choice(before))
                    after = {id_ for id_, _ in client.xrange(stream)}
                    gone |= {f"{id_}{layout.suffix(number)}" for id_ in before if id_ not in after} - set(read)
                case "restart":
                    query = SplitQuery(valkey, query.at, **options)
                case _:
                    read.update(query.epoch(draw.choice([None, 1, 3, 50])))
        for _ in range(2):
            read.update(query.epoch())
        assert max(read.values()) == 1
        assert set(read) | gone == added
        assert query.lost == len(gone)


def test_a_query_that_catches_up_leaves_what_comes_later_in_every_partition(
    server: EmbeddedServer, client: redis.Redis
) -> None:
    client.delete(layout_key(STREAM))
    before = add(client, 0, 1, 4, Layout())
    at = kept(SplitQuery(server).reader.initialOffset())
    store(client, SECOND)
    query = SplitQuery(server, at)
    before += add(client, 0, 1, 3, SECOND) + add(client, 1, 1, 3, SECOND)
    query.reader.prepareForTriggerAvailableNow()
    found = query.epoch(4)
    # What comes meanwhile, also in a partition and in a layout that are new, waits for the next query
    later = add(client, 0, 4, 5, SECOND) + add(client, 2, 1, 2, SECOND)
    found += query.epoch(4) + query.epoch(4) + query.epoch(4)
    assert sorted(found) == sorted(before)
    assert query.epoch() == []
    assert sorted(SplitQuery(server, query.at).epoch()) == sorted(later)


def test_a_query_may_begin_at_the_end_or_anywhere_of_every_partition(
    server: EmbeddedServer, client: redis.Redis
) -> None:
    for number in range(P):
        add(client, number, 1, 5)
    at_end, inside = SplitQuery(server, startingId="latest"), SplitQuery(server, startingId="5")
    assert inside.epoch() == [f"5-0@p{number}" for number in range(P)]
    assert at_end.epoch() == []
    # Of a partition that is made later, nothing is old, and ids still count
    store(client, SECOND)
    add(client, 0, 4, 6, SECOND)
    assert at_end.epoch() == ["4-0@g1p0", "5-0@g1p0", "6-0@g1p0"]
    assert inside.epoch() == ["5-0@g1p0", "6-0@g1p0"]


def test_a_lost_layout_is_no_empty_stream(server: EmbeddedServer, client: redis.Redis) -> None:
    ids = add(client, 0, 1, 3)
    query = SplitQuery(server)
    client.delete(layout_key(STREAM))
    for plan in (lambda: Batch(server), query.plan):
        with pytest.raises(ServerUnavailable, match=r"its layout is lost: the key \{events\}/layout is not there"):
            plan()
    # When a master has stored it again
    store(client, FIRST)
    assert query.epoch() == ids
    # A stream that nobody has written to is empty
    client.flushdb()
    assert Batch(server).ids() == []


def test_a_layout_that_cannot_be_read_is_refused_in_one_line(own_server: EmbeddedServer) -> None:
    with own_server.client(decode_responses=True) as client:
        client.set(layout_key(STREAM), '{"partitions": "many"}')
        with pytest.raises(ConfigurationError, match="the layout of stream events cannot be read"):
            Batch(own_server)
        client.set(layout_key(STREAM), Retired(1_780_272_000_000, "events:v2", "").text)
        with pytest.raises(StreamRetired, match=r"^stream events was retired on 2026-0.*; read events:v2$"):
            Batch(own_server)
        client.delete(layout_key(STREAM))
        client.hset(layout_key(STREAM), "a", "b")
        with pytest.raises(
            ConfigurationError, match="the layout of stream events cannot be read: no string in the key"
        ):
            SplitQuery(own_server)
        # A user who may not read the layout does not take a split stream for an empty one
        client.delete(layout_key(STREAM))
        store(client, FIRST)
        client.execute_command(
            "ACL", "SETUSER", "eve", "on", ">hunter2", f"~{STREAM}*", "+xrange", "+xrevrange", "+ping", "+xinfo|stream"
        )
        named = own_server.url.replace("redis://", "redis://eve:hunter2@")
        with pytest.raises(
            ConfigurationError, match=r"may not read or store the layout of stream events in the key \{events\}/layout"
        ) as refused:
            Batch(own_server, url=named)
        assert "hunter2" not in str(refused.value)
        # A stream that is there is read as it is
        add(client, 0, 1, 2, Layout())
        assert Batch(own_server, url=named).ids() == [["1-0", "2-0"]]
