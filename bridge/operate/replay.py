"""Dead letters that are put back, or thrown away, by an operator: which ones, and what becomes of each.

Putting one back is the leader's to do, since it must come before what its ticket has not begun yet; the letter goes in
the same step. Throwing one away is a plain XDEL: the dead letters are the operator's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bridge.app.finding import load_tasks
from bridge.app.ticket_tasks import ticket_tasks
from bridge.inspect.dead_letters import chosen, newest_first
from bridge.operate.orders import give
from bridge.protocol.dead_letters import Letter
from bridge.routing.errors import InputError, OrderFailed
from bridge.routing.ids import id_key
from bridge.routing.messages import EntryParser, Refusal
from bridge.routing.text import printable

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis

    from bridge.routing.keys import LaneKeys

#: Letters in one order.
BATCH = 100
#: Letters whose entries are looked for at once: each may be as large as a payload may be.
ENTRIES = 8
#: Letters that are deleted at once.
DROP_BATCH = 1000

GONE = "it is not there any more"


@dataclass(frozen=True)
class Fate:
    """What became, or would become, of a letter. ``why``: why nothing did; None: it was done, or would be."""

    letter: Letter
    why: str | None = None


def named(redis: Redis, keys: LaneKeys, ids: Sequence[str]) -> list[Letter]:
    """The letters with these ids, or of the messages with these ids, oldest first; without their contents.

    Raises `InputError` for an id that no letter has, or that is one letter's own and another one's message's.
    """
    wanted = set(ids)
    found: dict[str, list[Letter]] = {}
    for letter in newest_first(redis, keys):
        for id_ in {letter.id, letter.message_id} & wanted:
            found.setdefault(id_, []).append(light(letter))
    for id_ in ids:
        letters = found.get(id_)
        if not letters:
            raise InputError(f"no dead letter of message {printable(id_)}; `bridge dead list` names those there are")
        if len({letter.message_id for letter in letters}) > 1:
            raise InputError(f"{id_} is the id of a letter, and of another one's message: give the other id of each")
    unique = {letter.id: letter for letters in found.values() for letter in letters}
    return sorted(unique.values(), key=lambda letter: id_key(letter.id))


def like(redis: Redis, keys: LaneKeys, ticket: str | None, task: str | None, reason: str | None) -> list[Letter]:
    """All letters that are like that (`bridge.inspect.dead_letters.chosen`), oldest first; without their contents."""
    found = [light(letter) for letter in chosen(newest_first(redis, keys), ticket=ticket, task=task, reason=reason)]
    return found[::-1]


def light(letter: Letter) -> Letter:
    """``letter`` without what may be large: there may be many."""
    return replace(letter, traceback="", payload=None, fields=())


def judged(redis: Redis, keys: LaneKeys, letters: Sequence[Letter], parser: EntryParser) -> Iterator[Fate]:
    """For each letter whether it can be put back, as far as can be seen from here. ``parser``: a master's.

    One that was refused may be right by now: its task is there, or payloads may be larger.
    """
    newest = {letter.message_id: letter.id for letter in sorted(letters, key=lambda one: id_key(one.id))}
    for some in _pages(letters, ENTRIES):
        with redis.pipeline(transaction=False) as pipe:
            for letter in some:
                pipe.execute_command("XRANGE", keys.stream, letter.message_id, letter.message_id)
            entries = pipe.execute()
        for letter, entry in zip(some, entries, strict=True):
            why = None
            if newest[letter.message_id] != letter.id:
                why = f"its message has a newer letter, {newest[letter.message_id]}"
            elif not entry:
                why = "its entry has left the stream: push it anew"
            elif isinstance(found := parser.parse(letter.message_id, entry[0][1]), Refusal):
                detail = f", {found.detail}" if found.detail else ""
                why = f"it still cannot be processed ({found.reason.value}{detail}): push it anew, and right"
            yield Fate(letter, why)


def parser_of(app: Celery) -> EntryParser:
    """What a master of ``app`` reads entries with. Raises `ConfigurationError` when its tasks cannot be loaded."""
    load_tasks(app)
    settings = app.bridge.settings.lane
    return EntryParser(
        default_task=settings.default_task, max_payload=settings.max_payload, known_tasks=ticket_tasks(app)
    )


def replayed(redis: Redis, keys: LaneKeys, letters: Sequence[Letter]) -> Iterator[Fate]:
    """Has the leader put ``letters`` back, `BATCH` at a time, and tells what became of each.

    The messages of one ticket in the order of their ids: the first ones may have begun when the next are put back.
    Raises `OrderFailed`, which says how many were put back before.
    """
    done = 0
    for some in _pages(_by_ticket(letters), BATCH):
        try:
            answer = give(redis, keys, {"do": "replay", "letters": [letter.id for letter in some]})
        except OrderFailed as exc:
            before = f" ({done:,} of {len(letters):,} were replayed before)" if done else ""
            raise OrderFailed(f"{exc}{before}") from None
        refused: dict[str, str] = dict(answer["refused"])
        put_back = set(answer["replayed"])
        for letter in some:
            why = None if letter.id in put_back else refused.get(letter.id, GONE)
            done += why is None
            yield Fate(letter, why)


def dropped(redis: Redis, keys: LaneKeys, letters: Sequence[Letter]) -> Iterator[Fate]:
    """Deletes ``letters``, and tells which were there."""
    for some in _pages(letters, DROP_BATCH):
        with redis.pipeline(transaction=False) as pipe:
            for letter in some:
                pipe.execute_command("XDEL", keys.dead, letter.id)
            gone = pipe.execute()
        for letter, there in zip(some, gone, strict=True):
            yield Fate(letter, None if there else GONE)


def _by_ticket(letters: Sequence[Letter]) -> list[Letter]:
    """Tickets in the order of their oldest message here, so that few are split between two orders."""
    in_order = sorted(letters, key=lambda letter: id_key(letter.message_id))
    of_ticket: dict[Any, list[Letter]] = {}
    for letter in in_order:
        of_ticket.setdefault(letter.ticket_id, []).append(letter)
    return [letter for some in of_ticket.values() for letter in some]


def _pages(letters: Sequence[Letter], size: int) -> Iterator[Sequence[Letter]]:
    for start in range(0, len(letters), size):
        yield letters[start : start + size]
