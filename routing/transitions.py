"""The transitions of a leader: one typed function for each of its Lua scripts.

The head of each script says from which state to which it leads, and which invariant it keeps. The functions of the
other scripts are in `bridge.routing.leadership`, `bridge.routing.membership` and `bridge.routing.effects`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from redis import Redis

from bridge.routing.batch import Batch
from bridge.routing.errors import DispatchRefused, GroupMoved, LaneConflict, NotLeading
from bridge.routing.keys import LaneKeys
from bridge.routing.messages import MAX_TICKET_BYTES
from bridge.routing.return_codes import ReturnCode, code_for_leader, text_of
from bridge.routing.scripts import Argument, Script

_READ = Script("read")
_ADVANCE = Script("advance")
_REROUTE = Script("reroute")
_FORGET = Script("forget")
_ADOPT = Script("adopt")
_RECALL = Script("recall")
_OLDEST = Script("oldest")
_LEASES = Script("leases")
_SURVEY = Script("survey")
_LAST_ID = Script("last_id")
_RESEND = Script("resend")
_DRAIN = Script("drain")
_FLOOR = Script("floor")
_SET_READ_TO = Script("set_read_to")
_UNNAME = Script("unname")
_NOTE_TASKS = Script("note_tasks")
_SHORTEN = Script("shorten")
_INTRODUCE = Script("introduce")

#: Bytes of entries after which one read of the stream brings no more.
READ_BYTES = 4 * 1024 * 1024
#: Most leases of one call.
LEASES = 1000
#: The time that is left, as the script reports it, of a lease whose key does not expire.
NO_END = -1
#: Most entries that one look at the stream names.
SURVEY = 1000
#: First bytes of a Celery message that identify it: its fence base, and the ticket of its first run.
BEGINNING = 4096


@dataclass(frozen=True)
class Leadership:
    """What a script needs to act for the leader: the keys of the lane, the token of the term, the master's name."""

    keys: LaneKeys
    token: str
    master: str


@dataclass(frozen=True)
class Advanced:
    """The result of a batch. ``base``: the fence base; ``acknowledged``: entries that left the pending list;
    ``mended``: entries that should have been pending, were not, and are now; ``uncounted``: counters that hold no
    number, or too large a one, each with the server's error.
    """

    base: int
    acknowledged: int
    mended: int
    uncounted: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Read:
    """The result of a read. ``entries``: raw, ``(id, [field, value, ...])``, without fields when it was deleted; an
    entry that is too large is ``(id, [beginnings of its first fields], bytes, fields)``.
    """

    entries: list[Any]
    #: Bytes of the largest of them.
    largest: int
    #: Whether there may be more.
    more: bool


def advance(client: Redis, lead: Leadership, opening: Argument, batch: Batch) -> Advanced:
    """Does the whole batch in one step.

    Raises `NotLeading` when another master leads, `LaneConflict` when a record is not as expected, an order was
    withdrawn, or the group is gone, and `DispatchRefused` when messages of another version go first. Nothing was
    changed then.
    """
    keys = lead.keys
    args: list[Argument] = [lead.token, keys.group, lead.master, batch.keep_outcomes_from, batch.fences, opening]
    args += (batch.history_cap, orjson.dumps(batch.history) if batch.history else "")
    args += batch.sections()
    names: list[Argument] = [
        keys.leader,
        keys.tickets,
        keys.applied,
        keys.retries,
        keys.outcomes,
        keys.stream,
        keys.fence,
        keys.dead,
        keys.counts,
        keys.history,
        keys.drains,
        keys.delayed,
        keys.late,
        keys.holding,
    ]
    names += [to.queue for to in batch.dispatches.values()]
    for older in batch.older:
        names += (older.keys.leader, older.keys.stream)
    names += [newer.tickets for newer in batch.newer]
    names += [other.fence for other in (*(older.keys for older in batch.older), *batch.newer)]
    reply = _ADVANCE.run(client, names, args)
    code = code_for_leader(reply[0], keys)
    if code is ReturnCode.OLDER:
        raise NotLeading(f"another master leads {text_of(reply[1])}, which {keys.stream} follows")
    if code is ReturnCode.BEHIND:
        stream = text_of(reply[1])
        raise DispatchRefused(f"{stream} has entries that its leader has not read", behind=stream)
    if code is ReturnCode.DEFERRED:
        tickets = [ticket.decode(errors="surrogateescape") for ticket in reply[1]]
        raise DispatchRefused(f"{len(tickets)} tickets have messages of another version that go first", tickets)
    if code is ReturnCode.CONFLICT:
        raise LaneConflict(f"ticket {text_of(reply[1])!r} is not where this master thought it was")
    if code is ReturnCode.WITHDRAWN:
        raise LaneConflict("an order was withdrawn before it was carried out")
    if code is ReturnCode.NOGROUP:
        raise LaneConflict(f"the group {keys.group} of {keys.stream} is gone")
    return Advanced(int(reply[1]), int(reply[2]), int(reply[3]), _pairs(reply[4]))


def _pairs(flat: Sequence[Any]) -> Sequence[tuple[str, str]]:
    return [(text_of(name), text_of(value)) for name, value in zip(flat[::2], flat[1::2], strict=True)] if flat else ()


def read(
    client: Redis,
    lead: Leadership,
    count: int,
    read_to: str = "",
    *,
    after: str = ">",
    limit: int = READ_BYTES,
    first: int = 1,
    names: Sequence[Argument] = (),
) -> Read:
    """Reads up to ``count`` new entries, or with ``after`` the master's own pending entries with later ids. It stops at
    `READ_BYTES`.

    ``read_to``: the group's position, if known. ``limit``: most bytes of an entry that is returned whole.
    ``first``: how many to read before their sizes are known. ``names``: the fields that a filter looks at.

    Raises `NotLeading`, `GroupMoved` when the group has read to another entry, and `LaneConflict` when it is gone.
    """
    keys = lead.keys
    args: list[Argument] = [
        lead.token,
        keys.group,
        lead.master,
        count,
        read_to,
        READ_BYTES,
        limit,
        first,
        after,
        *names,
    ]
    reply = _READ.run(client, [keys.leader, keys.stream], args)
    code = code_for_leader(reply[0], keys)
    if code is ReturnCode.CHANGED:
        raise GroupMoved(f"somebody set the group {keys.group} of {keys.stream} to another entry")
    if code is ReturnCode.NOGROUP:
        raise LaneConflict(f"the group {keys.group} of {keys.stream} is gone")
    return Read(_entries(reply, 3), reply[1], bool(reply[2]))


def _entries(flat: list[Any], at: int) -> list[Any]:
    """The entries of a read, from this place of its reply on."""
    entries: list[Any] = []
    end = len(flat)
    while at < end:
        count = flat[at + 1]
        first = at + 2
        if count >= 0:
            entries.append((flat[at], flat[first : first + count]))
            at = first + count
        else:
            size, fields = flat[first : first + 2]
            at = first + 2 - count
            entries.append((flat[first - 2], flat[first + 2 : at], size, fields))
    return entries


def reroute(
    client: Redis,
    lead: Leadership,
    incarnation: str,
    last_outcome: str,
    tickets: Iterable[tuple[str, str, str, int | None]],
    ids: Sequence[str],
    history: Sequence[list[Any]] = (),
    history_cap: int = 0,
) -> ReturnCode:
    """Takes back ``tickets`` (ticket, expected record, new record, due ms; None: it is parked) and ``ids`` of an ended
    incarnation; ``history``: rows that say so. Raises `NotLeading`.
    """
    keys = lead.keys
    flat: list[Argument] = ["" if argument is None else argument for ticket in tickets for argument in ticket]
    names = [keys.leader, keys.tickets, keys.retries, keys.outcomes, keys.stream, keys.lease(incarnation), keys.counts]
    names.append(keys.history)
    rows = orjson.dumps(list(history)) if history else ""
    args: list[Argument] = [lead.token, keys.group, lead.master, incarnation, last_outcome]
    args += (history_cap, rows, len(flat) // 4)
    return code_for_leader(_REROUTE.run(client, names, [*args, *flat, len(ids), *ids]), keys)


def forget(client: Redis, lead: Leadership, consumer: str, incarnation: str, registration: Argument) -> ReturnCode:
    """Removes registration, queue and group name of a consumer whose ``incarnation`` is over. Raises `NotLeading`."""
    keys = lead.keys
    names = [keys.leader, keys.consumers, keys.stream, keys.lease(incarnation), keys.queue(consumer)]
    return code_for_leader(_FORGET.run(client, names, [lead.token, keys.group, consumer, registration]), keys)


def adopt(client: Redis, lead: Leadership, consumer: str, ids: Sequence[str]) -> int:
    """Makes ``ids`` (at most 1,000) pending under ``consumer``, whether they were pending or not. Returns how many are.

    Raises `NotLeading`, and `LaneConflict` when the group is gone.
    """
    keys = lead.keys
    reply = _ADOPT.run(client, [keys.leader, keys.stream], [lead.token, keys.group, consumer, *ids])
    if code_for_leader(reply[0], keys) is ReturnCode.NOGROUP:
        raise LaneConflict(f"the group {keys.group} of {keys.stream} is gone")
    return int(reply[1])


def resend(client: Redis, lead: Leadership, consumer: str, ticket: str, expected: str, text: Argument) -> ReturnCode:
    """Puts the Celery message of a run that seems lost into its consumer's queue again, with the fences that it has.

    CONFLICT: the record is not ``expected`` any more; nothing was sent. Raises `NotLeading`.
    """
    keys = lead.keys
    names = [keys.leader, keys.tickets, keys.queue(consumer)]
    return code_for_leader(_RESEND.run(client, names, [lead.token, ticket, expected, text]), keys)


def recall(client: Redis, lead: Leadership, consumer: str, count: int) -> list[bytes]:
    """Takes up to ``count`` Celery messages, the oldest first, back from the queue of ``consumer``; fewer when these
    have `READ_BYTES`, none when the queue is empty. Raises `NotLeading`.
    """
    keys = lead.keys
    reply = _RECALL.run(client, [keys.leader, keys.queue(consumer)], [lead.token, count, READ_BYTES])
    code_for_leader(reply[0], keys)
    texts: list[bytes] = reply[1]
    return texts


def oldest(client: Redis, queues: Sequence[str]) -> list[bytes]:
    """The first bytes of the oldest Celery message in each of ``queues``; empty: the queue is empty."""
    found: list[bytes] = []
    while len(found) < len(queues):
        found += _OLDEST.run(client, queues[len(found) :], [BEGINNING, READ_BYTES])
    return found


def leases(client: Redis, keys: LaneKeys, incarnations: Sequence[str]) -> dict[str, int]:
    """The ms that the lease of each of ``incarnations`` has left (`NO_END`; else negative: it is gone).

    One call for a thousand of them: a thousand calls in a pipeline cost the caller four times as much.
    """
    found: dict[str, int] = {}
    for start in range(0, len(incarnations), LEASES):
        some = incarnations[start : start + LEASES]
        found.update(zip(some, _LEASES.run(client, [keys.lease(one) for one in some], []), strict=True))
    return found


def survey(client: Redis, stream: str, start: str, end: str) -> Iterator[list[tuple[str, str]]]:
    """The entries from ``start`` (after it with ``(`` before it, as in XRANGE) to ``end``, up to `SURVEY` of them at a
    time: (id, ticket; empty: there is no valid one).
    """
    more = True
    while more:
        flat, more = _SURVEY.run(client, [stream], [start, end, SURVEY, READ_BYTES, MAX_TICKET_BYTES])
        if flat:
            arguments = [argument.decode(errors="replace") for argument in flat]
            start = f"({arguments[-2]}"
            yield list(zip(arguments[::2], arguments[1::2], strict=True))


def last_id(client: Redis, stream: str) -> str:
    """The newest id that the stream ever gave out; ``0-0``: none yet. Not XINFO: the server would send two entries."""
    return text_of(_LAST_ID.run(client, [stream], []))


def shorten(client: Redis, lead: Leadership, incarnation: str, lease_ms: int) -> None:
    """Cuts the lease of ``incarnation`` to ``lease_ms``, if it has more left. Raises `NotLeading`."""
    keys = lead.keys
    code_for_leader(_SHORTEN.run(client, [keys.leader, keys.lease(incarnation)], [lead.token, lease_ms]), keys)


def drain(client: Redis, lead: Leadership, consumer: str, order: str) -> None:
    """Notes that ``consumer`` takes no new messages; empty ``order``: that it does again. Raises `NotLeading`."""
    keys = lead.keys
    code_for_leader(_DRAIN.run(client, [keys.leader, keys.drains], [lead.token, consumer, order]), keys)


def floor(client: Redis, lead: Leadership, id_: str, *, agreed: bool = False) -> None:
    """Notes that all entries up to ``id_`` are done or dead; empty: the floor stays. ``agreed``: also counts that the
    pending list agreed with the picture. Raises `NotLeading`.
    """
    keys = lead.keys
    code_for_leader(_FLOOR.run(client, [keys.leader, keys.floor, keys.agreed], [lead.token, id_, int(agreed)]), keys)


def all_agreed(client: Redis, leads: Sequence[Leadership]) -> None:
    """Counts for each of ``leads`` that the pending list agreed with the picture. Three round trips at most.

    A lane that is not led in this term any more is left out: its election finds out.
    """
    calls = [(3, lead.keys.leader, lead.keys.floor, lead.keys.agreed, lead.token, "", 1) for lead in leads]
    for reply in _FLOOR.run_each(client, calls) if calls else ():
        if isinstance(reply, Exception):
            raise reply


def introduce(client: Redis, lead: Leadership, facts: Argument, format_: int, *, keeps_history: bool = True) -> None:
    """Says which version and settings the leader has (JSON), of which format the lane is, and that it is one. Deletes
    the history, unless the leader keeps one. Raises `NotLeading`.
    """
    keys = lead.keys
    args = [lead.token, facts, format_, int(keeps_history)]
    code_for_leader(_INTRODUCE.run(client, [keys.leader, keys.about, keys.history, keys.agreed], args), keys)


def note_tasks(
    client: Redis,
    lead: Leadership,
    known: Mapping[str, int],
    forgotten: Sequence[str],
    unserved: Mapping[str, Argument],
) -> None:
    """Notes the tasks that a consumer could run (with the time, Unix s), those that are ``forgotten``, and those that
    messages wait for (with JSON). Raises `NotLeading`.
    """
    keys = lead.keys
    args: list[Argument] = [lead.token, len(known)]
    for pair in known.items():
        args += pair
    args += [len(forgotten), *forgotten, len(unserved)]
    for note in unserved.items():
        args += note
    code_for_leader(_NOTE_TASKS.run(client, [keys.leader, keys.known, keys.unserved], args), keys)


def set_read_to(client: Redis, lead: Leadership, read_to: str) -> None:
    """Sets the position of the lane's group to ``read_to``. Raises `NotLeading`."""
    keys = lead.keys
    code_for_leader(_SET_READ_TO.run(client, [keys.leader, keys.stream], [lead.token, keys.group, read_to]), keys)


def unname(client: Redis, lead: Leadership, name: str) -> None:
    """Removes a name that has nothing pending from the group. Raises `NotLeading`."""
    keys = lead.keys
    code_for_leader(_UNNAME.run(client, [keys.leader, keys.stream], [lead.token, keys.group, name]), keys)
