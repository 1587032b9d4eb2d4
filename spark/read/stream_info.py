"""The bounds and counters of a stream at one moment, all from one reply.

Servers from version 7.0 on count every entry that was ever added. Version 6.2 does not, and there a read notices fewer
of the deletions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import redis

from bridge.spark.wire.address import RedisConnection, unavailable, without_secrets
from bridge.spark.wire.entry_ids import ZERO, EntryId
from bridge.spark.wire.replies import RefusedByServer

#: Requests that are sent before their replies are read: the replies wait in the server's memory.
UNANSWERED = 500


@dataclass(frozen=True)
class StreamInfo:
    """What XINFO STREAM says of a stream. A stream that does not exist is empty."""

    #: Entries in it.
    length: int
    #: The first and the last entry; None when it is empty.
    first: EntryId | None
    last: EntryId | None
    #: The id of the last entry ever added. The entry may be gone.
    last_generated: EntryId
    #: How many entries were ever added; None before version 7.0, which does not count them.
    added: int | None
    #: The largest id among the entries that were deleted singly (XDEL). Trimming does not count.
    deleted: EntryId


def stream_infos(connection: RedisConnection, url: str, streams: Sequence[str]) -> list[StreamInfo]:
    """The bounds and counters of each of ``streams`` now.

    Raises ``ServerUnavailable``, and ``RefusedByServer`` when the server refuses: a key is not a stream, or the user
    has not the right.
    """
    found: list[StreamInfo] = []
    for start in range(0, len(streams), UNANSWERED):
        some = streams[start : start + UNANSWERED]
        try:
            for stream in some:
                connection.send_command("XINFO", "STREAM", stream)
            found += [_answer(connection, url, stream) for stream in some]
        except (redis.RedisError, OSError) as error:
            raise unavailable(url, error) from None
    return found


def _answer(connection: RedisConnection, url: str, stream: str) -> StreamInfo:
    try:
        answer = cast(list[object], connection.read_response(disable_decoding=True))
    except redis.ResponseError as error:
        if "no such key" in str(error):
            return StreamInfo(0, None, None, ZERO, 0, ZERO)
        raise RefusedByServer(f"cannot read {stream!r} at {without_secrets(url)}: {error}") from None
    values = dict(zip(cast(list[bytes], answer[::2]), answer[1::2], strict=True))
    return StreamInfo(
        length=cast(int, values[b"length"]),
        first=_id_of(values[b"first-entry"]),
        last=_id_of(values[b"last-entry"]),
        last_generated=EntryId.of(cast(bytes, values[b"last-generated-id"])),
        added=cast("int | None", values.get(b"entries-added")),
        deleted=EntryId.of(cast(bytes, values.get(b"max-deleted-entry-id", b"0-0"))),
    )


def _id_of(entry: object) -> EntryId | None:
    return EntryId.of(cast(list[bytes], entry)[0]) if entry else None
