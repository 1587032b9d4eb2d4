"""The states of tickets as a table: the reader, called as Spark calls it, without a JVM, against a real server."""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql.types import MapType, StringType, StructField, StructType

from bridge.routing.errors import ConfigurationError, InputError, PayloadError, ServerUnavailable
from bridge.routing.keys import LaneKeys
from bridge.spark.state_source import RedisStateDataSource
from bridge.spark.states import reader as states
from bridge.spark.states.options import parse_states
from bridge.spark.states.reader import SCHEMA, RedisStateReader, Share
from bridge.stack.embedded import EmbeddedServer

#: A name with characters that patterns treat as their own.
STREAM = "sh[o]p?*\\"
GROUP = "billing"
KEYS = LaneKeys(STREAM, GROUP)
ROOT = Path(__file__).parents[3]
Row = dict[str, Any]


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with server.client() as made:
        yield made


def reader(server: EmbeddedServer, schema: StructType = SCHEMA, **options: Any) -> RedisStateReader:
    given = {"url": server.url, "stream": STREAM, "group": GROUP, **{name: str(v) for name, v in options.items()}}
    # Spark sends it to the task so.
    sent = pickle.loads(pickle.dumps(RedisStateReader(parse_states(given), schema)))
    assert isinstance(sent, RedisStateReader)
    return sent


def shares(made: RedisStateReader) -> list[Share]:
    found = pickle.loads(pickle.dumps(made.partitions()))
    assert all(isinstance(part, Share) for part in found)
    return list(found)


def rows_of(made: RedisStateReader) -> list[Row]:
    return [row for part in shares(made) for batch in made.read(part) for row in batch.to_pylist()]


def save(client: redis.Redis, ticket: str | bytes, keys: LaneKeys = KEYS, **values: Any) -> None:
    name = ticket.encode() if isinstance(ticket, str) else ticket
    client.hset(keys.state("").encode() + name, mapping={field: json.dumps(value) for field, value in values.items()})


def test_each_state_is_one_row_shared_among_the_tasks(server: EmbeddedServer, client: redis.Redis) -> None:
    tickets = {f"T:{number} ü*": number for number in range(2500)}
    for ticket, number in tickets.items():
        save(client, ticket, total=number)
    # Keys that are no states of this subscription
    save(client, "T", LaneKeys("shop", GROUP), total=-1)
    save(client, "T", LaneKeys(STREAM, "billing:state"), total=-1)
    save(client, "T", LaneKeys(STREAM, "bill"), total=-1)
    client.hset(KEYS.tickets, "T", "record")
    made = reader(server, numPartitions=3)
    found = [[row for batch in made.read(part) for row in batch.to_pylist()] for part in shares(made)]
    assert {row["ticket_id"]: dict(row["state"]) for rows in found for row in rows} == {
        ticket: {"total": str(number)} for ticket, number in tickets.items()
    }
    assert sum(map(len, found)) == len(tickets), "each is there once"
    assert min(map(len, found)) > len(tickets) / 3 * 0.8, "the tasks share the work"
    assert {(row["subscription"], row["problem"]) for rows in found for row in rows} == {(GROUP, None)}


def test_a_name_that_scan_returns_twice_is_one_row(
    server: EmbeddedServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(client, "A", n=1)
    scanned = states._scanned
    monkeypatch.setattr(states, "_scanned", lambda *at: (page for _ in range(2) for page in scanned(*at)))
    assert [row["ticket_id"] for row in rows_of(reader(server))] == ["A"]


def test_a_state_that_is_deleted_during_the_read_is_no_row_and_the_others_are_whole(
    server: EmbeddedServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ticket in "ABC":
        save(client, ticket, n=1)
    scanned = states._scanned

    def deleted_after(*at: Any) -> Iterator[list[bytes]]:
        for page in scanned(*at):
            client.delete(KEYS.state("B"))
            yield page

    monkeypatch.setattr(states, "_scanned", deleted_after)
    assert sorted(row["ticket_id"] for row in rows_of(reader(server))) == ["A", "C"]


def test_batches_are_bounded_by_bytes_and_by_rows(
    server: EmbeddedServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        save(client, f"T{number}", text="x" * 1000)
    made = reader(server)
    [share] = shares(made)
    monkeypatch.setattr(states, "BATCH_BYTES", 3000)
    assert [batch.num_rows for batch in made.read(share)] == [3, 3, 3, 1]
    monkeypatch.setattr(states, "BATCH_BYTES", 10**9)
    monkeypatch.setattr(states, "BATCH_ROWS", 4)
    monkeypatch.setattr(states, "UNANSWERED", 3)
    assert [batch.num_rows for batch in made.read(share)] == [4, 4, 2]


DAMAGED: list[tuple[bytes, dict[Any, Any] | str, str]] = [
    (b"A", {"n": "{"}, "the field n is not JSON"),
    (b"A", {"n": "NaN"}, "the field n is not JSON"),
    (b"A", {"n": "[" * 100_000}, "the field n is not JSON"),
    (b"A", {"n": "[" * 201 + "]" * 201}, "the field n is not JSON"),
    (b"A", {"n": "1e999"}, "the field n is not JSON"),
    (b"A", {"n": r'"\ud800"'}, "the field n is not JSON"),
    (b"A", {"n": b"\xff"}, "the field n is not UTF-8"),
    (b"A", {b"\xff": "1"}, r"the field \xff is not UTF-8"),
    (b"A", "text", "its key is not a hash"),
    (b"\xff", {"n": "1"}, "its ticket is not UTF-8"),
]


@pytest.mark.parametrize(("ticket", "stored", "why"), DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_state_fails_the_read_or_is_a_row_that_says_why(
    server: EmbeddedServer, client: redis.Redis, ticket: bytes, stored: dict[Any, Any] | str, why: str
) -> None:
    key = KEYS.state("").encode() + ticket
    _ = client.set(key, stored) if isinstance(stored, str) else client.hset(key, mapping=stored)
    save(client, "good", n=1)
    with pytest.raises(PayloadError) as raised:
        rows_of(reader(server))
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)
    found = {row["ticket_id"]: row for row in rows_of(reader(server, damaged="row"))}
    bad = found.pop(ticket.decode(errors="backslashreplace"))
    assert (bad["state"], bad["problem"]) == (None, why)
    assert dict(found["good"]["state"]) == {"n": "1"}


def test_all_subscriptions_of_a_stream_and_where_an_older_version_keeps_them(
    server: EmbeddedServer, client: redis.Redis
) -> None:
    everything = RedisStateReader(parse_states({"url": server.url, "stream": STREAM}), SCHEMA)
    with pytest.raises(InputError, match="has no consumer group"):
        everything.partitions()
    client.xgroup_create(STREAM, GROUP, mkstream=True)
    client.xgroup_create(STREAM, "a:b", mkstream=True)
    save(client, "T", n=1)
    save(client, "T", LaneKeys("older", "a:b"), n=2)
    client.set(LaneKeys(STREAM, "a:b").state_home, "older")
    found = {(row["ticket_id"], row["subscription"]): dict(row["state"]) for row in rows_of(everything)}
    assert found == {("T", GROUP): {"n": "1"}, ("T", "a:b"): {"n": "2"}}


def test_the_state_may_be_one_json_text(server: EmbeddedServer, client: redis.Redis) -> None:
    client.hset(KEYS.state("T"), 'a "b"', '[1,{"ü":null}]')
    schema = StructType([StructField("state", StringType()), StructField("ticket_id", StringType(), nullable=False)])
    [row] = rows_of(reader(server, schema))
    assert json.loads(row["state"]) == {'a "b"': [1, {"ü": None}]}
    assert list(row) == ["state", "ticket_id"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"grup": "x"}, "option grup is unknown; did you mean group?"),
        ({"damaged": "perhaps"}, "option damaged must be fail or row, not 'perhaps'"),
        ({"numPartitions": "0"}, "option numPartitions must be a whole number of at least 1, not '0'"),
        ({"stream": " "}, "option stream is empty"),
        ({"url": "http://user:secret@h"}, "option url must start with redis://, rediss://, unix:// or sentinel://"),
    ],
    ids=range(5),
)
def test_bad_options_are_one_line(options: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        RedisStateDataSource(options)
    assert str(raised.value) == error


def test_columns_that_it_does_not_have_and_a_write_are_refused() -> None:
    source = RedisStateDataSource({"url": "redis://user:secret@localhost:6379/3"})
    assert "secret" not in f"{source!r} {source.reader(SCHEMA)!r}"
    numbers = MapType(StringType(), StringType(), valueContainsNull=False)
    for column in (StructField("total", StringType()), StructField("state", numbers)):
        with pytest.raises(ConfigurationError, match=f"^a state has no column {column.name} "):
            source.reader(StructType([column]))
    with pytest.raises(ConfigurationError, match="NOT NULL"):
        source.reader(StructType([StructField("state", StringType(), nullable=False)]))
    with pytest.raises(ConfigurationError, match="is for reading"):
        source.writer(SCHEMA, overwrite=False)


def test_the_permissions_of_the_page_suffice(server: EmbeddedServer, client: redis.Redis) -> None:
    page = (ROOT / "docs" / "reference" / "spark-source.md").read_text()
    [rules] = re.findall(r"^    ACL SETUSER states (.*)$", page, re.MULTILINE)
    rules = rules.replace("concurrency_stream_group", GROUP).replace("PASSWORD", "pw")
    stream = "ticket_stream"
    client.xgroup_create(stream, GROUP, mkstream=True)
    save(client, "T", LaneKeys(stream, GROUP), n=1)
    client.execute_command("ACL", "LOG", "RESET")
    client.execute_command("ACL", "SETUSER", "states", *rules.split())
    try:
        url = server.url.replace("redis://", "redis://states:pw@")
        for group in ({"group": GROUP}, {}):
            made = RedisStateReader(parse_states({"url": url, "stream": stream, **group}), SCHEMA)
            assert [dict(row["state"]) for row in rows_of(made)] == [{"n": "1"}]
        refused = {entry["object"] for entry in client.acl_log()}
        assert refused <= {"client", "client|setinfo"}, "the client tells its version"
    finally:
        client.acl_deluser("states")
        client.execute_command("ACL", "LOG", "RESET")


def test_a_server_that_is_away_or_refuses_is_one_line(server: EmbeddedServer, client: redis.Redis) -> None:
    made = reader(server)
    [share] = shares(made)
    client.acl_setuser("default", enabled=True, nopass=True, keys="*", commands=["+@all", "-scan"])
    with pytest.raises(ServerUnavailable, match=r"refuses: .*scan") as raised:
        list(made.read(share))
    assert "\n" not in str(raised.value)
    client.acl_setuser("default", enabled=True, nopass=True, keys="*", commands=["+@all"])
    assert Counter(row["ticket_id"] for row in rows_of(made)) == Counter()
