"""Replays and drops dead letters for an operator, and reports the result for each.

The leader replays a letter: the message must go before all messages of its ticket that have not started, and the letter
must be deleted in the same step. A letter is dropped with a plain XDEL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bridge.inspect.dead_letters import newest_first, select
from bridge.operate.orders import INTERRUPTED, give
from bridge.protocol.dead_letters import NAMES_NONE, Letter
from bridge.protocol.orders import Replay
from bridge.routing.errors import InputError
from bridge.routing.ids import can_be_id, id_key
from bridge.routing.message_options import HAS_EXPIRED
from bridge.routing.messages import LEFT_OUT_NOW, EntryParser, LeftOut, Refusal
from bridge.routing.text import printable

if TYPE_CHECKING:
    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.routing.keys import LaneKeys

#: Letters in one order.
BATCH = 100
#: Entries that are read at once. Each may be as large as the largest payload.
ENTRIES = 8
#: Letters that are deleted at once.
DROP_BATCH = 1000

GONE = "it no longer exists"


@dataclass(frozen=True)
class LetterResult:
    """The result for one letter. ``why``: why it was not, or cannot be, replayed or dropped; None: success."""

    letter: Letter
    why: str | None = None


def find_by_id(redis: Redis, keys: LaneKeys, ids: Sequence[str], id_suffix: str = "") -> list[Letter]:
    """The letters with these ids, and the letters of the messages with these ids. Oldest first, without contents.
    ``id_suffix``: text that follows the ids in errors.

    Raises `InputError` for an unknown id, and for an id that is both a letter's own and another letter's message id.
    """
    wanted = set(ids)
    found: dict[str, list[Letter]] = {}
    for letter in newest_first(redis, keys):
        for id_ in {letter.id, letter.message_id} & wanted:
            found.setdefault(id_, []).append(without_contents(letter))
    for id_ in ids:
        letters = found.get(id_)
        if not letters:
            raise InputError(f"no dead letter of message {printable(id_)}{id_suffix}; `bridge dead list` lists them")
        if len({letter.message_id for letter in letters}) > 1:
            raise InputError(
                f"{id_}{id_suffix} is the id of one letter and the message id of another: name each by its other id"
            )
    unique = {letter.id: letter for letters in found.values() for letter in letters}
    return sorted(unique.values(), key=lambda letter: id_key(letter.id))


def find_matching(
    redis: Redis, keys: LaneKeys, ticket: str | None, task: str | None, reason: str | None
) -> list[Letter]:
    """All letters that match (`bridge.inspect.dead_letters.select`). Oldest first, without contents."""
    found = [
        without_contents(letter)
        for letter in select(newest_first(redis, keys), ticket=ticket, task=task, reason=reason)
    ]
    return found[::-1]


def without_contents(letter: Letter) -> Letter:
    """``letter`` without its large fields, since many letters may be held at once."""
    return replace(letter, traceback="", payload=None, fields=())


def check_replay(
    redis: Redis, keys: LaneKeys, letters: Sequence[Letter], parser: EntryParser
) -> Iterator[LetterResult]:
    """Checks for each letter whether it can be replayed. The leader decides. ``parser``: as the master's.

    A message that was refused may be valid now, because its task or a larger `bridge_max_payload` was deployed.
    """
    seconds, micros = redis.time()
    now_ms = seconds * 1000 + micros // 1000
    newest = {letter.message_id: letter.id for letter in sorted(letters, key=lambda one: id_key(one.id))}
    for some in _pages(letters, ENTRIES):
        with redis.pipeline(transaction=False) as pipe:
            named = [letter for letter in some if can_be_id(letter.message_id)]
            for letter in named:
                pipe.execute_command("XRANGE", keys.stream, letter.message_id, letter.message_id)
            entries = dict(zip((letter.id for letter in named), pipe.execute(), strict=True))
        for letter in some:
            why, entry = None, entries.get(letter.id)
            if entry is None:
                why = NAMES_NONE
            elif newest[letter.message_id] != letter.id:
                why = f"its message has a newer letter, {newest[letter.message_id]}"
            elif not entry:
                why = "its entry has left the stream: push the message again"
            elif isinstance(found := parser.parse(letter.message_id, entry[0][1]), Refusal):
                detail = f", {found.detail}" if found.detail else ""
                why = f"it still cannot be processed ({found.reason.value}{detail}): push a correct message"
            elif isinstance(found, LeftOut):
                why = LEFT_OUT_NOW
            elif found.options is not None and found.options.has_expired(now_ms):
                why = HAS_EXPIRED
            yield LetterResult(letter, why)


def parser_of(lane: AppLane) -> EntryParser:
    """The parser of entries that a master of the lane uses."""
    settings = lane.settings
    return EntryParser(
        default_task=settings.default_task,
        max_payload=settings.max_payload,
        known_tasks=lane.tasks,
        wanted=settings.filter,
        elsewhere=lane.elsewhere if lane.is_subscription else None,
        partition=lane.part,
    )


def replay_letters(redis: Redis, keys: LaneKeys, letters: Sequence[Letter]) -> Iterator[LetterResult]:
    """Orders the leader to replay ``letters``, `BATCH` at a time. Yields the result for each.

    Replays the messages of a ticket in id order, since an earlier one may start before the next batch.
    Raises `OrderFailed` and redis errors, after the letters of that order, with the error as the reason of each.
    """
    for some in _pages(_by_ticket(letters), BATCH):
        try:
            answer = give(redis, keys, Replay([letter.id for letter in some]))
        except (Exception, KeyboardInterrupt) as exc:
            # Nobody else knows which letters this was about.
            for letter in some:
                yield LetterResult(letter, str(exc) or INTERRUPTED)
            raise
        refused: dict[str, str] = dict(answer["refused"])
        put_back = set(answer["replayed"])
        for letter in some:
            yield LetterResult(letter, None if letter.id in put_back else refused.get(letter.id, GONE))


def drop_letters(redis: Redis, keys: LaneKeys, letters: Sequence[Letter]) -> Iterator[LetterResult]:
    """Deletes ``letters``. Yields the result for each."""
    for some in _pages(letters, DROP_BATCH):
        with redis.pipeline(transaction=False) as pipe:
            for letter in some:
                pipe.execute_command("XDEL", keys.dead, letter.id)
            try:
                gone = pipe.execute()
            except (Exception, KeyboardInterrupt) as exc:
                # Some of them may be deleted.
                for letter in some:
                    yield LetterResult(letter, str(exc) or INTERRUPTED)
                raise
        for letter, there in zip(some, gone, strict=True):
            yield LetterResult(letter, None if there else GONE)


def _by_ticket(letters: Sequence[Letter]) -> list[Letter]:
    """Sorted by ticket, so that few tickets are split between two orders. Within a ticket by message id."""
    in_order = sorted(letters, key=lambda letter: id_key(letter.message_id))
    of_ticket: dict[Any, list[Letter]] = {}
    for letter in in_order:
        of_ticket.setdefault(letter.ticket_id, []).append(letter)
    return [letter for some in of_ticket.values() for letter in some]


def _pages(letters: Sequence[Letter], size: int) -> Iterator[Sequence[Letter]]:
    for start in range(0, len(letters), size):
        yield letters[start : start + size]
