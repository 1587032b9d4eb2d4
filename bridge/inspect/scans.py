"""Bounded searches for one ticket's messages, among the pending entries and in the stream. Never writes.

There is no index of messages by ticket, since it would cost a write for each message. So a search reads entry after
entry, and stops after `LIMIT` entries or `LIMIT_BYTES`. The result says whether it saw all entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from bridge.routing.groups import pending_summary
from bridge.routing.history import LAST, What, read_entry, rows_in
from bridge.routing.ids import id_key, younger_than

if TYPE_CHECKING:
    from redis import Redis

    from bridge.routing.keys import LaneKeys

#: Unread entries of an older version, of any ticket, beyond which a newer one waits for its leader
#: (``routing/lua/advance.lua``).
MUCH_UNREAD = 512
#: Most entries that one search reads.
LIMIT = 10_000
#: Bytes of entries that one search reads. It may exceed this by one page, since Redis returns whole entries.
LIMIT_BYTES = 64 * 1024 * 1024
#: Entries in the first page of a search. The average size of the entries read so far then sets the page size
#: (`PAGE_BYTES`).
FIRST_PAGE = 50
PAGE_MAX = 1000
PAGE_BYTES = 4 * 1024 * 1024
#: Message ids that a search keeps.
IDS_KEPT = 10


@dataclass(frozen=True)
class Scan:
    """What a search found. ``ids``: the first few ids. ``looked_at``: entries read, of any ticket. ``complete``: it
    read all.
    """

    ids: tuple[str, ...]
    count: int
    looked_at: int
    complete: bool


#: A search for what is not there.
NOTHING = Scan((), 0, 0, True)


class _Pages:
    """Counts what a search has read, and sets the size of its next page."""

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


def search_pending(
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
        # There is at least one more entry. It is not searched.
        if redis.execute_command("XPENDING", keys.stream, keys.group, *span, 1, master):
            yield "", None

    return _count(entries(), pages, ticket)


def pending_under(redis: Redis, keys: LaneKeys, name: str) -> Scan:
    """All messages pending under ``name``. The name belongs to one parked ticket, so no entry is read."""
    with redis.pipeline(transaction=True) as pipe:
        pipe.execute_command("XPENDING", keys.stream, keys.group)
        pipe.execute_command("XPENDING", keys.stream, keys.group, "-", "+", IDS_KEPT, name)
        summary, first = pipe.execute()
    count = pending_summary(summary).under.get(name.encode(), 0)
    return Scan(tuple(line[0].decode() for line in first), count, count, True)


def merged(one: Scan, other: Scan) -> Scan:
    """The sum of two searches in different places."""
    ids = sorted({*one.ids, *other.ids}, key=id_key)[:IDS_KEPT]
    complete = one.complete and other.complete
    return Scan(tuple(ids), one.count + other.count, one.looked_at + other.looked_at, complete)


def search_stream(redis: Redis, keys: LaneKeys, ticket: bytes, after: str) -> Scan:
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


def newest_in_stream(redis: Redis, keys: LaneKeys, ticket: bytes, up_to: str) -> str | None:
    """The newest message of the ticket in the stream with an id up to ``up_to``. None: the search found none within its
    bound.
    """
    pages = _Pages()
    end = up_to
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


def newest_in_history(redis: Redis, keys: LaneKeys, ticket: str) -> tuple[str, What] | None:
    """The newest message of the ticket of which the history has the last row, and what that says: done messages leave
    the stream. None: the search found none within its bound, or there is no history. If the newest
    entry with such rows ends several messages of the ticket, it is the one with the largest id.
    """
    pages = _Pages()
    # An entry without this text has no row of the ticket, and need not be parsed.
    quoted = orjson.dumps(ticket)
    end = "+"
    while not pages.spent:
        size = pages.next
        page = redis.execute_command("XREVRANGE", keys.history, end, "-", "COUNT", size)
        for id_, fields in page:
            pages.took(fields)
            data = rows_in(fields)
            if quoted not in data:
                continue
            try:
                rows = read_entry(id_, data)
            except (ValueError, TypeError):
                # Not an entry of a history.
                continue
            ended = [row for row in rows if row.ticket == ticket and row.what in LAST]
            if ended:
                last = max(ended, key=lambda row: id_key(row.message_id))
                return last.message_id, last.what
        if len(page) < size:
            return None
        end = f"({page[-1][0].decode()}"
    return None


def ticket_of(fields: Any) -> bytes | None:
    """The ``ticket_id`` in a flat list of fields and values. The last one counts if there are several, as the master
    reads it.
    """
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
