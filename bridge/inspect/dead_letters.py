"""Finds dead letters in a lane. Never writes. Their form is in `bridge.protocol.dead_letters`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import repeat
from typing import TYPE_CHECKING

from bridge.inspect.partitions import name_letter
from bridge.protocol.dead_letters import Letter, read_letter
from bridge.routing.ids import id_key
from bridge.routing.partitions import stream_id

if TYPE_CHECKING:
    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.routing.keys import LaneKeys

#: Letters in one page. Each may hold a whole payload and 16 KiB of traceback.
PAGE = 100


def newest_first(redis: Redis, keys: LaneKeys) -> Iterator[Letter]:
    """All letters of the lane, newest first, a page at a time. Raises redis errors."""
    end = "+"
    while True:
        page = redis.execute_command("XREVRANGE", keys.dead, end, "-", "COUNT", PAGE)
        for id_, flat in page:
            yield read_letter(id_, flat)
        if len(page) < PAGE:
            return
        end = f"({page[-1][0].decode()}"


def newest_first_in(redis: Redis, lanes: Sequence[AppLane]) -> Iterator[Letter]:
    """As `newest_first`, over the lanes of all partitions. The ids name the partition."""
    named = [map(name_letter, newest_first(redis, lane.settings.keys), repeat(lane.id_suffix)) for lane in lanes]
    return merge(*named, key=lambda letter: id_key(stream_id(letter.id)), reverse=True)


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
