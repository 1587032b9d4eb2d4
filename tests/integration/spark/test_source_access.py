"""The permissions that `bridge acl` prints for writers and readers from Spark suffice, and allow nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
import redis
from pyspark.sql.streaming.datasource import ReadAllAvailable
from redis import Redis

from bridge.routing.errors import StreamFull, TicketBridgeError
from bridge.routing.keys import LaneKeys, push_prefix
from bridge.spark.job.progress import entries_added
from bridge.spark.read.columns import default_schema
from bridge.spark.read.options import parse_read
from bridge.spark.read.reader import RedisStreamReader
from bridge.spark.read.stream_reader import RedisStreamStreamReader
from bridge.spark.wire.address import check_server, connect
from bridge.spark.write.guard import summary_of, waiting
from bridge.spark.write.options import parse
from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST
from tests.integration.servers import rules_of
from tests.integration.spark.spark_writes import log, partition, writer

KEYS = LaneKeys("ticket_stream", "concurrency_stream_group")
STREAM = KEYS.stream
PASSWORD = "pw-spark"
WRITER, READER = "spark", "spark-reader"
#: What a reader reads: a lane's messages, what became of them, and those that were given up.
READ = {"messages": STREAM, "history": KEYS.history, "dead": KEYS.dead}


@pytest.fixture(scope="module")
def rules() -> dict[str, list[str]]:
    return {role: rules_of(role) for role in (WRITER, READER)}


@pytest.fixture
def admin(server: EmbeddedServer, rules: dict[str, list[str]]) -> Iterator[Redis]:
    with server.client() as client:
        client.execute_command("ACL", "LOG", "RESET")
        for arguments in rules.values():
            client.execute_command(*arguments, f">{PASSWORD}")
        yield client
        client.acl_deluser(*(f"bridge-{role}" for role in rules))
        client.execute_command("ACL", "LOG", "RESET")


def url_of(role: str, server: EmbeddedServer) -> str:
    return f"redis://bridge-{role}:{PASSWORD}@{HOST}:{server.port}/0"


def refused(admin: Redis) -> list[tuple[object, object]]:
    """What the server refused, but the client's telling of its version."""
    found = [(entry["reason"], entry["object"]) for entry in admin.acl_log()]
    return [one for one in found if one[1] not in ("client", "client|setinfo")]


def write(url: str) -> None:
    """Every kind of write, one that has to wait and gives up, and what is asked about them."""
    check_server(url, STREAM)
    one = writer(url, stream=STREAM, runId="r", seqColumn="seq", fields="payload")
    one.commit([one.write(iter([log(50)]))])
    for idempotence in ("watermark", "ticket", "none"):
        options = {"idempotence": idempotence, "seqColumn": "seq", "fields": "seq,payload", "stream": STREAM}
        partition(url, iter([log(50)]), **options)
    with pytest.raises(StreamFull):
        partition(url, iter([log(50)]), (1, 0), stream=STREAM, highWater="10", maxWait="3")
    connection = connect(url)
    assert summary_of(connection, parse({"stream": STREAM}), "r") is not None
    assert waiting(connection, STREAM) != []
    assert entries_added(connection, STREAM) == 200
    connection.disconnect()


def read(url: str, table: str) -> tuple[int, int]:
    """How many entries a batch in several parts has, and an epoch of a streaming query."""
    check_server(url, STREAM)
    options = {"url": url, "stream": STREAM, "table": table, **({"group": KEYS.group} if table != "messages" else {})}
    batch = RedisStreamReader(parse_read({**options, "numPartitions": "3"}), default_schema())
    in_batch = sum(rows.num_rows for part in batch.partitions() for rows in batch.read(part))
    query = RedisStreamStreamReader(parse_read(options), default_schema())
    begin = query.initialOffset()
    end = query.latestOffset(begin, ReadAllAvailable())
    in_epoch = sum(rows.num_rows for part in query.partitions(begin, end) for rows in query.read(part))
    return in_batch, in_epoch


def fill(admin: Redis) -> None:
    for stream in READ.values():
        for number in range(300):
            admin.execute_command("XADD", stream, f"{number + 1}-0", "ticket_id", "T", "d", "[]")


def test_the_printed_permissions_suffice_for_every_kind_of_write(admin: Redis, server: EmbeddedServer) -> None:
    write(url_of(WRITER, server))
    assert refused(admin) == []
    assert admin.xlen(STREAM) == 200


def test_the_printed_permissions_suffice_for_every_kind_of_read_and_each_is_needed(
    admin: Redis, server: EmbeddedServer, rules: dict[str, list[str]]
) -> None:
    fill(admin)
    url = url_of(READER, server)
    for table in READ:
        assert read(url, table) == (300, 300)
    assert refused(admin) == []
    # Without any one of them something of that is refused; SELECT is for other databases than 0
    for granted in {word for word in rules[READER] if word.startswith("+")} - {"+select"}:
        admin.execute_command(*(word for word in rules[READER] if word != granted))
        with suppress(TicketBridgeError):
            read(url, "messages")
        assert refused(admin) != [], granted
        admin.execute_command("ACL", "LOG", "RESET")


#: What nobody of these may.
NOBODY = (
    ("DEL", STREAM),
    ("XADD", "another", "*", "a", "b"),
    ("XREADGROUP", "GROUP", KEYS.group, "x", "STREAMS", STREAM, ">"),
    ("HGETALL", f"{push_prefix('another')}:run:r"),
    ("HGETALL", KEYS.tickets),
    ("KEYS", "*"),
    ("FLUSHALL",),
    ("CONFIG", "GET", "*"),
)
BEYOND = {
    WRITER: (("XRANGE", STREAM, "-", "+"), ("XRANGE", KEYS.history, "-", "+")),
    READER: (
        ("XADD", STREAM, "*", "a", "b"),
        ("XDEL", STREAM, "1-1"),
        ("XTRIM", STREAM, "MAXLEN", "0"),
        ("XGROUP", "CREATE", STREAM, "mine", "0"),
        ("EVAL", "return 1", "0"),
        ("XRANGE", KEYS.outcomes, "-", "+"),
        ("HGETALL", f"{push_prefix(STREAM)}:run:r"),
    ),
}


@pytest.mark.parametrize("role", [WRITER, READER])
def test_nothing_else_is_allowed(admin: Redis, server: EmbeddedServer, role: str) -> None:
    with Redis.from_url(url_of(role, server)) as spark:
        for command in (*NOBODY, *BEYOND[role]):
            with pytest.raises(redis.exceptions.NoPermissionError):
                spark.execute_command(*command)


@pytest.mark.parametrize("command", ["info", "ping", "xinfo|stream", "xrange", "xrevrange"])
def test_a_missing_permission_to_read_is_one_line_without_the_password(
    admin: Redis, server: EmbeddedServer, rules: dict[str, list[str]], command: str
) -> None:
    fill(admin)
    admin.execute_command(*(word for word in rules[READER] if word != f"+{command}"))
    with pytest.raises(TicketBridgeError, match=r"(?i)no ?perm") as told_:
        read(url_of(READER, server), "messages")
    assert "\n" not in str(told_.value)
    assert "no Redis at" not in str(told_.value)
    assert PASSWORD not in str(told_.value)
