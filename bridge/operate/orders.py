"""Operators' orders to the leader: park, release, drain, resume, transfer, replay.

Only the leader changes a lane, so an operator asks the leader. An order is an entry of the outcome stream
(`bridge.protocol.outcome_entries`), which the leader reads anyway. The leader carries out the order in the same step in
which it settles the entry. Then it answers on a list that belongs to this order.

So an order is carried out once. A leader that dies before the step leaves the entry to the next leader. When it dies
after the step, the order is carried out, and only the answer is lost.

The operator's command withdraws an order by deleting its entry. Either the deletion or the step comes first; the other
one then does nothing.

The forms of orders and answers: `bridge.protocol.orders`.
"""

from __future__ import annotations

import signal
import threading
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import orjson

from bridge.link.connections import UNAVAILABLE
from bridge.protocol.orders import order_text
from bridge.protocol.outcome_entries import EntryKind, notice_fields
from bridge.routing.errors import NothingToDo, OrderFailed
from bridge.routing.leadership import read_token
from bridge.routing.stop_signal import StopSignal
from bridge.routing.text import one_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from redis import Redis

    from bridge.protocol.orders import Order
    from bridge.routing.keys import LaneKeys

#: Seconds that a command waits for the answer: longer than a standby needs to take over.
ANSWER_WAIT_S = 10.0
#: Seconds that a command waits for a leader before it gives up. Standbys try to lead every quarter of a second.
LEADER_S = 1.5
#: Further seconds to wait for the answer when the leader took the order at the last moment.
LAST_S = 2.0
#: Seconds of one blocking read, below the client's own time limit.
SLICE_S = 1.0
#: Seconds between two tries while the server is away.
RETRY_S = 0.1
#: Most lanes that an error names.
NAMED = 10
#: Characters of a refusal that are shown.
ERROR_CHARS = 1000

#: Why a message was not changed, when Ctrl-C ended the command that was about it.
INTERRUPTED = "interrupted"
NO_MASTER = "no master leads the lane, so the order cannot be carried out: start one with `bridge run`"


def give(redis: Redis, keys: LaneKeys, order: Order, timeout_s: float = ANSWER_WAIT_S) -> dict[str, Any]:
    """Gives ``order`` to the leader of the lane, and returns its answer.

    Raises `OrderFailed`, one line, when the leader refused the order, when it did not answer within ``timeout_s`` and
    the order was withdrawn, or when the leader took the order and never answered; `NothingToDo` when there is
    nothing to do. Raises redis errors when it is unknown whether the order was sent.
    """
    _find_leaders(redis, [keys])
    id_ = uuid.uuid4().hex
    fields = notice_fields(EntryKind.ORDER, id_, order_text(order))
    reply = keys.reply(id_)
    entry = None
    try:
        with _interrupted_at_its_end():
            entry = redis.execute_command("XADD", keys.outcomes, "*", *fields)
        found = _await(redis, reply, timeout_s)
    except KeyboardInterrupt:
        if entry is None:
            raise
        if _withdraw(redis, keys, entry):
            raise OrderFailed("interrupted; the order was withdrawn") from None
        raise OrderFailed("interrupted; the leader took the order and carries it out") from None
    if found is None:
        if _withdraw(redis, keys, entry):
            raise OrderFailed(_unanswered(redis, keys, timeout_s))
        # The leader took it at the last moment: the answer is on its way.
        found = _await(redis, reply, LAST_S)
    if found is None:
        raise OrderFailed(
            "the leader took the order and ended before it could answer: check the result (`bridge status`), "
            "and repeat the order if necessary"
        )
    answer: dict[str, Any] = orjson.loads(found)
    if "error" in answer:
        # It may quote a ticket's id, which may contain anything.
        failed = NothingToDo if answer.get("nothing_to_do") else OrderFailed
        raise failed(one_line(str(answer["error"]), ERROR_CHARS))
    return answer


@contextmanager
def _interrupted_at_its_end() -> Iterator[None]:
    """Ctrl-C and SIGTERM within the block take effect at its end: else nobody would know what was sent."""
    if threading.current_thread() is not threading.main_thread():
        # No signal comes here.
        yield
        return
    with StopSignal() as stop:
        yield
    if stop.number is not None:
        signal.raise_signal(stop.number)


def give_to_all(redis: Redis, orders: Sequence[tuple[LaneKeys, Order]]) -> list[dict[str, Any]]:
    """Gives each lane its order, one after another, and returns the answers of those that had something to do.

    Raises as `give` does: `NothingToDo` when no lane has anything to do, and `OrderFailed` at the first lane that does
    not carry its order out. It names the lanes before it that did. The same orders may be given again.

    Before the first order each lane must have a leader: half of an order for a consumer may be worse than none. One
    that is drained in some partitions alone takes nothing of the others either.
    """
    _find_leaders(redis, [keys for keys, _ in orders])
    answers: list[dict[str, Any]] = []
    done: list[str] = []
    nothing = None
    for keys, order in orders:
        try:
            answers.append(give(redis, keys, order))
            done.append(printable(keys.stream))
        except NothingToDo as exc:
            nothing = exc
        except OrderFailed as exc:
            before = f"; the order was carried out in {_first_of(done)}" if done else ""
            raise OrderFailed(f"{_named(keys, orders)}{exc}{before}") from None
    if nothing is not None and not answers:
        raise nothing
    return answers


def _named(keys: LaneKeys, lanes: Sequence[object]) -> str:
    """What an error of one of several lanes begins with."""
    return f"{printable(keys.stream)}: " if len(lanes) > 1 else ""


def _first_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


def _find_leaders(redis: Redis, lanes: Sequence[LaneKeys]) -> None:
    """Raises `OrderFailed` when a lane has no leader within `LEADER_S`."""
    until = time.monotonic() + LEADER_S
    for keys in lanes:
        while not redis.exists(keys.leader):
            if time.monotonic() >= until:
                raise OrderFailed(f"{_named(keys, lanes)}{NO_MASTER}")
            time.sleep(RETRY_S)


def _await(redis: Redis, reply: str, timeout_s: float) -> bytes | None:
    """The answer; None when none came within ``timeout_s``. Goes on through an outage of the server."""
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
    """Withdraws the order. False: the leader took it.

    The step that settles an order deletes its entry, and does nothing when the entry is already deleted.
    """
    try:
        return bool(redis.execute_command("XDEL", keys.outcomes, entry))
    except UNAVAILABLE as exc:
        raise OrderFailed(
            f"lost Redis while waiting for the answer ({exc}): the order may still be carried out; "
            "check when it is back (`bridge status`)"
        ) from None


def _unanswered(redis: Redis, keys: LaneKeys, timeout_s: float) -> str:
    token: Any = redis.get(keys.leader)
    if token is None:
        return f"no master answered within {timeout_s:g} s, and none leads any more; the order was withdrawn"
    holder = read_token(token).holder
    return f"no master answered within {timeout_s:g} s ({holder} leads); the order was withdrawn"
