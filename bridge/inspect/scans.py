"""Bounded searches for one ticket's messages, among the pending entries and in the stream. Never writes.

There is no index of messages by ticket, since it would cost a write for each message. So a search reads entry after
entry, and stops after `LIMIT` entries or `LIMIT_BYTES`. The result says whether it saw all entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from bridge.routing.history import What, read_entry
from bridge.routing.ids import id_key, younger_than

if TYPE_CHECKING:
    from redis import Redis

    from bridge.routing.keys import LaneKeys

#: Entries that one search looks at, at most.
LIMIT = 10_000
#: Bytes of entries that one search reads, about: payloads may be large, and only whole entries can be read.
LIMIT_BYTES = 64 * 1024 * 1024
#: Entries in a search's first page; later ones are as large as fits `PAGE_BYTES`.
FIRST_PAGE = 50
PAGE_MAX = 1000
PAGE_BYTES = 4 * 1024 * 1024
#: Message ids that a search keeps.
IDS_KEPT = 10
#: After these a message does not come again, unless it is replayed.
LAST = (What.DONE, What.DEAD, What.REFUSED)


@dataclass(frozen=True)
class Scan:
    """What a search found. ``ids``: the first few; ``looked_at``: entries of any ticket; ``complete``: saw them all."""

    ids: tuple[str, ...]
    count: int
    looked_at: int
    complete: bool


class _Pages:
    """How many entries the next page may have."""

    def __init__(self) -> None:
        self.entries = 0
        self.bytes = 0

    @property
    def spent(self) -> bool:
        return self.entries >= LIMIT or self.bytes >= LIMIT_BYTES

    @property
    def next(self) -> int:
        if not self.entries:
            return FIRST_PAGE
        average = max(1, self.bytes // self.entries)
        return max(1, min(PAGE_MAX, LIMIT - self.entries, PAGE_BYTES // average))

    def took(self, fields: Any) -> None:
        self.entries += 1
        self.bytes += sum(map(len, fields)) if fields else 0


def of_pending(
    redis: Redis, keys: LaneKeys, master: str, ticket: bytes, *, after: str | None = None, before: str | None = None
) -> Scan:
    """The ticket's messages that are pending under the master's name, with ids between ``after`` and ``before``
    (exclusive; None: no bound).
    """
    pages = _Pages()
    end = "+" if before is None else f"({before}"

    def entries() -> Iterator[tuple[str, Any]]:
        span = ("-", end) if after is None else younger_than(after, end)
        while not pages.spent:
            size = pages.next
            page = redis.execute_command("XPENDING", keys.stream, keys.group, *span, size, master)
            ids = [line[0].decode() for line in page]
            with redis.pipeline(transaction=False) as pipe:
                for id_ in ids:
                    pipe.execute_command("XRANGE", keys.stream, id_, id_)
                found = pipe.execute()
            for id_, entry in zip(ids, found, strict=True):
                yield id_, entry[0][1] if entry else ()
            if len(page) < size:
                return
            span = younger_than(ids[-1], end)
        # At least one more entry, which is not searched.
        if redis.execute_command("XPENDING", keys.stream, keys.group, *span, 1, master):
            yield "", None

    return _count(entries(), pages, ticket)


def of_name(redis: Redis, keys: LaneKeys, name: str) -> Scan:
    """Whatever is pending under ``name``, which one ticket has for itself: all is counted, and nothing searched."""
    with redis.pipeline(transaction=True) as pipe:
        pipe.execute_command("XPENDING", keys.stream, keys.group)
        pipe.execute_command("XPENDING", keys.stream, keys.group, "-", "+", IDS_KEPT, name)
        summary, first = pipe.execute()
    count = next((int(number) for of, number in summary[3] or () if of == name.encode()), 0)
    return Scan(tuple(line[0].decode() for line in first), count, count, True)


def together(one: Scan, other: Scan) -> Scan:
    """Two searches of different places as one."""
    ids = sorted({*one.ids, *other.ids}, key=id_key)[:IDS_KEPT]
    complete = one.complete and other.complete
    return Scan(tuple(ids), one.count + other.count, one.looked_at + other.looked_at, complete)


def of_stream(redis: Redis, keys: LaneKeys, ticket: bytes, after: str) -> Scan:
    """The ticket's messages in the stream with ids greater than ``after``."""
    pages = _Pages()

    def entries() -> Iterator[tuple[str, Any]]:
        span = younger_than(after)
        while not pages.spent:
            size = pages.next
            page = redis.execute_command("XRANGE", keys.stream, *span, "COUNT", size)
            for id_, fields in page:
                yield id_.decode(), fields
            if len(page) < size:
                return
            span = younger_than(page[-1][0].decode())
        if redis.execute_command("XRANGE", keys.stream, *span, "COUNT", 1):
            yield "", None

    return _count(entries(), pages, ticket)


def backwards(redis: Redis, keys: LaneKeys, ticket: bytes, from_: str) -> str | None:
    """The newest message of the ticket with an id up to ``from_``; None when the search's bound has none."""
    pages = _Pages()
    end = from_
    while not pages.spent:
        size = pages.next
        page = redis.execute_command("XREVRANGE", keys.stream, end, "-", "COUNT", size)
        for id_, fields in page:
            pages.took(fields)
            if ticket_of(fields) == ticket:
                return str(id_.decode())
        if len(page) < size:
            return None
        end = f"({page[-1][0].decode()}"
    return None


def last_ended(redis: Redis, keys: LaneKeys, ticket: str) -> str | None:
    """The youngest message of the ticket in the newest step of the history in which one of its messages ended; None
    when the search's bound has none, or there is no history. For what has left the stream.
    """
    pages = _Pages()
    # As the leader writes it: most entries need not be parsed.
    named = orjson.dumps(ticket)
    end = "+"
    while not pages.spent:
        size = pages.next
        page = redis.execute_command("XREVRANGE", keys.history, end, "-", "COUNT", size)
        for id_, fields in page:
            pages.took(fields)
            data = dict(zip(fields[::2], fields[1::2], strict=True)).get(b"d", b"")
            if named not in data:
                continue
            try:
                rows = read_entry(id_, data)
            except (ValueError, TypeError):
                # No entry of a history.
                continue
            ended = [row.message_id for row in rows if row.ticket == ticket and row.what in LAST]
            if ended:
                return max(ended, key=id_key)
        if len(page) < size:
            return None
        end = f"({page[-1][0].decode()}"
    return None


def ticket_of(fields: Any) -> bytes | None:
    """The ``ticket_id`` of an entry whose fields and values alternate; of several the last, as the master reads it."""
    found: bytes | None = None
    for i in range(0, len(fields), 2):
        if fields[i] == b"ticket_id":
            found = fields[i + 1]
    return found


def _count(entries: Iterator[tuple[str, Any]], pages: _Pages, ticket: bytes) -> Scan:
    ids: list[str] = []
    count = 0
    for id_, fields in entries:
        if fields is None:
            return Scan(tuple(ids), count, pages.entries, False)
        pages.took(fields)
        if fields and ticket_of(fields) == ticket:
            count += 1
            if len(ids) < IDS_KEPT:
                ids.append(id_)
    return Scan(tuple(ids), count, pages.entries, True)
