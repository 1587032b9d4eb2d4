"""How a stream stands at one moment: its bounds and counters, all from one reply.

Servers from 7.0 on count every entry that was ever added; 6.2 does not, and there a read sees less of what was deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import redis

from bridge.spark.wire.address import RedisConnection, unavailable, without_secrets
from bridge.spark.wire.entry_ids import ZERO, EntryId
from bridge.spark.wire.replies import RefusedByServer


@dataclass(frozen=True)
class Standing:
    """What XINFO STREAM says of a stream; of one that is not there, that it is empty."""

    #: Entries in it.
    length: int
    #: The first and the last entry; None when it is empty.
    first: EntryId | None
    last: EntryId | None
    #: The id of the last entry ever added, there or not.
    last_generated: EntryId
    #: How many entries were ever added; None before version 7.0, which does not count them.
    added: int | None
    #: The largest id among the entries that were deleted singly (XDEL); trimming does not show here.
    deleted: EntryId


def standing_of(connection: RedisConnection, url: str, stream: str) -> Standing:
    """How ``stream`` stands now.

    Raises ``ServerUnavailable``, and ``RefusedByServer`` when the server says no: the key is no stream, or the user may
    not look.
    """
    try:
        connection.send_command("XINFO", "STREAM", stream)
        answer = cast(list[object], connection.read_response(disable_decoding=True))
    except redis.ResponseError as error:
        if "no such key" in str(error):
            return Standing(0, None, None, ZERO, 0, ZERO)
        raise RefusedByServer(f"cannot read {stream!r} at {without_secrets(url)}: {error}") from None
    except (redis.RedisError, OSError) as error:
        raise unavailable(url, error) from None
    told = dict(zip(cast(list[bytes], answer[::2]), answer[1::2], strict=True))
    return Standing(
        length=cast(int, told[b"length"]),
        first=_id_of(told[b"first-entry"]),
        last=_id_of(told[b"last-entry"]),
        last_generated=EntryId.of(cast(bytes, told[b"last-generated-id"])),
        added=cast("int | None", told.get(b"entries-added")),
        deleted=EntryId.of(cast(bytes, told.get(b"max-deleted-entry-id", b"0-0"))),
    )


def _id_of(entry: object) -> EntryId | None:
    return EntryId.of(cast(list[bytes], entry)[0]) if entry else None
