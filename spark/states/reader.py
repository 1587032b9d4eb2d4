"""Reading states as a batch: each ticket's as it is when its hash is read. Nothing is written.

Each task goes over the names of all keys with SCAN, and reads the hashes of its share of the tickets. So no process
holds all names, and the tasks read at once. SCAN may return a name twice while the server resizes its table. A task
remembers the names of its share, so that each ticket is one row. A state that is there during the whole read is read. A
state that begins or is deleted meanwhile is in the table or not. An empty hash does not exist, so it is no row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import pyarrow as pa
import redis
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import MapType, StringType, StructField, StructType

from bridge.routing.errors import ConfigurationError, PayloadError
from bridge.routing.exact_json import exact
from bridge.routing.text import printable
from bridge.spark.states.names import Home, homes_of, share_of
from bridge.spark.states.options import StateOptions
from bridge.spark.wire.address import RedisConnection, connect, unavailable
from bridge.spark.wire.worker import begin_task

TICKET, SUBSCRIPTION, STATE, PROBLEM = "ticket_id", "subscription", "state", "problem"
#: The columns of a read without a schema.
SCHEMA = StructType(
    [
        StructField(TICKET, StringType(), nullable=False),
        StructField(SUBSCRIPTION, StringType(), nullable=False),
        StructField(STATE, MapType(StringType(), StringType())),
        StructField(PROBLEM, StringType()),
    ]
)
#: Keys of the database for each task, and most tasks, where the user names no number.
KEYS_OF_TASK = 250_000
MOST_TASKS = 16
#: Keys that one SCAN looks at: about a millisecond of the server.
SCAN_COUNT = 1000
#: Hashes that are asked for at once. Each may be as large as ``bridge_max_state``, or larger if no task wrote it.
UNANSWERED = 64
#: Rows and bytes of a batch.
BATCH_ROWS, BATCH_BYTES = 10_000, 4 * 1024 * 1024


@dataclass
class Share(InputPartition):
    """The tickets of one task."""

    homes: tuple[Home, ...]
    number: int
    of: int


class RedisStateReader(DataSourceReader):
    """Plans a read on the driver, and reads a share of the tickets in each task. Spark pickles it."""

    def __init__(self, options: StateOptions, schema: StructType) -> None:
        """Raises ``ConfigurationError`` for columns that a read cannot fill."""
        self._options = options
        self._names = _checked(schema)
        self._as_map = any(isinstance(column.dataType, MapType) for column in schema.fields)
        self._nullable = tuple(column.nullable for column in schema.fields)

    def __repr__(self) -> str:
        """Without the URL's secrets."""
        return f"RedisStateReader({self._options.stream} at {self._options.shown_url})"

    def partitions(self) -> Sequence[InputPartition]:
        """The shares. Raises what ``homes_of`` raises."""
        options = self._options
        connection = connect(options.url)
        try:
            homes = tuple(homes_of(connection, options))
            connection.send_command("DBSIZE")
            keys = cast(int, connection.read_response(disable_decoding=True))
        except (redis.RedisError, OSError) as error:
            raise unavailable(options.url, error) from None
        finally:
            connection.disconnect()
        tasks = options.partitions or max(1, min(MOST_TASKS, -(-keys // KEYS_OF_TASK)))
        return [Share(homes, number, tasks) for number in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The states of one share. Raises ``ServerUnavailable``, and ``PayloadError`` for a damaged state."""
        begin_task()
        if not isinstance(partition, Share):
            return
        connection = connect(self._options.url)
        try:
            for home in partition.homes:
                yield from self._of_home(connection, home, partition)
        except (redis.RedisError, OSError) as error:
            raise unavailable(self._options.url, error) from None
        finally:
            connection.disconnect()

    def _of_home(self, connection: RedisConnection, home: Home, share: Share) -> Iterator[pa.RecordBatch]:
        rows: list[tuple[Any, ...]] = []
        size = 0
        for ticket, reply in _hashes(connection, home, share):
            row, bytes_ = self._row(home, ticket, reply)
            rows.append(row)
            size += bytes_
            if len(rows) == BATCH_ROWS or size >= BATCH_BYTES:
                yield self._batch(rows)
                rows, size = [], 0
        if rows:
            yield self._batch(rows)

    def _row(self, home: Home, ticket: bytes, reply: list[bytes] | redis.ResponseError) -> tuple[tuple[Any, ...], int]:
        """The row of a ticket, and its size in bytes."""
        shown = ticket.decode(errors="backslashreplace")
        if isinstance(reply, redis.ResponseError):
            return self._damaged(home, shown, "its key is not a hash"), len(ticket)
        size = len(ticket) + sum(map(len, reply))
        try:
            ticket.decode()
        except UnicodeDecodeError:
            return self._damaged(home, shown, "its ticket is not UTF-8"), size
        fields: dict[str, str] = {}
        for name, text in zip(reply[::2], reply[1::2], strict=True):
            if (why := _problem(name, text)) is not None:
                field = printable(name.decode(errors="backslashreplace"))
                return self._damaged(home, shown, f"the field {field} is {why}"), size
            fields[name.decode()] = text.decode()
        return (shown, home.subscription, self._state(fields), None), size

    def _state(self, fields: dict[str, str]) -> Any:
        if self._as_map:
            return list(fields.items())
        members = (f"{json.dumps(name, ensure_ascii=False)}:{text}" for name, text in fields.items())
        return f"{{{','.join(members)}}}"

    def _damaged(self, home: Home, ticket: str, why: str) -> tuple[Any, ...]:
        if self._options.fail_on_damage:
            _refuse(home, ticket, why)
        return (ticket, home.subscription, None, why)

    def _batch(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        kinds = {STATE: pa.map_(pa.string(), pa.string())} if self._as_map else {}
        places = [SCHEMA.names.index(name) for name in self._names]
        columns = [
            pa.array([row[place] for row in rows], kinds.get(SCHEMA.names[place], pa.string())) for place in places
        ]
        fields = [
            pa.field(name, column.type, nullable=nullable)
            for name, column, nullable in zip(self._names, columns, self._nullable, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _hashes(
    connection: RedisConnection, home: Home, share: Share
) -> Iterator[tuple[bytes, list[bytes] | redis.ResponseError]]:
    """The tickets of a share, each once, with what HGETALL answers. Those that are gone are left out."""
    seen: set[bytes] = set()
    for names in _scanned(connection, home):
        mine = []
        for name in names:
            ticket = name[len(home.prefix) :]
            if share_of(ticket, share.of) == share.number and ticket not in seen:
                seen.add(ticket)
                mine.append(ticket)
        for start in range(0, len(mine), UNANSWERED):
            some = mine[start : start + UNANSWERED]
            for ticket in some:
                connection.send_command("HGETALL", home.prefix + ticket)
            for ticket in some:
                reply: list[bytes] | redis.ResponseError
                try:
                    reply = cast("list[bytes]", connection.read_response(disable_decoding=True))
                except redis.ResponseError as error:
                    if "WRONGTYPE" not in str(error):
                        raise
                    reply = error
                if reply:
                    yield ticket, reply


def _scanned(connection: RedisConnection, home: Home) -> Iterator[list[bytes]]:
    cursor = b"0"
    while True:
        connection.send_command("SCAN", cursor, "MATCH", home.pattern, "COUNT", str(SCAN_COUNT))
        cursor, names = cast("tuple[bytes, list[bytes]]", connection.read_response(disable_decoding=True))
        yield names
        if cursor == b"0":
            return


def _problem(name: bytes, text: bytes) -> str | None:
    """Why a field of a state is damaged, as a worker finds it; None: it is not."""
    try:
        name.decode()
        exact(text)
    except UnicodeDecodeError:
        return "not UTF-8"
    except ValueError:
        return "not JSON"
    return None


def _refuse(home: Home, ticket: str, why: str) -> NoReturn:
    raise PayloadError(
        f"the state of ticket {printable(ticket)!r} in {home.subscription} is damaged: {why}; correct it, or read it "
        "with the option damaged=row, which puts the reason into the column problem"
    )


def _checked(schema: StructType) -> tuple[str, ...]:
    """The names of the columns. Raises ``ConfigurationError`` for one that a read cannot fill."""
    text = "they are ticket_id, subscription, problem (STRING) and state (MAP<STRING, STRING> or STRING)"
    for column in schema.fields:
        kind = column.dataType
        fits = isinstance(kind, StringType)
        if column.name == STATE and isinstance(kind, MapType):
            fits = isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
            fits = fits and kind.valueContainsNull
        if column.name not in SCHEMA.names or not fits:
            raise ConfigurationError(f"a state has no column {column.name} {kind.simpleString()}: {text}")
        if not column.nullable and column.name in (STATE, PROBLEM):
            raise ConfigurationError(f"column {column.name} may be null; leave NOT NULL out of the schema")
    return tuple(schema.names)
