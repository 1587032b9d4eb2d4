"""Which streams of the server a read takes entries from.

A stream that is not split is one. Each partition of a split stream is one. The stored layout says which
(``bridge.routing.layouts``), so it is read each time a read is planned. The history and the dead letters of a group
are streams beside each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import redis

from bridge.routing.errors import ServerUnavailable, StreamRetired
from bridge.routing.keys import LaneKeys, layout_copy_key, layout_key
from bridge.routing.layouts import layout_of, lost_layout, retired_in
from bridge.routing.partitions import AT, first_partition
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
    """The streams to read now, in the order of the partitions. Those of the layout before come first, as long as they
    exist.

    Raises ``ServerUnavailable`` (also for a lost layout), ``RefusedByServer``, ``StreamRetired``, and
    ``ConfigurationError`` for a layout that cannot be read.
    """
    stream, own = options.stream, source_named(options, options.stream)
    try:
        connection.send_command("GET", layout_key(stream))
        stored = cast("bytes | None", connection.read_response(disable_decoding=True)) or b""
    except redis.exceptions.NoPermissionError:
        # A user who may read this stream only.
        if _is_there(connection, options, own.key):
            return [own]
        stored = b"NOPERM"
    except redis.ResponseError as error:
        if "WRONGTYPE" not in str(error):
            raise RefusedByServer(f"cannot read {stream!r} at {without_secrets(options.url)}: {error}") from None
        stored = b"WRONGTYPE"
    except (redis.RedisError, OSError) as error:
        raise unavailable(options.url, error) from None
    if (note := retired_in(stored)) is not None:
        raise StreamRetired(f"{note.sentence(stream)}, with its entries; read {note.newest}")
    if not stored and _is_lost(connection, options):
        raise ServerUnavailable(lost_layout(stream))
    layout = layout_of(stored, stream)
    before = layout.older or layout.leaving
    # These are deleted one after the other at the end of a repartition.
    old = [] if before is None else [source_named(options, name) for name in before.streams(stream)]
    kept = [one for one in old if _is_there(connection, options, one.key)]
    return kept + [source_named(options, name) for name in layout.streams(stream)]


def source_named(options: ReadOptions, name: str) -> Source:
    """The source of a stream that is the stream of ``options`` or one of its partitions, of any layout."""
    keys = LaneKeys(name, options.group)
    key = {HISTORY: keys.history, DEAD: keys.dead}.get(options.table, name)
    # As ``bridge.routing.partitions.Layout`` makes names and suffixes: ``stream:g1:p0`` has ``@g1p0``.
    partition = name.removeprefix(options.stream).replace(":", "")
    return Source(name, key, f"{AT}{partition}" if partition else "")


def _is_lost(connection: RedisConnection, options: ReadOptions) -> bool:
    """Whether the stream, which has no layout, is split: a layout has a copy, or there is a partition and no stream."""
    streams = (options.stream, first_partition(options.stream), layout_copy_key(options.stream))
    kinds: list[object] = []
    try:
        for stream in streams:
            connection.send_command("TYPE", stream)
        for _ in streams:
            try:
                kinds.append(connection.read_response(disable_decoding=True))
            except redis.exceptions.NoPermissionError:
                kinds.append(None)
    except (redis.RedisError, OSError) as error:
        raise unavailable(options.url, error) from None
    return kinds[:2] == [b"none", b"stream"] or kinds[2] == b"string"


def _is_there(connection: RedisConnection, options: ReadOptions, key: str) -> bool:
    """Whether ``key`` is a stream, as far as this user may know."""
    try:
        connection.send_command("XINFO", "STREAM", key)
        connection.read_response(disable_decoding=True)
    except redis.ResponseError:
        return False
    except (redis.RedisError, OSError) as error:
        raise unavailable(options.url, error) from None
    return True
