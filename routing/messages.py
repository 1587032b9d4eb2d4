"""Parses a stream entry into a message that can be dispatched, or into the reason why it cannot be."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import orjson

from bridge.routing import exact_json
from bridge.routing.filters import Filter
from bridge.routing.ids import Place, id_key, late_place
from bridge.routing.message_options import ALWAYS, NAMES, BadOptionError, MessageOptions, read_options
from bridge.routing.partitions import partition_of

#: Longest ticket id, in bytes of UTF-8.
MAX_TICKET_BYTES = 512
#: Memory of a message on top of its payload, in bytes.
OVERHEAD = 256
#: Longest name of a task that this app does not have, in bytes of UTF-8.
MAX_TASK_BYTES = 512
#: Deepest nesting of a payload. Python's own parser in a worker fails near a thousand levels, less the depth of its
#: stack. It would fail for a whole bundle then.
MAX_DEPTH = exact_json.MAX_DEPTH
#: Why a dead message is not replayed when the lane would leave it out.
LEFT_OUT_NOW = "this subscription leaves it out now: its filter or its tasks changed"
#: Most names of tasks of other lanes whose handling is remembered.
FOUND_MAX = 1000
#: In the detail of an entry that was too large to be read. Nothing else says so in the letters of older masters.
WHOLE_ENTRY = "the whole entry"


class Refused(Enum):
    """Why an entry can never be processed; the value is the reason in its dead letter."""

    NO_TICKET = "no ticket_id"
    BAD_TICKET = "ticket_id is empty, longer than 512 bytes, or not UTF-8"
    WRONG_PARTITION = "the ticket belongs to another partition"
    NOT_UTF8 = "a field is not UTF-8"
    TWICE = "a field is there twice"
    BAD_JSON = "payload is not JSON"
    # JSON, but the parser of some worker does not accept it.
    HALF_PAIR = "payload has half of a surrogate pair, which is no character"
    HUGE_NUMBER = "payload has a number that is too large"
    TOO_DEEP = f"payload is nested more than {MAX_DEPTH} levels deep"
    TOO_LARGE = "payload is larger than bridge_max_payload"
    UNKNOWN_TASK = "unknown task"
    EMPTY_TASK = "the field task is empty"
    NO_TASK = "names no task, and bridge_default_task is not set"
    BAD_DUE = "the fields due and hold do not say when it is due"
    BAD_OPTION = "an option of the message cannot be read"
    FAULT = "it made a master raise"
    DELIVERED = "delivered too often by other means"
    TRIMMED = "the entry was deleted from the stream before it was handled"


class Message:
    """One stream entry that can be dispatched. ``payload`` is JSON text, as bytes, already known to be valid."""

    __slots__ = ("id", "options", "payload", "size", "task", "ticket")

    def __init__(self, id_: str, ticket: str, task: str, payload: bytes, options: MessageOptions | None = None) -> None:
        self.id = id_
        self.ticket = ticket
        self.task = task
        self.payload = payload
        #: None for most messages.
        self.options = options
        #: Approximate memory of the message, in bytes.
        self.size = len(payload) + OVERHEAD

    @property
    def place(self) -> Place:
        """Its place in the order of its ticket: by its id, or by when it is due if others overtake it until then."""
        options = self.options
        if options is None or not options.overtakes:
            return id_key(self.id)
        return late_place(options.due_ms, self.id)

    def __repr__(self) -> str:
        return f"Message({self.id!r}, ticket={self.ticket!r}, task={self.task!r}, {len(self.payload)} bytes)"


@dataclass(frozen=True)
class Refusal:
    """An entry that becomes a dead letter at once. ``fields``: the entry, unchanged, but for ``cut`` bytes of it."""

    id: str
    reason: Refused
    detail: str
    fields: Sequence[bytes]
    #: Of an entry that was too large to be read: how much of it ``fields`` lacks.
    cut: int = 0


class LeftOut(NamedTuple):
    """An entry that the lane does not want: its filter or its tasks say so. It is acknowledged without a dispatch."""

    id: str


class EntryParser:
    """Parses entries of one lane.

    ``known_tasks``: names of tasks that may be dispatched. ``foreign``: whether another name may be that of a task that
    only consumers know; without it, no other name is accepted. ``wanted``: which messages the lane wants; None: all.

    ``elsewhere``: None, or, in a lane that is one of several subscriptions, the tasks that belong to other lanes only.
    Such a lane leaves out the messages that it has no task for. ``consumers_know``: whether some consumer of the lane
    has the task of this name. ``partition``: (number, of how many), of a split stream. A ticket in two partitions would
    have no order, so an entry in the wrong one is refused.
    """

    def __init__(
        self,
        *,
        default_task: str | None,
        max_payload: int,
        known_tasks: Collection[str],
        foreign: Callable[[str], bool] | None = None,
        wanted: Filter | None = None,
        elsewhere: Collection[str] | None = None,
        consumers_know: Callable[[str], bool] = lambda _name: False,
        partition: tuple[int, int] | None = None,
    ) -> None:
        self._partition = partition
        self._default_task = default_task
        self._filter = wanted
        self._is_subscription = elsewhere is not None
        self._elsewhere = {name.encode() for name in elsewhere or ()}
        self._consumers_know = consumers_know
        #: What `_of_subscription` found for a name.
        self._found: dict[bytes, str | None] = {}
        self._max_payload = max_payload
        # Keyed by bytes, so that a name is not decoded again for each message.
        self._tasks = {name.encode(): name for name in known_tasks}
        self._foreign = foreign

    def forget(self) -> None:
        """The consumers' tasks changed."""
        self._found.clear()

    def parse_entry(self, entry: Sequence[Any]) -> Message | Refusal | LeftOut:
        """Parses an entry in the form of `bridge.routing.transitions.Read`."""
        id_ = entry[0].decode()
        if len(entry) == 2:
            return self.parse(id_, entry[1] or ())
        size, count = entry[2:]
        detail = f"{size} bytes in {count} fields; {WHOLE_ENTRY} stays in the stream as long as this letter is there"
        return Refusal(id_, Refused.TOO_LARGE, detail, entry[1], _cut(entry))

    def parse_begun(self, id_: str, fields: Sequence[bytes]) -> Message | Refusal:
        """Parses the entry of a message that was dispatched before. The lane wants it, whatever its filter is now."""
        found = self.parse(id_, fields, begun=True)
        assert not isinstance(found, LeftOut)
        return found

    def parse(self, id_: str, fields: Sequence[bytes], *, begun: bool = False) -> Message | Refusal | LeftOut:
        """Parses an entry. ``fields``: its field names and values, alternating. ``begun``: as in `parse_begun`."""
        if not fields:
            # XADD accepts no entry without fields. So this one is pending, but not in the stream any more.
            return Refusal(id_, Refused.TRIMMED, "", fields)
        ticket_raw = task_raw = payload = twice = None
        others = False
        for i in range(0, len(fields), 2):
            name = fields[i]
            if name == b"ticket_id":
                if ticket_raw is not None:
                    twice = name
                ticket_raw = fields[i + 1]
            elif name == b"payload":
                if payload is not None:
                    twice = name
                payload = fields[i + 1]
            elif name == b"task":
                if task_raw is not None:
                    twice = name
                task_raw = fields[i + 1]
            else:
                others = True
        if twice is not None:
            return Refusal(id_, Refused.TWICE, twice.decode(), fields)
        if ticket_raw is None:
            return Refusal(id_, Refused.NO_TICKET, "", fields)
        try:
            ticket = ticket_raw.decode()
        except UnicodeDecodeError:
            return Refusal(id_, Refused.BAD_TICKET, "", fields)
        if not 0 < len(ticket_raw) <= MAX_TICKET_BYTES:
            return Refusal(id_, Refused.BAD_TICKET, f"{len(ticket_raw)} bytes", fields)
        if self._partition is not None and not begun:
            number, count = self._partition
            if (right := partition_of(ticket_raw, count)) != number:
                return Refusal(id_, Refused.WRONG_PARTITION, f"partition {right} of {count}", fields)
        if task_raw is None:
            if self._default_task is None:
                return (
                    LeftOut(id_) if self._is_subscription and not begun else Refusal(id_, Refused.NO_TASK, "", fields)
                )
            task: str | None = self._default_task
        elif not task_raw:
            return Refusal(id_, Refused.EMPTY_TASK, "", fields)
        else:
            task = self._tasks.get(task_raw)
            if task is None and self._is_subscription:
                task = self._of_subscription(task_raw)
                if task == "":
                    if not begun:
                        return LeftOut(id_)
                    task = task_raw.decode()
            elif task is None:
                task = self._foreign_name(task_raw)
            if task is None:
                return Refusal(id_, Refused.UNKNOWN_TASK, task_raw.decode(errors="replace"), fields)
        has_payload = payload is not None
        has_options = others and not NAMES.isdisjoint(fields[::2])
        if payload is None:
            try:
                rest = _rest(fields)
            except UnicodeDecodeError:
                return Refusal(id_, Refused.NOT_UTF8, "", fields)
            named = 1 + (task_raw is not None) + (has_options and sum(name in ALWAYS for name in fields[::2]))
            if 2 * (len(rest) + named) < len(fields):
                return Refusal(id_, Refused.TWICE, _first_twice(fields), fields)
            parsed = None
            payload = orjson.dumps(rest)
            if len(payload) > self._max_payload:
                return Refusal(id_, Refused.TOO_LARGE, f"{len(payload)} bytes", fields)
        else:
            if len(payload) > self._max_payload:
                return Refusal(id_, Refused.TOO_LARGE, f"{len(payload)} bytes", fields)
            try:
                parsed = orjson.loads(payload)
            except orjson.JSONDecodeError as exc:
                return Refusal(id_, why_refused(payload, exc), str(exc), fields)
            if is_deep(payload, parsed):
                return Refusal(id_, Refused.TOO_DEEP, "", fields)
        if self._filter is not None and not begun and not self._filter.passes(fields, parsed):
            return LeftOut(id_)
        if has_options:
            try:
                options = read_options(id_key(id_)[0], fields, has_payload=has_payload)
            except BadOptionError as exc:
                why = Refused.TWICE if exc.is_twice else Refused.BAD_DUE if exc.is_due else Refused.BAD_OPTION
                return Refusal(id_, why, str(exc), fields)
            return Message(id_, ticket, task or "", payload, options)
        return Message(id_, ticket, task or "", payload)

    def _of_subscription(self, raw: bytes) -> str | None:
        """The task that handles a message that names ``raw``, a task that is not the lane's own here. '': none, and the
        message is left out. None: no task can have this name.
        """
        if raw in self._found:
            return self._found[raw]
        name = self._foreign_name(raw)
        if name is not None and self._consumers_know(name):
            # Consumers that were upgraded first have the task already.
            found: str | None = name
        elif self._default_task is not None:
            found = self._default_task
        elif raw in self._elsewhere:
            found = ""
        else:
            found = name
        if len(self._found) >= FOUND_MAX:
            self._found.clear()
        self._found[raw] = found
        return found

    def _foreign_name(self, raw: bytes) -> str | None:
        if self._foreign is None or not 0 < len(raw) <= MAX_TASK_BYTES:
            return None
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            return None
        return name if self._foreign(name) else None


def unreadable(entry: Sequence[Any], why: str) -> Refusal:
    """The refusal of an entry that made a leader raise. ``entry``: in the form of a read; ``why``: the error."""
    return Refusal(entry[0].decode(), Refused.FAULT, why, entry[1] or (), _cut(entry))


def _cut(entry: Sequence[Any]) -> int:
    """How many bytes of an entry a read did not return."""
    return entry[2] - sum(map(len, entry[1])) if len(entry) > 2 else 0


def ticket_of(fields: Sequence[bytes] | None) -> str | None:
    """The ticket in the fields of an entry, which may be cut off; None: there is no valid one."""
    for i in range(0, len(fields or ()), 2):
        if fields is not None and fields[i] == b"ticket_id" and 0 < len(fields[i + 1]) <= MAX_TICKET_BYTES:
            try:
                return fields[i + 1].decode()
            except UnicodeDecodeError:
                return None
    return None


def payload_of_fields(fields: Sequence[bytes]) -> bytes:
    """The payload of an entry that has no ``payload`` field: its other fields, as a JSON object of strings."""
    return orjson.dumps(_rest(fields))


#: Fields that never belong to a payload.
_NOT_PAYLOAD = ALWAYS | {b"ticket_id", b"task"}


def _rest(fields: Sequence[bytes]) -> dict[str, str]:
    return {
        fields[i].decode(): fields[i + 1].decode() for i in range(0, len(fields), 2) if fields[i] not in _NOT_PAYLOAD
    }


def _first_twice(fields: Sequence[bytes]) -> str:
    return next(name.decode() for name, count in Counter(fields[::2]).items() if count > 1)


def is_deep(text: bytes, parsed: Any = None) -> bool:
    """Whether the JSON ``text`` is nested more than `MAX_DEPTH` levels deep. ``parsed``: its parsed value, if known."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    return exact_json.is_nested(orjson.loads(text) if parsed is None else parsed)


#: A number; half of a surrogate pair (not a whole pair, and not half of one before a broken escape); a JSON string.
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_HALF_PAIR = re.compile(
    r"\\u[dD]([89abAB][0-9a-fA-F]{2}(?!\\u(?![0-9a-fA-F]{4}))|(?<!\\u[dD][89abAB]..\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
_TEXT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)


def why_refused(payload: bytes, exc: orjson.JSONDecodeError) -> Refused:
    """Why ``payload`` is refused, after the parser raised ``exc``. It may be JSON all the same."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return Refused.NOT_UTF8
    if (number := _NUMBER.match(text, exc.pos)) and math.isinf(float(number[0])):
        return Refused.HUGE_NUMBER
    # Older versions of orjson point to what is behind the half.
    if _HALF_PAIR.match(text, exc.pos) or _HALF_PAIR.match(text, max(0, exc.pos - len(r"\ud800"))):
        return Refused.HALF_PAIR
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", _TEXT.sub("", text[: exc.pos])):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            return Refused.TOO_DEEP
    return Refused.BAD_JSON
