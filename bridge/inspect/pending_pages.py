"""The pending messages of a lane, a page at a time, with ticket and state. Never writes.

A page comes from XPENDING with a range, so its ids, consumers, idle times and deliveries are the server's own. The
ticket of an entry never changes, so it may be read before. The rows and the ticket records, which give the states, are
read in one MULTI, so that they belong together.

Everything here is bounded: a page, and what a search looks at (`LIMIT` rows), however many messages are pending. A
search that ends there says so, and the next one goes on behind its last row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from bridge.inspect.pending import PendingMessage, PendingPage, PendingState, Wanted
from bridge.inspect.scans import FIRST_PAGE, LIMIT, PAGE_BYTES, PAGE_MAX, ticket_of
from bridge.protocol.unreadable import read_all
from bridge.routing import records
from bridge.routing.groups import name_in_group, pending_summary, raw_name, shown_name, unless_missing
from bridge.routing.ids import id_before, id_key, member_of, younger_than
from bridge.routing.partitions import stream_id, suffix_of

if TYPE_CHECKING:
    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.settings.lane import LaneSettings

#: Up to so many names in the group, a search for a state looks at one after another. With more it reads all entries.
NAMES_ONE_BY_ONE = 64
#: Most reads of one page, when messages become pending in the meantime.
TRIES = 3


def read_pending(
    redis: Redis, lanes: Sequence[AppLane], wanted: Wanted, *, after: str | None = None, limit: int = 100
) -> PendingPage:
    """The first ``limit`` pending messages that are ``wanted``, behind the message ``after``. Raises redis errors.

    ``after`` names its partition, as ids of the app do. One that names none of ``lanes`` is behind all of them.
    """
    found: list[PendingMessage] = []
    looked_at = 0
    begun = after is None
    for lane in lanes:
        at: str | None = None
        if not begun and after is not None:
            if lane.id_suffix != suffix_of(after):
                continue
            begun, at = True, stream_id(after)
        pages = _LanePages(redis, lane.settings, wanted)
        if len(found) == limit or looked_at >= LIMIT:
            # Only whether a later partition has any.
            if (first := pages.first_id()) is not None:
                return PendingPage(tuple(found), id_before(id_key(first)) + lane.id_suffix, looked_at)
            continue
        for page, end in pages.behind(at, limit, LIMIT - looked_at):
            at = end
            for message in page:
                looked_at += 1
                if wanted.has(message):
                    found.append(replace(message, message_id=message.message_id + lane.id_suffix))
                if len(found) == limit or looked_at == LIMIT:
                    at = message.message_id
                    break
            if len(found) == limit or looked_at >= LIMIT:
                break
        if at is not None and (len(found) == limit or looked_at >= LIMIT) and pages.any_behind(at):
            return PendingPage(tuple(found), at + lane.id_suffix, looked_at)
    return PendingPage(tuple(found), None, looked_at)


@dataclass
class _Row:
    """A row of XPENDING."""

    id: str
    name: str
    idle_ms: int
    deliveries: int


class _LanePages:
    """Reads the pending messages of one lane, a page at a time."""

    def __init__(self, redis: Redis, lane: LaneSettings, wanted: Wanted) -> None:
        self._redis = redis
        self._lane = lane
        self._wanted = wanted
        #: Entry -> its ticket, of entries that were read.
        self._tickets: dict[str, str | None] = {}
        self._bytes = 0
        self._names: list[str] | None = None
        #: Whether there are messages for which their tickets wait until they are due; those of the last page.
        self._some_hold = bool(redis.exists(lane.keys.holding))
        self._holding: set[str] = set()

    def behind(self, at: str | None, least: int, most: int) -> Iterator[tuple[list[PendingMessage], str]]:
        """Pages behind the entry ``at`` (None: from the first), up to ``most`` messages, each with the entry up to
        which it is about. ``least``: messages in the first page, when nothing is filtered here.
        """
        self._names = self._names_to_read()
        filters = self._wanted.ticket is not None or self._wanted.state is not None
        size = min(PAGE_MAX, most, FIRST_PAGE if filters else max(1, least))
        read = 0
        while read < most:
            rows = self._rows(at, size)
            if not rows:
                return
            yield self._page(at, rows, size), rows[-1].id
            if len(rows) < size:
                return
            at = rows[-1].id
            read += len(rows)
            size = max(1, min(PAGE_MAX, PAGE_BYTES // max(1, self._bytes // read), most - read))

    def any_behind(self, at: str) -> bool:
        """Whether there is a message behind ``at``, wanted or not."""
        return bool(self._rows(at, 1))

    def first_id(self) -> str | None:
        """The first entry that may be wanted."""
        self._names = self._names_to_read()
        rows = self._rows(None, 1)
        return rows[0].id if rows else None

    def _page(self, at: str | None, rows: list[_Row], size: int) -> list[PendingMessage]:
        """The messages of ``rows``, as they are now."""
        keys, end = self._lane.keys, rows[-1].id
        texts: list[bytes | None] = []
        tickets: list[str] = []
        for _ in range(TRIES):
            self._learn(row.id for row in rows)
            tickets = list({ticket for row in rows if (ticket := self._tickets[row.id]) is not None})
            with self._redis.pipeline(transaction=True) as pipe:
                for command in self._commands(at, size, end):
                    pipe.execute_command(*command)
                pipe.hmget(keys.tickets, [ticket.encode() for ticket in tickets] or [b""])
                asked = [row.id for row in rows if self._some_hold]
                for id_ in asked:
                    pipe.zscore(keys.holding, member_of(id_))
                pipe.time()
                *replies, (seconds, micros) = pipe.execute()
            cut = len(replies) - len(asked)
            *pages, texts = replies[:cut]
            now_ms = seconds * 1000 + micros // 1000
            dues = zip(asked, replies[cut:], strict=True)
            self._holding = {id_ for id_, due in dues if due is not None and int(due) > now_ms}
            rows = _merged(pages, size)
            if all(row.id in self._tickets for row in rows):
                break
        there = {name.encode(): text for name, text in zip(tickets, texts, strict=False) if text is not None}
        read = read_all(keys.tickets, there, lambda _name, text: records.parse(text))
        known = {name.decode(): record for name, record in read.items()}
        # Others became pending during this read.
        return [self._message(row, known) for row in rows if row.id in self._tickets]

    def _message(self, row: _Row, known: Mapping[str, records.Record]) -> PendingMessage:
        ticket = self._tickets[row.id]
        record = None if ticket is None else known.get(ticket)
        mine = record is not None and row.id in record.ids
        lane = self._lane
        state, attempt = PendingState.STRAY, None
        if row.name == lane.keys.delayed_consumer(lane.master) or (row.name == lane.master and row.id in self._holding):
            state = PendingState.DELAYED
        elif row.name == lane.master:
            was_begun = mine and record is not None and record.cause != records.HELD
            state = PendingState.AWAITING_RETRY if was_begun else PendingState.WAITING
        elif ticket is not None and row.name == lane.keys.parked_consumer(lane.master, ticket):
            state = PendingState.PARKED
        elif mine and record is not None and record.in_flight and record.consumer == row.name:
            state = PendingState.IN_FLIGHT
        if mine and record is not None and row.id == record.ids[0] and state is not PendingState.DELAYED:
            attempt = record.attempt
        return PendingMessage(row.id, shown_name(row.name), ticket, state, row.idle_ms, row.deliveries, attempt)

    # -- reads of the server ---------------------------------------------------------------------------------------

    def _names_to_read(self) -> list[str] | None:
        """The names under which messages of the wanted state are, if they are few. None: all names."""
        wanted, lane = self._wanted, self._lane
        if wanted.consumer is not None:
            return [wanted.consumer]
        if wanted.state in (PendingState.WAITING, PendingState.AWAITING_RETRY):
            return [lane.master]
        if wanted.state is PendingState.DELAYED:
            # Those for which a ticket waits are under the master's name.
            return [lane.master, lane.keys.delayed_consumer(lane.master)]
        if wanted.state is PendingState.PARKED and wanted.ticket is not None:
            return [lane.keys.parked_consumer(lane.master, wanted.ticket)]
        if wanted.state is None:
            return None
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.execute_command("XPENDING", lane.stream, lane.group)
            reply = unless_missing(pipe.execute(raise_on_error=False)[0])
        shelves = lane.keys.parked_consumer(lane.master, "")
        names = [name_in_group(raw) for raw in pending_summary(reply).under]
        if wanted.state is PendingState.PARKED:
            names = [name for name in names if name.startswith(shelves)]
        else:
            # A stray may be under any name but these, also under that of another ticket that is parked.
            others = (lane.master, lane.keys.delayed_consumer(lane.master))
            flying = wanted.state is PendingState.IN_FLIGHT
            names = [name for name in names if name not in others and not (flying and name.startswith(shelves))]
        return names if len(names) <= NAMES_ONE_BY_ONE else None

    def _commands(self, at: str | None, size: int, end: str = "+") -> list[list[Any]]:
        lane = self._lane
        idle = [] if self._wanted.idle_ms is None else ["IDLE", self._wanted.idle_ms]
        span = ("-", end) if at is None else younger_than(at, end)
        command = ["XPENDING", lane.stream, lane.group, *idle, *span, size]
        if self._names is None:
            return [command]
        return [[*command, raw_name(name)] for name in self._names]

    def _rows(self, at: str | None, size: int) -> list[_Row]:
        commands = self._commands(at, size)
        if not commands:
            return []
        with self._redis.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            replies = pipe.execute(raise_on_error=False)
        pages = []
        for reply in replies:
            if isinstance(reply, ResponseError) and "NOGROUP" in str(reply):
                # Nothing was read yet: there is no group, or no stream.
                return []
            if isinstance(reply, Exception):
                raise reply
            pages.append(reply)
        return _merged(pages, size)

    def _learn(self, ids: Iterable[str]) -> None:
        """Reads the tickets of entries, a few at a time as their sizes allow."""
        missing = [id_ for id_ in ids if id_ not in self._tickets]
        at, size = 0, FIRST_PAGE
        while at < len(missing):
            some = missing[at : at + size]
            with self._redis.pipeline(transaction=False) as pipe:
                for id_ in some:
                    pipe.execute_command("XRANGE", self._lane.stream, id_, id_)
                replies = pipe.execute()
            read = 0
            for id_, entries in zip(some, replies, strict=True):
                fields = entries[0][1] if entries else ()
                read += sum(map(len, fields))
                raw = ticket_of(fields)
                self._tickets[id_] = None if raw is None else _text(raw)
            self._bytes += read
            at += len(some)
            size = max(1, min(PAGE_MAX, PAGE_BYTES // max(1, read // len(some))))


def _merged(pages: Sequence[Any], size: int) -> list[_Row]:
    """The first ``size`` rows of several replies of XPENDING, by id."""
    some = [[_Row(id_.decode(), name_in_group(name), idle, times) for id_, name, idle, times in page] for page in pages]
    return list(merge(*some, key=lambda row: id_key(row.id)))[:size]


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
