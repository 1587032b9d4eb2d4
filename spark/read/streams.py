"""Which streams of the server a read takes entries from.

A stream that is not split is one. Of a split stream, each partition is one. The stored layout says which
(``bridge.routing.layouts``), so it is read each time a read is planned. The history and the dead letters of a group
are streams beside each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import redis

from bridge.routing.errors import StreamRetired
from bridge.routing.keys import LaneKeys, layout_key
from bridge.routing.layouts import layout_of, retired_in
from bridge.routing.partitions import AT
from bridge.spark.read.options import DEAD, HISTORY, ReadOptions
from bridge.spark.wire.address import RedisConnection, unavailable, without_secrets
from bridge.spark.wire.replies import RefusedByServer


@dataclass(frozen=True)
class Source:
    """One stream of the server that is read. Pickled into the tasks."""

    #: The stream of the messages: the whole one, or that of a partition. Offsets are kept under this name.
    name: str
    #: The key that is read: that stream, or the history or the dead letters of a group on it.
    key: str
    #: What follows the ids of its entries in a row, so that they differ from those of the other partitions.
    suffix: str


def sources_of(connection: RedisConnection, options: ReadOptions) -> list[Source]:
    """The streams to read now, in the order of the partitions.

    Raises ``ServerUnavailable``, ``RefusedByServer``, ``StreamRetired``, and ``ConfigurationError`` for a layout that
    cannot be read.
    """
    stream = options.stream
    try:
        connection.send_command("GET", layout_key(stream))
        stored = cast("bytes | None", connection.read_response(disable_decoding=True))
    except redis.exceptions.NoPermissionError as error:
        if not _exists(connection, options):
            raise RefusedByServer(
                f"cannot read how {stream!r} at {without_secrets(options.url)} is split: {error}"
            ) from None
        # A user who may read this stream only.
        return [source_named(options, stream)]
    except redis.ResponseError as error:
        raise RefusedByServer(
            f"cannot read how {stream!r} at {without_secrets(options.url)} is split: {error}"
        ) from None
    except (redis.RedisError, OSError) as error:
        raise unavailable(options.url, error) from None
    if (note := retired_in(stored)) is not None:
        raise StreamRetired(f"{note.sentence(stream)}, with its entries; read {note.newest}")
    return [source_named(options, name) for name in layout_of(stored or b"", stream).streams(stream)]


def source_named(options: ReadOptions, name: str) -> Source:
    """The source of a stream that is the stream of ``options`` or one of its partitions, of any layout."""
    keys = LaneKeys(name, options.group)
    key = {HISTORY: keys.history, DEAD: keys.dead}.get(options.table, name)
    # As ``bridge.routing.partitions.Layout`` makes names and suffixes: ``stream:g1:p0`` has ``@g1p0``.
    partition = name.removeprefix(options.stream).replace(":", "")
    return Source(name, key, f"{AT}{partition}" if partition else "")


def _exists(connection: RedisConnection, options: ReadOptions) -> bool:
    try:
        connection.send_command("XINFO", "STREAM", source_named(options, options.stream).key)
        connection.read_response(disable_decoding=True)
    except redis.ResponseError as error:
        # Another refusal is told by the read itself.
        return "no such key" not in str(error)
    except (redis.RedisError, OSError) as error:
        raise unavailable(options.url, error) from None
    return True
