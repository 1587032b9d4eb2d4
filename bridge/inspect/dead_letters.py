"""Finds dead letters in a lane. Never writes. Their form is in `bridge.protocol.dead_letters`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import repeat
from typing import TYPE_CHECKING, Any

from bridge.inspect.partitions import name_letter
from bridge.protocol.dead_letters import Letter, read_letter
from bridge.routing.ids import id_key
from bridge.routing.partitions import stream_id, suffix_of

if TYPE_CHECKING:
    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.routing.keys import LaneKeys

#: Letters in one page. Each may hold a whole payload and 16 KiB of traceback.
PAGE = 100
#: Letters that are read for one page of a list.
LOOKED_AT = 10_000


def newest_first(redis: Redis, keys: LaneKeys, end: str = "+") -> Iterator[Letter]:
    """All letters of the lane, newest first, a page at a time. ``end``: where to begin, as XREVRANGE takes it. Raises
    redis errors.
    """
    while True:
        page = redis.execute_command("XREVRANGE", keys.dead, end, "-", "COUNT", PAGE)
        for id_, flat in page:
            yield read_letter(id_, flat)
        if len(page) < PAGE:
            return
        end = f"({page[-1][0].decode()}"


def newest_first_in(redis: Redis, lanes: Sequence[AppLane], before: str | None = None) -> Iterator[Letter]:
    """As `newest_first`, over the lanes of all partitions. The ids name the partition. ``before``: the id of the letter
    behind which to begin.
    """
    ends = ["+"] * len(lanes)
    if before is not None:
        id_, suffix = stream_id(before), suffix_of(before)
        # Letters with one id are in the order of their lanes.
        place = next((place for place, lane in enumerate(lanes) if lane.id_suffix == suffix), len(lanes))
        # No letter is before 0-0, and a server refuses to be asked for such.
        exclusive = f"({id_}" if max(id_key(id_)) else "0-0"
        ends = [exclusive if number <= place else id_ for number in range(len(lanes))]
    named = [
        map(name_letter, newest_first(redis, lane.settings.keys, end), repeat(lane.id_suffix))
        for lane, end in zip(lanes, ends, strict=True)
    ]
    return merge(*named, key=lambda letter: id_key(stream_id(letter.id)), reverse=True)


@dataclass(frozen=True)
class LetterPage:
    """Letters, newest first. ``next``: the letter behind which to go on; None: these are all. ``looked_at``: letters
    that were read for them.
    """

    letters: tuple[Letter, ...]
    next: str | None
    looked_at: int

    def document(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "letters": [letter.summary() for letter in self.letters],
            "next": self.next,
            "looked_at": self.looked_at,
        }


def read_page(
    redis: Redis, lanes: Sequence[AppLane], *, before: str | None = None, limit: int = 100, **wanted: str | None
) -> LetterPage:
    """The newest ``limit`` letters behind the letter ``before`` that are ``wanted``, as `select` takes it, among
    `LOOKED_AT`. Raises redis errors.
    """
    found: list[Letter] = []
    last = None
    looked_at = 0
    for looked_at, letter in enumerate(newest_first_in(redis, lanes, before), 1):
        if len(found) == limit or looked_at > LOOKED_AT:
            return LetterPage(tuple(found), last, looked_at - 1)
        found += select(iter([letter]), **wanted)
        last = letter.id
    return LetterPage(tuple(found), None, looked_at)


def of_message(redis: Redis, keys: LaneKeys, id_: str) -> list[Letter]:
    """The dead letters of message ``id_``, oldest first. ``id_`` may also be the id of a letter.

    Reads all dead letters, since there is no index by message.
    """
    found = [letter for letter in newest_first(redis, keys) if id_ in (letter.message_id, letter.id)]
    return found[::-1]


def select(
    letters: Iterator[Letter], *, ticket: str | None = None, task: str | None = None, reason: str | None = None
) -> Iterator[Letter]:
    """The ``letters`` with this ticket, this task, and this text in reason or error (any case). None: any."""
    tests: list[Callable[[Letter], bool]] = []
    if ticket is not None:
        tests.append(lambda letter: letter.ticket_id == ticket)
    if task is not None:
        tests.append(lambda letter: letter.task == task)
    if reason is not None:
        wanted = reason.casefold()
        tests.append(lambda letter: wanted in letter.reason.casefold() or wanted in letter.error.casefold())
    return (letter for letter in letters if all(test(letter) for test in tests))
