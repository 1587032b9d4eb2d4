"""Reads of a lane for an audit, a page at a time. Never writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from redis import Redis
from redis.exceptions import ResponseError

from bridge.audit.trail import NONE
from bridge.inspect.scans import ticket_of
from bridge.protocol.dead_letters import read_letter
from bridge.routing import records
from bridge.routing.connection import with_raw_replies
from bridge.routing.counters import read_counters
from bridge.routing.groups import Group, group_in
from bridge.routing.history import Delivery, read_entry, rows_in
from bridge.routing.ids import IdKey, id_key, id_text, younger_than
from bridge.routing.messages import MAX_TICKET_BYTES

if TYPE_CHECKING:
    from bridge.routing.keys import LaneKeys

#: Entries of the history in one page; each holds the rows of a whole step.
HISTORY_PAGE = 100
#: Entries of the stream in one page: as many as fit in `PAGE_BYTES`, by the average size so far.
PAGE_MAX = 1000
PAGE_BYTES = 4 * 1024 * 1024
#: Ids of pending entries, or ticket records, in one page.
PENDING_PAGE = 1000
#: Dead letters in one page: each may hold a whole payload and a traceback.
LETTERS_PAGE = 100


def raw_client(redis: Redis) -> Redis:
    """A client on the connections of ``redis`` whose replies are as the server sends them, in bytes."""
    if redis.get_encoder().decode_responses:
        raise ValueError("the audit needs a client without decode_responses: entries need not be UTF-8")
    return with_raw_replies(Redis(connection_pool=redis.connection_pool))


def group_of(redis: Redis, keys: LaneKeys) -> Group | None:
    """The lane's group; None when it, or the stream, does not exist."""
    try:
        reply: Any = redis.execute_command("XINFO", "GROUPS", keys.stream)
    except ResponseError as exc:
        reply = exc
    return group_in(reply, keys.group)


def counted(redis: Redis, keys: LaneKeys) -> tuple[dict[str, float], str | None, str]:
    """(counters of the lane, ids of the first and the last entry of the history), read at one moment.

    An empty history: None and ''.
    """
    with redis.pipeline(transaction=True) as pipe:
        with_raw_replies(pipe)
        pipe.hgetall(keys.counts)
        pipe.execute_command("XRANGE", keys.history, "-", "+", "COUNT", 1)
        pipe.execute_command("XREVRANGE", keys.history, "+", "-", "COUNT", 1)
        counts, first, last = pipe.execute()
    numbers = read_counters(counts)
    return (numbers, _text(first[0][0]), _text(last[0][0])) if first else (numbers, None, "")


def is_whole(redis: Redis, key: str) -> bool | None:
    """Whether no entry of the stream is missing. None when it is not known: servers before 7.0 do not tell."""
    info: Any = redis.xinfo_stream(key)
    added = info.get("entries-added")
    return None if added is None else bool(added == info["length"])


class HistoryPages:
    """Reads the steps of a history from its first entry on, while entries are added and the oldest ones are removed."""

    def __init__(self, redis: Redis, key: str, end: str = "+") -> None:
        self._redis = redis
        self._key = key
        self._end = end
        #: The last entry that was read. '': none yet.
        self.at = ""
        #: The first entry of the history when the first page was read. None: no page, or an empty history.
        self.began_at: str | None = None
        #: The first entry of the history when the last page was read.
        self.first = ""
        #: Rows up to this time are missing (Unix ms): their entries were removed before they were read. None: none are.
        self.missing_until_ms: int | None = None
        #: Entries that cannot be read as rows.
        self.unreadable: list[str] = []

    def next(self) -> list[list[Delivery]]:
        """The rows of each of the next steps; empty at the end. Check `missing_until_ms` before using them."""
        start = f"({self.at}" if self.at else "-"
        with self._redis.pipeline(transaction=True) as pipe:
            with_raw_replies(pipe)
            pipe.execute_command("XRANGE", self._key, "-", "+", "COUNT", 1)
            pipe.execute_command("XRANGE", self._key, start, self._end, "COUNT", HISTORY_PAGE)
            first, page = pipe.execute()
        self.missing_until_ms = None
        self.first = _text(first[0][0]) if first else ""
        if self.at and self.first and id_key(self.first) > id_key(self.at):
            # The last entry that was read is gone. Later ones may be gone as well.
            self.missing_until_ms = id_key(self.first)[0]
        if self.began_at is None and self.first:
            self.began_at = self.first
        steps = []
        for raw_id, fields in page:
            self.at = _text(raw_id)
            try:
                steps.append(read_entry(raw_id, rows_in(fields)))
            except (ValueError, TypeError):
                self.unreadable.append(self.at)
                steps.append([])
        return steps


class StreamPages:
    """Reads the entries of a stream in order, up to a given id."""

    def __init__(self, redis: Redis, key: str, start: str) -> None:
        self._redis = redis
        self._key = key
        self._start = start
        #: All entries up to this id were read.
        self.to: IdKey = NONE
        self._entries = 0
        self._bytes = 0

    def up_to(self, key: IdKey) -> Iterator[tuple[str, str | None, list[bytes]]]:
        """(id, ticket, fields) of each entry up to ``key`` that was not read before. Ticket None: it has none."""
        while self.to < key:
            size = PAGE_MAX
            if self._entries:
                size = max(1, min(PAGE_MAX, PAGE_BYTES // max(1, self._bytes // self._entries)))
            end = id_text(key)
            page = self._redis.execute_command("XRANGE", self._key, self._start, end, "COUNT", size)
            for raw_id, fields in page:
                self._entries += 1
                self._bytes += sum(map(len, fields))
                yield _text(raw_id), _ticket(fields), fields
            if page:
                self._start = f"({_text(page[-1][0])}"
            if len(page) < size or _text(page[-1][0]) == end:
                # A server refuses to read from after the largest possible id, so `to` ends the loop.
                self.to = key
                self._start = f"({end}"


def ticket_of_entry(fields: Any) -> str:
    """The ticket of an entry of the stream; '' where none can be read."""
    return _ticket(fields) or ""


def ticket_of_letter(fields: Any) -> str:
    """The ticket of a dead letter; '' where none can be read."""
    return read_letter(b"", fields).ticket_id or ""


def tickets_of(
    redis: Redis, stream: str, ids: list[str], ticket: Callable[[Any], str] = ticket_of_entry
) -> dict[str, str]:
    """Those of ``ids`` whose entries are in ``stream`` -> what ``ticket`` reads in the fields of the entry."""
    found: dict[str, str] = {}
    for start in range(0, len(ids), PENDING_PAGE):
        part = ids[start : start + PENDING_PAGE]
        with redis.pipeline(transaction=False) as pipe:
            with_raw_replies(pipe)
            for id_ in part:
                pipe.execute_command("XRANGE", stream, id_, id_)
            replies = zip(part, pipe.execute(), strict=True)
            found.update({id_: ticket(entries[0][1]) for id_, entries in replies if entries})
    return found


def oldest_pending(redis: Redis, keys: LaneKeys) -> IdKey | None:
    """The oldest entry that is pending in the group; None when there is none, or no group."""
    try:
        page = redis.execute_command("XPENDING", keys.stream, keys.group, "-", "+", 1)
    except ResponseError as exc:
        if "NOGROUP" in str(exc):
            return None
        raise
    return id_key(_text(page[0][0])) if page else None


def pending_ids(redis: Redis, keys: LaneKeys) -> Iterator[str]:
    """Ids of all entries that are pending in the group, oldest first."""
    start, end = "-", "+"
    while True:
        page = redis.execute_command("XPENDING", keys.stream, keys.group, start, end, PENDING_PAGE)
        for line in page:
            yield _text(line[0])
        if len(page) < PENDING_PAGE:
            return
        start, end = younger_than(_text(page[-1][0]))


def named_by_records(redis: Redis, keys: LaneKeys) -> dict[str, str]:
    """Message id -> ticket, for each message that a ticket's record names."""
    found: dict[str, str] = {}
    for ticket, text in redis.hscan_iter(keys.tickets, count=PENDING_PAGE):
        try:
            record = records.parse(text)
        except (ValueError, TypeError):
            continue  # a record of another version; the leader reports it
        for id_ in record.ids:
            found[id_] = _text(ticket)
    return found


class LetterPages:
    """Reads the dead letters of a lane, also later ones. Keeps two ids of each."""

    def __init__(self, redis: Redis, key: str) -> None:
        self._redis = redis
        self._key = key
        self._start = "-"
        #: Id of the letter -> id of its message.
        self.letters: dict[str, str] = {}

    def read(self) -> None:
        """Reads the letters that were not read before."""
        while True:
            page = self._redis.execute_command("XRANGE", self._key, self._start, "+", "COUNT", LETTERS_PAGE)
            for raw_id, fields in page:
                self.letters[_text(raw_id)] = read_letter(raw_id, fields).message_id
            if page:
                self._start = f"({_text(page[-1][0])}"
            if len(page) < LETTERS_PAGE:
                return


def _ticket(fields: Any) -> str | None:
    raw = ticket_of(fields)
    if raw is None or not 0 < len(raw) <= MAX_TICKET_BYTES:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
