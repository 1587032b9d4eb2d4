"""Where one ticket is, and why it does not move. For `bridge ticket show`. Never writes.

The ticket's record names messages that are in flight or await a retry. Waiting messages are in the master's pending
list. Unread ones are in the stream. Neither has an index by ticket. So both are searched up to a bound, and the answer
says how far the search went.

A message may move during a search. When a search found nothing undone, the record is read once more. If there is one
now, the search starts again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from bridge.inspect.advice import NOT_OF_AN_APP
from bridge.inspect.dead_letters import newest_first, select
from bridge.inspect.delayed import DelayedMessage, of_ticket
from bridge.inspect.partitions import name_ticket
from bridge.inspect.reasons import why
from bridge.inspect.roster import draining
from bridge.inspect.scans import (
    MUCH_UNREAD,
    NOTHING,
    Scan,
    merged,
    newest_in_history,
    newest_in_stream,
    pending_under,
    search_pending,
    search_stream,
)
from bridge.inspect.status import reading_stop
from bridge.inspect.ticket_facts import InFlight, Parked, Retry, TicketFacts
from bridge.inspect.ticket_state import TicketState
from bridge.protocol.dead_letters import Letter, read_letter
from bridge.protocol.registration import Registration, Registrations
from bridge.protocol.unreadable import read_one, skipped
from bridge.protocol.unserved import read_note
from bridge.routing import records
from bridge.routing.groups import group_in
from bridge.routing.history import What
from bridge.routing.ids import id_key
from bridge.routing.leadership import read_token
from bridge.routing.message_options import BadOptionError, read_options
from bridge.routing.numbers import duration
from bridge.routing.records import PARK_AFTER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis import Redis

    from bridge.inspect.advice import Advice
    from bridge.settings.lane import LaneSettings

#: Dead letters that are searched for the ticket's, newest first, and how many of the ticket's are shown.
LETTERS_LOOKED_AT = 1000
LETTERS_SHOWN = 3
#: Searches, at most. A ticket that moved during a search is searched for again.
SEARCHES = 3


@dataclass
class _Lane:
    """What is read first, in one transaction."""

    now_ms: int
    leader: str | None
    record: records.Record | None
    due_ms: int | None
    registrations: dict[bytes, Registration]
    last_delivered: str | None
    #: How many messages are delayed, of any ticket.
    delayed: int
    #: Consumer -> the order to drain it.
    drains: dict[bytes, bytes] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)
    #: Why there is no ``record``, though the ticket has one; empty: it can be read.
    unreadable: str = ""

    @property
    def draining(self) -> set[str]:
        """The incarnations that take no new work, by an order."""
        return {one.incarnation for name, one in self.registrations.items() if draining(one, self.drains.get(name))}

    @property
    def alive(self) -> list[Registration]:
        return [one for one in self.registrations.values() if self.leases.get(one.incarnation, -1) > 0]


def locate(
    redis: Redis,
    settings: LaneSettings,
    ticket: str,
    max_attempts: Callable[[str | None], int],
    commands: Advice = NOT_OF_AN_APP,
    suffix: str = "",
    own: frozenset[str] | None = None,
) -> TicketFacts:
    """Searches for ``ticket``. ``max_attempts`` returns the limit of a task, by name (None: the default task).
    ``commands``: how the reason names commands. ``suffix``: what follows the stream ids of the lane, so that ids name
    its partition. ``own``: of a subscription, its tasks; its default task handles messages that name others.
    Raises redis errors.
    """
    found = _search(redis, settings, ticket, max_attempts, own)
    for _ in range(SEARCHES - 1):
        if found.state not in (TicketState.DEAD, TicketState.DONE, None):
            break
        if not redis.hexists(settings.keys.tickets, ticket):
            break
        found = _search(redis, settings, ticket, max_attempts, own)
    overdue = found.state is TicketState.DELAYED and (found.next_due_in_ms or 0) <= 0
    if found.state is TicketState.UNREAD or overdue or found.unread.looked_at >= MUCH_UNREAD:
        found = replace(found, reading_stop=reading_stop(redis, settings, commands))
    # The reason has ids, too.
    found = name_ticket(found, suffix)
    reason = why(found, commands)
    return replace(found, why=f"{found.why}; {reason}" if found.why else reason)


def _search(
    redis: Redis,
    settings: LaneSettings,
    ticket: str,
    max_attempts: Callable[[str | None], int],
    own: frozenset[str] | None,
) -> TicketFacts:
    keys = settings.keys
    lane = _read_lane(redis, settings, ticket)
    record = lane.record
    ticket_id = ticket.encode()
    nothing = NOTHING
    waiting = unread = nothing
    if lane.last_delivered is not None:
        waiting = _waiting(redis, settings, ticket, record)
    unread = search_stream(redis, keys, ticket_id, lane.last_delivered or "0-0")
    letters = _letters(redis, settings, ticket)
    delayed, next_delayed, holding = nothing, None, frozenset[str]()
    if lane.delayed:
        delayed, next_delayed, holding = of_ticket(redis, settings, ticket)
    # They are pending where the waiting ones are.
    named = () if record is None or record.parked else record.ids
    waiting = _without(waiting, holding.difference(named))

    in_flight = retry = parked = None
    if record is not None and record.in_flight:
        state: TicketState | None = TicketState.IN_FLIGHT
        in_flight = _in_flight(lane, record)
    elif record is not None and record.parked:
        state = TicketState.PARKED
        since_ms = max(0, lane.now_ms - record.at_ms)
        parked = Parked(record.cause, since_ms, record.ids[0] if record.ids else None, record.attempt)
    elif record is not None:
        retry = _retry(redis, settings, lane, record, max_attempts, own)
        state = TicketState.AWAITING_RETRY
        if retry.is_held:
            state = TicketState.DELAYED if retry.due_in_ms > 0 else TicketState.WAITING
    elif waiting.count:
        state = TicketState.WAITING
    elif unread.count:
        state = TicketState.UNREAD
    elif delayed.count:
        state = TicketState.DELAYED
    else:
        state = None
    last_done, last_what = None, None
    if state is None:
        dead_ids = {letter.message_id for letter in letters}
        if lane.last_delivered is not None:
            # Done entries have left the stream, unless bridge_retention keeps them. Entries with a dead letter are
            # still there.
            in_stream = newest_in_stream(redis, keys, ticket_id, lane.last_delivered)
            in_history, what = newest_in_history(redis, keys, ticket) or (None, None)
            last_done = max((id_ for id_ in (in_stream, in_history) if id_ is not None), key=id_key, default=None)
            last_what = what if last_done == in_history else None
        if last_done is not None and last_done == in_stream and last_done not in dead_ids:
            letters += _letter_of(redis, settings, last_done, letters)
            dead_ids = {letter.message_id for letter in letters}
        if last_what in (What.DEAD, What.REFUSED) or (letters and (last_done is None or last_done in dead_ids)):
            state = TicketState.DEAD
        elif last_done is not None:
            state = TicketState.DONE
    return TicketFacts(
        ticket=ticket,
        state=state,
        why=lane.unreadable,
        leader=lane.leader,
        consumers_alive=len(lane.alive),
        in_flight=in_flight,
        retry=retry,
        parked=parked,
        losses=0 if record is None else record.losses,
        lost=None if record is None else record.lost,
        has_group=lane.last_delivered is not None,
        waiting=waiting,
        unread=unread,
        delayed=delayed,
        next_delayed=next_delayed,
        next_due_in_ms=None if next_delayed is None else next_delayed.due_ms - lane.now_ms,
        letters=letters,
        nobody_runs=_nobody_runs(redis, settings, lane, record, (*waiting.ids, *_due(lane, next_delayed)), own),
        last_done=last_done,
        last_what=last_what,
    )


def _read_lane(redis: Redis, settings: LaneSettings, ticket: str) -> _Lane:
    keys = settings.keys
    with redis.pipeline(transaction=True) as pipe:
        pipe.time()
        pipe.get(keys.leader)
        pipe.hget(keys.tickets, ticket)
        pipe.zscore(keys.retries, ticket)
        pipe.hgetall(keys.consumers)
        pipe.hgetall(keys.drains)
        pipe.zcard(keys.delayed)
        pipe.zcard(keys.holding)
        pipe.execute_command("XINFO", "GROUPS", keys.stream)
        replies = pipe.execute(raise_on_error=False)
    group = group_in(replies.pop(), keys.group)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    time_, token, text, due, registered, drains, overtaking, holding = replies
    unreadable: list[str] = []

    def skip(key: str, field: bytes, value: bytes) -> None:
        unreadable.append(skipped(key, field, value))

    lane = _Lane(
        now_ms=time_[0] * 1000 + time_[1] // 1000,
        leader=None if token is None else read_token(token).holder,
        record=read_one(keys.tickets, ticket.encode(), text, records.parse, skip),
        due_ms=None if due is None else int(due),
        # The leader logs those that cannot be read.
        registrations=Registrations().read(registered, lambda _name, _text: None),
        last_delivered=None if group is None else group.read_to,
        delayed=overtaking + holding,
        drains=drains,
    )
    asked = [one.incarnation for one in lane.registrations.values()]
    if lane.record is not None and lane.record.in_flight:
        asked.append(lane.record.incarnation)
    with redis.pipeline(transaction=False) as pipe:
        for incarnation in asked:
            pipe.pttl(keys.lease(incarnation))
        leases = pipe.execute()
    lane.leases = dict(zip(asked, leases, strict=True))
    lane.unreadable = "".join(unreadable)
    return lane


def _waiting(redis: Redis, settings: LaneSettings, ticket: str, record: records.Record | None) -> Scan:
    """The ticket's waiting messages, without those that its record names."""
    keys, master, ticket_id = settings.keys, settings.master, ticket.encode()
    if record is None:
        return search_pending(redis, keys, master, ticket_id)
    if record.parked:
        # Most are shelved. Messages that were never in the leader's memory may still be under the master's name.
        shelved = pending_under(redis, keys, keys.parked_consumer(master, ticket))
        return merged(shelved, search_pending(redis, keys, master, ticket_id))
    # Most waiting messages are younger than those that the record names. Older ones were dead and were replayed.
    return merged(
        search_pending(redis, keys, master, ticket_id, after=record.ids[-1]),
        search_pending(redis, keys, master, ticket_id, before=record.ids[-1]),
    )


def _without(waiting: Scan, holding: frozenset[str]) -> Scan:
    """``waiting`` without the messages ``holding``."""
    ids = tuple(id_ for id_ in waiting.ids if id_ not in holding)
    return replace(waiting, ids=ids, count=max(len(ids), waiting.count - len(holding)))


def _in_flight(lane: _Lane, record: records.Record) -> InFlight:
    lease_ms = lane.leases.get(record.incarnation, -2)
    return InFlight(
        consumer=record.consumer,
        incarnation=record.incarnation,
        message_ids=record.ids,
        attempt=record.attempt,
        fence=record.fence,
        since_ms=max(0, lane.now_ms - record.at_ms),
        consumer_alive=lease_ms > 0,
        lease_ms=max(0, lease_ms),
        park_reason=record.cause.removeprefix(PARK_AFTER) if record.cause.startswith(PARK_AFTER) else None,
    )


def _retry(
    redis: Redis,
    settings: LaneSettings,
    lane: _Lane,
    record: records.Record,
    max_attempts: Callable[[str | None], int],
    own: frozenset[str] | None,
) -> Retry:
    id_ = record.ids[0]
    fields = _fields_of(redis, settings, id_)
    of_message = _own_max_attempts(id_, fields)
    return Retry(
        message_id=id_,
        attempt=record.attempt,
        max_attempts=of_message or max_attempts(_task_named(settings, lane, fields, own)),
        due_in_ms=(lane.due_ms or lane.now_ms) - lane.now_ms,
        last_error=record.cause,
        is_held=record.cause == records.HELD,
    )


def _task_of(redis: Redis, settings: LaneSettings, lane: _Lane, id_: str, own: frozenset[str] | None) -> str | None:
    """The task that handles message ``id_``, by the leader's rule (`bridge.routing.messages`). None: the lane has no
    default task, and the message names none, or the entry is gone.
    """
    return _task_named(settings, lane, _fields_of(redis, settings, id_), own)


def _fields_of(redis: Redis, settings: LaneSettings, id_: str) -> Sequence[bytes]:
    entries = redis.execute_command("XRANGE", settings.keys.stream, id_, id_)
    found: Sequence[bytes] = entries[0][1] if entries else ()
    return found


def _own_max_attempts(id_: str, fields: Sequence[bytes]) -> int | None:
    """The attempts that the message itself has; None: those of its task."""
    try:
        options = read_options(id_key(id_)[0], fields, has_payload=b"payload" in fields[::2])
    except BadOptionError:
        return None
    return options.max_attempts if options is not None else None


def _task_named(settings: LaneSettings, lane: _Lane, fields: Sequence[bytes], own: frozenset[str] | None) -> str | None:
    raw = dict(zip(fields[::2], fields[1::2], strict=True)).get(b"task")
    if raw is None:
        return settings.default_task
    named: str = raw.decode(errors="replace")
    if own is None or named in own or settings.default_task is None:
        return named
    # Consumers that were upgraded first have the task already.
    known = any(named in (one.tasks or ()) for one in lane.registrations.values())
    return named if known else settings.default_task


def _nobody_runs(
    redis: Redis,
    settings: LaneSettings,
    lane: _Lane,
    record: records.Record | None,
    waiting: Sequence[str],
    own: frozenset[str] | None,
) -> str:
    """Why no live consumer can run the oldest message of a ticket that is not in flight. Empty: one can. ``waiting``:
    the ids of messages that no record names, the oldest first.
    """
    oldest = record.ids[0] if record is not None and record.ids else next(iter(waiting), None)
    if oldest is None or not lane.alive or (record is not None and record.in_flight):
        return ""
    task = _task_of(redis, settings, lane, oldest, own)
    if task is None:
        return ""
    # The leader's note says more: whether the task is known, and when its message becomes a dead letter.
    text: Any = redis.hget(settings.keys.unserved, task)
    why = ""
    note = read_one(settings.keys.unserved, task.encode(), text, lambda one: read_note(task.encode(), one))
    if note is not None:
        noted = note.task
        if noted.breaker:
            return f"no message of its task {task} is dispatched: {noted.breaker}"
        why = f": {noted.why}"
        if noted.dead_in_ms is not None:
            why += f"; the message that has waited for longest is a dead letter in {duration(noted.dead_in_ms)}"
    able = [one for one in lane.alive if one.tasks is None or task in one.tasks]
    if able and lane.draining.issuperset(one.incarnation for one in able):
        return f"every consumer that can run its task {task} is draining, until an operator resumes it"
    if able:
        return ""
    return f"no consumer that is alive can run its task {task}{why}"


def _due(lane: _Lane, message: DelayedMessage | None) -> tuple[str, ...]:
    """The id of ``message``, if it is due."""
    return () if message is None or message.due_ms > lane.now_ms else (message.id,)


def _letter_of(redis: Redis, settings: LaneSettings, message_id: str, found: Sequence[Letter]) -> tuple[Letter, ...]:
    """The letter of a message that is not in ``found``, if it is among the first `LETTERS_LOOKED_AT` after the message:
    most die soon.
    """
    if len(found) < LETTERS_SHOWN and redis.xlen(settings.keys.dead) <= LETTERS_LOOKED_AT:
        return ()
    page = redis.execute_command("XRANGE", settings.keys.dead, message_id, "+", "COUNT", LETTERS_LOOKED_AT)
    letters = (read_letter(id_, flat) for id_, flat in page)
    return tuple(islice((letter for letter in letters if letter.message_id == message_id), 1))


def _letters(redis: Redis, settings: LaneSettings, ticket: str) -> tuple[Letter, ...]:
    """The ticket's newest dead letters, among the newest `LETTERS_LOOKED_AT` of the lane."""
    letters = islice(newest_first(redis, settings.keys), LETTERS_LOOKED_AT)
    return tuple(islice(select(letters, ticket=ticket), LETTERS_SHOWN))
