"""The ticks of a schedule: what Redis keeps of each entry, and the scripts that note a tick and push its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote
from zlib import crc32

from redis import Redis

from bridge.routing.errors import NotLeading
from bridge.routing.keys import layout_key, schedule_key
from bridge.routing.layouts import layout_of
from bridge.routing.partitions import Layout
from bridge.routing.producing import places_of
from bridge.routing.return_codes import ReturnCode, code_of, text_of
from bridge.routing.scripts import Argument, Script

_TICK = Script("tick")
_DROP_TICKS = Script("drop_ticks")
#: A time has fewer digits: those of later ones are beyond what a calendar shows.
_DIGITS = 15


@dataclass(frozen=True)
class LastTick:
    """What is stored of an entry: when it ticked last (Unix ms), or was first seen; and its times, as text."""

    at_ms: int
    times: str

    @property
    def text(self) -> str:
        return f"{self.at_ms} {self.times}"


@dataclass(frozen=True)
class Pusher:
    """Who pushes: the leader of one lane. ``leaders``: the leader keys of the lanes before it, and its own."""

    stream: str
    leaders: Sequence[str]
    token: str


class Ticked(NamedTuple):
    """The answer to a tick. ``ids``: of the messages. ``stored``: what is stored instead of what was expected.
    ``wait_ms``: how much later the tick is. ``layout``: the stream has another one.
    """

    code: ReturnCode
    ids: tuple[str, ...] = ()
    stored: LastTick | None = None
    wait_ms: int = 0
    layout: Layout | None = None


def field_of(app: str, name: str) -> str:
    """The field of an entry. ``app``: the app's name. Entries of several apps never share a field."""
    return f"{_app(app)}/{name}"


def read_ticks(client: Redis, stream: str, app: str) -> dict[str, LastTick]:
    """Entry -> its last tick, of all that are stored for ``app``."""
    found: Any = client.hgetall(schedule_key(stream))
    return ticks_in(found, app)


def ticks_in(found: Mapping[bytes | str, bytes | str], app: str) -> dict[str, LastTick]:
    """As `read_ticks`, from a reply of HGETALL. Fields that are none of ours are left out."""
    begins = f"{_app(app)}/"
    ticks = {}
    for field, value in found.items():
        name = text_of(field, errors="replace")
        if name.startswith(begins) and (last := last_in(value)) is not None:
            ticks[name.removeprefix(begins)] = last
    return ticks


def last_in(stored: bytes | str) -> LastTick | None:
    """The last tick in what is stored of an entry; None: no master stores that."""
    text = text_of(stored, errors="replace")
    ms, _, times = text.partition(" ")
    if not (ms.isascii() and ms.isdigit() and len(ms) < _DIGITS):
        return None
    last = LastTick(int(ms), times)
    # The script compares what is stored with this text. Where they differed, it would say without end that it changed.
    return last if last.text.encode() == (stored.encode() if isinstance(stored, str) else stored) else None


def tick(
    client: Redis,
    pusher: Pusher,
    field: str,
    known: LastTick | None,
    now: LastTick,
    layout: Layout,
    task: str,
    messages: Sequence[tuple[bytes, bytes]],
) -> Ticked:
    """Notes that the entry ``field`` ticks at ``now``, and adds ``messages`` (ticket, payload), unless another tick
    than ``known`` is stored. Raises `NotLeading`.
    """
    places = places_of(pusher.stream, layout, [crc32(ticket) for ticket, _ in messages]) if messages else None
    keys: list[Argument] = [schedule_key(pusher.stream), layout_key(pusher.stream), *pusher.leaders]
    head: list[Argument] = [
        len(pusher.leaders),
        pusher.token,
        field,
        "" if known is None else known.text,
        now.text,
        now.at_ms,
    ]
    arguments: list[Argument] = [*head, layout.text, *(places.signs if places else ("", "")), task]
    suffixes = []
    if places is not None:
        keys += places.streams
        for number, (ticket, payload) in enumerate(messages):
            place = int.from_bytes(places.numbers[2 * number : 2 * number + 2]) if places.numbers else 0
            arguments += (place + 1, ticket, payload)
            suffixes.append(places.suffixes[place])
    reply = _TICK.run(client, keys, arguments)
    code = code_of(reply[0])
    if code is ReturnCode.OK:
        ids = text_of(reply[1]).split()
        return Ticked(code, ids=tuple(id_ + suffix for id_, suffix in zip(ids, suffixes, strict=True)))
    if code is ReturnCode.CHANGED:
        return Ticked(code, stored=last_in(reply[1]))
    if code is ReturnCode.WAIT:
        return Ticked(code, wait_ms=int(reply[1]))
    if code is ReturnCode.LAYOUT:
        text = text_of(reply[1])
        return Ticked(code, layout=layout_of(text, pusher.stream) if text else None)
    return Ticked(_checked(code, pusher))


def drop_ticks(client: Redis, pusher: Pusher, fields: Sequence[str]) -> int | None:
    """Deletes what is stored of the entries ``fields``. Returns their number; None: the leader of an earlier lane
    pushes the schedule, and nothing was deleted. Raises `NotLeading`.
    """
    reply = _DROP_TICKS.run(client, [schedule_key(pusher.stream), *pusher.leaders], [pusher.token, *fields])
    return int(reply[1]) if _checked(code_of(reply[0]), pusher) is ReturnCode.OK else None


def _checked(code: ReturnCode, pusher: Pusher) -> ReturnCode:
    if code is ReturnCode.DEPOSED:
        raise NotLeading(f"another master leads the lane that pushes the schedule of {pusher.stream}")
    return code


def _app(name: str) -> str:
    return quote(name, safe="@.-_")
