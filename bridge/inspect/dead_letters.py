"""Finds dead letters in a lane. Never writes. Their form is in `bridge.protocol.dead_letters`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import repeat
from typing import TYPE_CHECKING, Any

from bridge.inspect.page import page_of
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
    """The newest ``limit`` letters behind the letter ``before`` that are ``wanted``, in the form that `select` takes.

    Raises redis errors.
    """
    page = page_of(newest_first_in(redis, lanes, before), limit, _test(**wanted))
    return LetterPage(page.found, None if page.last is None else page.last.id, page.looked_at)


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
    return filter(_test(ticket, task, reason), letters)


def _test(ticket: str | None = None, task: str | None = None, reason: str | None = None) -> Callable[[Letter], bool]:
    text = None if reason is None else reason.casefold()

    def is_wanted(letter: Letter) -> bool:
        if ticket not in (None, letter.ticket_id) or task not in (None, letter.task):
            return False
        return text is None or text in letter.reason.casefold() or text in letter.error.casefold()

    return is_wanted
