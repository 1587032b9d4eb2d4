"""Reads from a lane's server what the checks need. Nothing here writes."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from redis import Redis

from bridge.routing.keys import LaneKeys, schedule_key
from bridge.routing.partitions import stream_id, suffix_of
from tests.chaos.checks import Violation, check_snapshot
from tests.chaos.facts import Effect, Letter, Message, Rest
from tests.chaos.recording import EFFECTS
from tests.chaos.subscriptions import NEWER, OF, OLDER, STREAM, STREAMS, Subscription, label_of
from tests.keycheck import ownerless

#: The states of tickets.
STATE_KEYS = f"{{{STREAM}}}:*:state:*"
#: Keys on the server that are Celery's, the stream's (its layout), or the run's own.
FOREIGN_KEYS = (
    "{ticket_stream}/layout",
    "{ticket_stream}/layout:copy",
    "{ticket_stream:v2}/layout",
    "_kombu.binding*",
    "*.pidbox",
    "*.reply.pidbox",
    "celery",
    "unacked*",
    f"{EFFECTS}*",
    # Of a split stream, and of a newer version, the states are under the name of the whole and of the oldest one.
    STATE_KEYS,
    f"{{{STREAMS[NEWER]}}}:*:state-home",
)
PAGE = 2000


def entries(redis: Redis, stream: str, first: str = "-", last: str = "+") -> list[tuple[str, dict[str, str]]]:
    """All entries of a stream between two ids. ``redis`` decodes its replies, here and below."""
    found: list[tuple[str, dict[str, str]]] = []
    while True:
        page: Any = redis.xrange(stream, first, last, count=PAGE)
        found += page
        if len(page) < PAGE:
            return found
        first = f"({page[-1][0]}"


def effects(redis: Redis) -> list[Effect]:
    """All effects: of each ticket in the order in which they were applied."""
    found: list[Effect] = []
    for key in redis.scan_iter(match=f"{EFFECTS}*", count=1000):
        ticket = key.removeprefix(EFFECTS)
        for place, (id_, fields) in enumerate(entries(redis, key)):
            facts = (ticket, fields["id"], int(fields["n"]), int(fields["fence"]), _ms(id_), place)
            add_effect(found, Effect(*facts, kept="kept" in fields, stored="stored" in fields))
    return found


def add_effect(found: list[Effect], effect: Effect) -> None:
    """Adds what was applied next to a ticket. What was stored before the outcome was written may come again. Nothing of
    its ticket in its lane is between: the later effect of the message takes its place.
    """
    for place in range(len(found) - 1, -1, -1):
        before = found[place]
        if before.ticket != effect.ticket:
            break
        if _lane(before) == _lane(effect):
            if before.stored and before.message_id == effect.message_id and before.fence < effect.fence:
                del found[place]
            break
    found.append(effect)


def _lane(effect: Effect) -> tuple[str, str]:
    """The version and the partition of its message."""
    version, _, id_ = effect.message_id.rpartition(OF)
    return version, suffix_of(id_)


def states(redis: Redis, *, several: bool) -> dict[str, dict[str, Any]]:
    """The states of all tickets, by the names that the effects have. ``several``: whether there are subscriptions."""
    found = {}
    for key in redis.scan_iter(match=STATE_KEYS, count=1000):
        group, _, ticket = key.removeprefix(f"{{{STREAM}}}:").partition(":state:")
        fields: Any = redis.hgetall(key)
        found[label_of(group, ticket, several=several)] = {name: json.loads(text) for name, text in fields.items()}
    return found


def letters(redis: Redis, keys: LaneKeys) -> list[Letter]:
    """All dead letters."""
    return [letter for _, letter in lettered(redis, keys)]


def lettered(redis: Redis, keys: LaneKeys) -> list[tuple[str, Letter]]:
    """The same, each with the id of its entry."""
    found = []
    for id_, fields in entries(redis, keys.dead):
        attempts = int(fields.get("attempts", 0))
        ticket = fields.get("ticket_id", "")
        text = f"{fields.get('reason', '')} {fields.get('error', '')}".strip()
        found.append((id_, Letter(fields["message_id"], ticket, attempts, text, _ms(id_))))
    return found


def rest(redis: Redis, keys: LaneKeys, lanes: Sequence[LaneKeys] = ()) -> Rest:
    """What is left of the lane. ``lanes``: all on the server, when there are others."""
    group = _group(redis, keys)
    unread: Any = redis.xrange(keys.stream, f"({group['last-delivered-id']}", "+", count=PAGE)
    counts: Any = redis.hgetall(keys.counts)
    return Rest(
        unread=len(unread),
        pending=int(group["pending"]),
        records=int(redis.hlen(keys.tickets)),
        applied=int(redis.hlen(keys.applied)),
        retries=int(redis.zcard(keys.retries)),
        outcomes=int(redis.xlen(keys.outcomes)),
        # A dropped message leaves a trace as a success does.
        done=int(counts.get("done", 0)) + int(counts.get("dropped", 0)),
        dead=int(counts.get("dead", 0)),
        ownerless=ownerless(redis, lanes or [keys], (*FOREIGN_KEYS, *_of_older_version(lanes))),
        delayed=sum(int(redis.zcard(key)) for key in (keys.delayed, keys.late, keys.holding)),
    )


def _of_older_version(lanes: Sequence[LaneKeys]) -> Sequence[str]:
    """Keys of the older version, where there is a newer one: `bridge stream retire` deletes them."""
    followed = any(keys.stream.startswith(STREAMS[NEWER]) for keys in lanes)
    return (schedule_key(STREAMS[OLDER]),) if followed else ()


def look(
    redis: Redis, lane: Subscription, messages: Sequence[Message], newest: int, taken: Collection[str] = ()
) -> list[Violation]:
    """One atomic look at a lane at work: is every one of the ``newest`` of its ``messages`` that the group has read
    accounted for? Without those that were ``taken`` off the pending list by hand.
    """
    keys, among = lane.keys, lane.wanted(messages)[-newest:]
    if not among:
        return []
    tickets = sorted({message.ticket for message in among})
    with redis.pipeline(transaction=True) as pipe:
        pipe.xinfo_groups(keys.stream)
        pipe.xrange(keys.dead)
        pipe.xpending_range(keys.stream, keys.group, "-", "+", 1_000_000)
        for ticket in tickets:
            pipe.xrange(EFFECTS + ticket)
        groups, dead, pending, *applied = pipe.execute(raise_on_error=False)
    for reply in (groups, dead, *applied):
        if isinstance(reply, Exception):
            raise reply
    mine = [group for group in groups if group["name"] == keys.group]
    if not mine:
        # It was destroyed by hand.
        return []
    last = _order(mine[0]["last-delivered-id"])
    among = [m for m in among if _order(m.message_id) <= last]
    read = [(m.message_id, m.ticket) for m in among if stream_id(m.message_id) not in taken]
    succeeded = {lane.own_id(fields["id"]) for found in applied for _, fields in found}
    waiting = {row["message_id"] for row in pending}
    return check_snapshot(read, waiting, succeeded, {stream_id(fields["message_id"]) for _, fields in dead})


def begun(redis: Redis, lane: Subscription) -> bool:
    """Whether the lane's group was made."""
    return "name" in _group(redis, lane.keys)


def _group(redis: Redis, keys: LaneKeys) -> dict[str, Any]:
    """What Redis says of the lane's group. Of one that was not made yet, nothing is read."""
    groups: Any = redis.xinfo_groups(keys.stream) if redis.exists(keys.stream) else []
    found = [dict(group) for group in groups if group["name"] == keys.group]
    return found[0] if found else {"last-delivered-id": "0-0", "pending": 0}


def _ms(id_: str) -> int:
    return int(id_.partition("-")[0])


def _order(id_: str) -> tuple[int, int]:
    ms, _, number = id_.partition("-")
    return int(ms), int(number or 0)
