"""Finds delayed messages in a lane. Never writes.

Two sorted sets have them by the time when they are due: messages that others overtake, and messages that hold their
tickets. One of the latter that is due, and behind another message of its ticket, is still in its set: it is not delayed
any more. One of the former that is due is delayed until the leader moves it.

A list reads both a page at a time, so the next twenty of a million cost as much as twenty of twenty. There is no index
by ticket or task: a search for these reads the entry of every delayed message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from heapq import merge
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from bridge.inspect.page import Page, page_of
from bridge.inspect.scans import IDS_KEPT, LIMIT, Scan
from bridge.routing.errors import InputError
from bridge.routing.groups import group_in
from bridge.routing.ids import can_be_id, id_key, id_of_member, member_of
from bridge.routing.message_options import BadOptionError, read_options
from bridge.routing.messages import payload_of_fields
from bridge.routing.partitions import stream_id
from bridge.routing.text import printable

if TYPE_CHECKING:
    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.routing.message_options import MessageOptions
    from bridge.settings.lane import LaneSettings

#: Entries in the first page. The size of those read so far sets that of the next page.
FIRST_PAGE = 25
PAGE_MAX = 500
PAGE_BYTES = 4 * 1024 * 1024


class Mode(StrEnum):
    """What a delayed message does to its ticket."""

    #: Later messages of the ticket go first.
    OVERTAKE = "overtake"
    #: They wait for it.
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """One delayed message. ``id`` names its partition. ``fields``: its entry; empty when it was deleted by hand."""

    id: str
    due_ms: int
    mode: Mode
    fields: tuple[bytes, ...]
    default_task: str | None = None

    @property
    def place(self) -> DuePlace:
        """Its place among the delayed messages."""
        return DuePlace.of(self.id, self.due_ms)

    @property
    def ticket_id(self) -> str | None:
        """Its ticket; None: the entry is gone."""
        return self._text(b"ticket_id")

    @property
    def task(self) -> str | None:
        """The task that it names, or the lane's default task."""
        return self._text(b"task") or self.default_task

    @property
    def payload(self) -> bytes:
        """Its payload, as JSON."""
        found = self._field(b"payload")
        try:
            return payload_of_fields(self.fields) if found is None else found
        except UnicodeDecodeError:  # the leader refuses such an entry, and may not have read it yet
            return b""

    @property
    def pushed_ms(self) -> int:
        """When it was pushed, Unix ms."""
        return id_key(stream_id(self.id))[0]

    @property
    def expires_ms(self) -> int | None:
        """When it expires, Unix ms; None: it does not, or its options cannot be read."""
        options = _options_of(stream_id(self.id), self.fields)
        return None if options is None else options.expires_ms

    def summary(self, now_ms: int) -> dict[str, Any]:
        """Without the payload, for JSON. ``now_ms``: the server's time."""
        return {
            "message_id": self.id,
            "ticket_id": self.ticket_id,
            "task": self.task,
            "due_ms": self.due_ms,
            "due_in_ms": self.due_ms - now_ms,
            "mode": self.mode.value,
            "pushed_ms": self.pushed_ms,
        }

    def document(self, now_ms: int) -> dict[str, Any]:
        """All of it, for JSON."""
        payload = self.payload
        shown: Any
        try:
            orjson.loads(payload)
        except orjson.JSONDecodeError:
            shown = payload.decode(errors="backslashreplace")
        else:
            # As it came: reading and writing it again would round long numbers.
            shown = orjson.Fragment(payload)
        return {**self.summary(now_ms), "expires_ms": self.expires_ms, "payload": shown}

    def _text(self, name: bytes) -> str | None:
        found = self._field(name)
        return None if found is None else found.decode(errors="backslashreplace")

    def _field(self, name: bytes) -> bytes | None:
        names = self.fields[::2]
        return self.fields[2 * names.index(name) + 1] if name in names else None


class DuePlace(NamedTuple):
    """A place in the order in which messages are due. The next page begins behind it.

    Many messages may be due in one millisecond, and two partitions may have messages of one stream id.
    """

    due_ms: int
    stream_id: tuple[int, int]
    id: str

    @classmethod
    def of(cls, id_: str, due_ms: int) -> DuePlace:
        """The place of a message."""
        return cls(due_ms, id_key(stream_id(id_)), id_)

    @classmethod
    def of_text(cls, text: str) -> DuePlace:
        """The place that ``text`` names, as `text` has it."""
        due_ms, _, id_ = text.partition(":")
        return cls.of(id_, int(due_ms))

    @property
    def text(self) -> str:
        """The place as one word."""
        return f"{self.due_ms}:{self.id}"


@dataclass(frozen=True)
class Selection:
    """Selects delayed messages. None: any. ``after_ms`` and ``before_ms``: due in this time, both included. ``behind``:
    those that come behind this place.
    """

    ticket: str | None = None
    task: str | None = None
    after_ms: int | None = None
    before_ms: int | None = None
    mode: Mode | None = None
    behind: DuePlace | None = None

    @property
    def reads_entries(self) -> bool:
        """Whether the entries must be read to know which messages are selected."""
        return self.ticket is not None or self.task is not None

    def matches(self, message: DelayedMessage) -> bool:
        """Whether the message has the ticket and the task of the selection."""
        if self.ticket is not None and message.ticket_id != self.ticket:
            return False
        return self.task is None or message.task == self.task


def soonest_first(
    redis: Redis,
    lanes: Sequence[AppLane],
    selection: Selection,
    on_page: Callable[[int], None] = lambda _read: None,
) -> Iterator[DelayedMessage]:
    """The selected messages, over the lanes of all partitions, in the order in which they are due.

    ``on_page`` is called with the number of messages of each page that was read. Raises redis errors.
    """
    modes = [mode for mode in Mode if selection.mode in (None, mode)]
    sources = [
        _of_lane(redis, lane.settings, lane.id_suffix, mode, selection, on_page) for lane in lanes for mode in modes
    ]
    return filter(selection.matches, _in_order(sources))


def read_page(redis: Redis, lanes: Sequence[AppLane], selection: Selection, limit: int) -> Page[DelayedMessage]:
    """The first ``limit`` selected messages, in the order in which they are due. Raises redis errors."""
    # The page tests ticket and task, so that it counts all messages that are read for them.
    source = soonest_first(redis, lanes, replace(selection, ticket=None, task=None))
    return page_of(source, limit, selection.matches)


def of_ticket(redis: Redis, lane: LaneSettings, ticket: str) -> tuple[Scan, DelayedMessage | None, frozenset[str]]:
    """The delayed messages of ``ticket`` among the next `LIMIT` of the lane, the next one, and those that hold it."""
    sources = [_of_lane(redis, lane, "", mode, Selection(), lambda _read: None) for mode in Mode]
    found = []
    looked_at, complete = 0, True
    for message in _in_order(sources):
        if looked_at == LIMIT:
            complete = False
            break
        looked_at += 1
        if message.ticket_id == ticket:
            found.append(message)
    ids = tuple(message.id for message in found[:IDS_KEPT])
    holding = frozenset(message.id for message in found if message.mode is Mode.HOLD)
    return Scan(ids, len(found), looked_at, complete), found[0] if found else None, holding


def count_of(redis: Redis, lanes: Sequence[AppLane], selection: Selection) -> int:
    """How many delayed messages there are in the selection's time and mode. Ticket and task are not looked at."""
    return count_in(redis, [lane.settings for lane in lanes], selection)


def count_in(redis: Redis, lanes: Sequence[LaneSettings], selection: Selection) -> int:
    """As `count_of`."""
    now_ms = now_ms_of(redis)
    with redis.pipeline(transaction=False) as pipe:
        for lane in lanes:
            for mode in Mode:
                if selection.mode in (None, mode):
                    pipe.zcount(_index(lane, mode), *_bounds(selection, mode, now_ms))
        return sum(pipe.execute())


def now_ms_of(redis: Redis) -> int:
    """The server's time, Unix ms."""
    found: Any = redis.time()
    return int(found[0]) * 1000 + int(found[1]) // 1000


def find_delayed(redis: Redis, lane: AppLane, message_id: str) -> DelayedMessage:
    """The delayed message with this id. Raises `InputError` when there is none, and redis errors.

    A message that no master has read yet is found too.
    """
    keys, id_ = lane.settings.keys, stream_id(message_id)
    shown = printable(message_id)
    if not can_be_id(id_):
        raise InputError(f"{shown} is no message id")
    member = member_of(id_)
    with redis.pipeline(transaction=True) as pipe:
        pipe.zscore(keys.delayed, member)
        pipe.zscore(keys.holding, member)
        pipe.zscore(keys.late, member)
        pipe.execute_command("XRANGE", keys.stream, id_, id_)
        pipe.execute_command("XINFO", "GROUPS", keys.stream)
        pipe.time()
        *replies, groups, time_ = pipe.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    delayed, holding, late, entries = replies
    now_ms = time_[0] * 1000 + time_[1] // 1000
    fields = tuple(entries[0][1]) if entries else ()
    default = lane.settings.default_task
    if delayed is not None or (holding is not None and int(holding) > now_ms):
        mode = Mode.OVERTAKE if delayed is not None else Mode.HOLD
        due_ms = int(delayed if delayed is not None else holding)
        return DelayedMessage(f"{id_}{lane.id_suffix}", due_ms, mode, fields, default)
    if not fields:
        raise InputError(f"there is no message {shown}: it was never pushed, or it is done and has left the stream")
    if late is not None or holding is not None:
        raise InputError(f"message {shown} is not delayed any more: it was due, and waits or runs")
    group = group_in(groups, keys.group)
    if group is None or id_key(id_) > id_key(group.read_to):
        options = _options_of(id_, fields)
        if options is not None and options.due_ms:
            mode = Mode.HOLD if options.hold else Mode.OVERTAKE
            return DelayedMessage(f"{id_}{lane.id_suffix}", options.due_ms, mode, fields, default)
    raise InputError(f"message {shown} is not delayed: it was due at once, or has begun, or is done")


def _options_of(id_: str, fields: Sequence[bytes]) -> MessageOptions | None:
    """The options of an entry; None: it has none, or they cannot be read."""
    try:
        return read_options(id_key(id_)[0], fields, has_payload=b"payload" in fields[::2])
    except BadOptionError:
        return None


def _in_order(sources: Sequence[Iterator[DelayedMessage]]) -> Iterator[DelayedMessage]:
    return merge(*sources, key=lambda one: one.place)


def _of_lane(
    redis: Redis,
    lane: LaneSettings,
    suffix: str,
    mode: Mode,
    selection: Selection,
    on_page: Callable[[int], None],
) -> Iterator[DelayedMessage]:
    """The lane's messages of one mode that are due in the selection's time, soonest first, a page at a time."""
    low, high = _bounds(selection, mode, now_ms_of(redis) if mode is Mode.HOLD else 0)
    behind = selection.behind
    key, stream = _index(lane, mode), lane.stream
    size, read, held = FIRST_PAGE, 0, 0
    # Where the next page begins: a due time, and how many messages of this time were read.
    score, offset = low, 0
    while True:
        page: Any = redis.execute_command("ZRANGEBYSCORE", key, score, high, "WITHSCORES", "LIMIT", offset, size)
        found = [(id_of_member(one.decode()), int(due)) for one, due in _pairs(page)]
        # A page may begin in the middle of many that are due at one time. The entries of those before it are not read.
        wanted = [one for one in found if behind is None or DuePlace.of(f"{one[0]}{suffix}", one[1]) > behind]
        with redis.pipeline(transaction=False) as pipe:
            for id_, _ in wanted:
                pipe.execute_command("XRANGE", stream, id_, id_)
            entries = pipe.execute()
        on_page(len(found))
        for (id_, due_ms), entry in zip(wanted, entries, strict=True):
            fields = tuple(entry[0][1]) if entry else ()
            held += sum(map(len, fields))
            yield DelayedMessage(f"{id_}{suffix}", due_ms, mode, fields, lane.default_task)
        if len(found) < size:
            return
        last = found[-1][1]
        same = sum(1 for _, due_ms in found if due_ms == last)
        offset = offset + same if str(last) == score else same
        score = str(last)
        read += len(found)
        size = max(1, min(PAGE_MAX, 4 * size, PAGE_BYTES * read // max(1, held)))


def _index(lane: LaneSettings, mode: Mode) -> str:
    return lane.keys.delayed if mode is Mode.OVERTAKE else lane.keys.holding


def _bounds(selection: Selection, mode: Mode, now_ms: int) -> tuple[str, str]:
    low, high = selection.after_ms, selection.before_ms
    if selection.behind is not None:
        low = max(selection.behind.due_ms, low or 0)
    if mode is Mode.HOLD:
        low = max(now_ms + 1, low or 0)
    return "-inf" if low is None else str(low), "+inf" if high is None else str(high)


def _pairs(page: Any) -> Iterator[tuple[bytes, bytes]]:
    """Member and score of a reply, which is flat with RESP 2."""
    if page and isinstance(page[0], list | tuple):
        return iter([(member, due) for member, due in page])
    return zip(page[::2], page[1::2], strict=True)
