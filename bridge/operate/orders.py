"""Operators' orders to the leader: park, release, drain, resume, transfer, replay.

Only a leader writes, so whoever wants something of a lane asks its leader. An order is an entry of the outcome stream
(`bridge.protocol.outcomes`), which the leader reads anyway; it does the order in the very step in which it settles that
entry, and then answers on a list of the order's own. So an order is carried out once: a leader that dies before that
step leaves the entry to the next one, and one that dies after it has done the order, and only its answer is lost.
Whoever gave the order withdraws it by deleting the entry: of that and the step, one comes first, and the other does
nothing.

An order::

    {"do": "park", "ticket": T, "reason": R}                                  -> {"ok": true, "in_flight": n}
    {"do": "release", "ticket": T}                                            -> {"ok": true, "messages": n}
    {"do": "drain" | "resume", "consumer": NAME}                              -> {"ok": true, "in_flight": n}
    {"do": "transfer", "consumer": NAME, "to": NAME | null, "tickets": [T, …] | null}
                                                                              -> {"ok": true, "moved": n, "running": m}
    {"do": "replay", "letters": [letter id, …]}          -> {"ok": true, "replayed": [id, …], "refused": [[id, why], …]}

or, for each, ``{"error": "one line"}``, and nothing was changed.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import orjson

from bridge.link.connections import UNAVAILABLE
from bridge.routing.errors import OrderFailed
from bridge.routing.text import one_line

if TYPE_CHECKING:
    from redis import Redis

    from bridge.routing.keys import LaneKeys

#: Seconds that an order waits for its answer: longer than a standby needs to take over.
ANSWER_S = 10.0
#: Seconds that a lane may be without a leader before nobody is asked: standbys look every quarter of a second.
LEADER_S = 1.5
#: Seconds more for the answer to an order that was taken in the last moment.
LAST_S = 2.0
#: Seconds of one blocking read, below the client's own time limit.
SLICE_S = 1.0
#: Seconds between two tries while the server is away.
RETRY_S = 0.1
#: Characters of a refusal that are shown.
ERROR_CHARS = 1000

NO_MASTER = "no master leads the lane, so nobody can carry the order out: start one with `bridge run`"


def give(redis: Redis, keys: LaneKeys, order: dict[str, Any], timeout_s: float = ANSWER_S) -> dict[str, Any]:
    """Gives ``order`` to the leader of the lane, and returns its answer.

    Raises `OrderFailed`, one line: refused by the leader; not answered within ``timeout_s``, and withdrawn; or taken
    and never answered. Raises redis errors when the order could not be sent, or may have been.
    """
    _find_leader(redis, keys)
    id_ = uuid.uuid4().hex
    entry = redis.execute_command("XADD", keys.outcomes, "*", "i", id_, "order", orjson.dumps(order))
    reply = keys.reply(id_)
    try:
        found = _await(redis, reply, timeout_s)
    except KeyboardInterrupt:
        if _withdraw(redis, keys, entry):
            raise OrderFailed("interrupted; the order was withdrawn") from None
        raise OrderFailed("interrupted; a master has taken the order, and carries it out") from None
    if found is None:
        if _withdraw(redis, keys, entry):
            raise OrderFailed(_unanswered(redis, keys, timeout_s))
        # It was taken in the last moment, and the answer is on its way.
        found = _await(redis, reply, LAST_S)
    if found is None:
        # It was taken, maybe long ago, by a master that did not live to answer.
        raise OrderFailed(
            "a master took the order and ended before it could answer: see what became of it (`bridge status`), "
            "and give it again if need be"
        )
    answer: dict[str, Any] = orjson.loads(found)
    if "error" in answer:
        # It may name a ticket, which comes from anybody.
        raise OrderFailed(one_line(str(answer["error"]), ERROR_CHARS))
    return answer


def _find_leader(redis: Redis, keys: LaneKeys) -> None:
    """Raises `OrderFailed` when nobody leads, and nobody is about to."""
    until = time.monotonic() + LEADER_S
    while not redis.exists(keys.leader):
        if time.monotonic() >= until:
            raise OrderFailed(NO_MASTER)
        time.sleep(RETRY_S)


def _await(redis: Redis, reply: str, timeout_s: float) -> bytes | None:
    """The answer; None when there was none within ``timeout_s``. A server that is away meanwhile is waited out."""
    until = time.monotonic() + timeout_s
    while (left := until - time.monotonic()) > 0:
        try:
            found: Any = redis.execute_command("BLPOP", reply, max(0.05, min(SLICE_S, left)))
        except UNAVAILABLE:
            time.sleep(RETRY_S)
            continue
        if found is not None:
            text: bytes = found[1]
            return text
    return None


def _withdraw(redis: Redis, keys: LaneKeys, entry: bytes) -> bool:
    """Takes the order back; False when it was taken by a leader: entries leave the stream in the step that settles
    them, and that step does nothing when the entry of an order that it carries out has left before.
    """
    try:
        return bool(redis.execute_command("XDEL", keys.outcomes, entry))
    except UNAVAILABLE as exc:
        raise OrderFailed(
            f"lost Redis while waiting for the answer ({exc}): the order may still be carried out; "
            "see for yourself when it is back (`bridge status`)"
        ) from None


def _unanswered(redis: Redis, keys: LaneKeys, timeout_s: float) -> str:
    token: Any = redis.get(keys.leader)
    if token is None:
        return f"no master answered within {timeout_s:g} s, and none leads any more; the order was withdrawn"
    holder = token.decode().partition(" ")[2]
    return f"no master answered within {timeout_s:g} s ({holder} leads); the order was withdrawn"
