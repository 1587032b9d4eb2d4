"""Cancels and reschedules delayed messages for an operator. The leader does it, and answers for each message."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from bridge.operate.orders import INTERRUPTED, give
from bridge.protocol.orders import DELAYED_IDS, ChangeDelayed, DelayedAct
from bridge.routing.groups import group_in
from bridge.routing.ids import id_key
from bridge.routing.partitions import stream_id

if TYPE_CHECKING:
    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.inspect.delayed import DelayedMessage

#: Seconds to wait until the leader has read a message that was just pushed.
READ_S = 5.0
#: Seconds between two looks whether it has.
READ_POLL_S = 0.02


@dataclass(frozen=True)
class Change:
    """The result for one message. ``why``: why it was not changed; None: it was."""

    message_id: str
    why: str | None = None


def change(
    redis: Redis, lane: AppLane, act: DelayedAct, messages: Iterable[DelayedMessage], due_ms: int | None = None
) -> Iterator[Change]:
    """Changes the messages, some hundred with each order. ``due_ms``: when they are due now, for a rescheduling.

    Raises `OrderFailed` and redis errors, after the messages of that order, with the error as the reason of each.
    """
    source = iter(messages)
    while some := list(islice(source, DELAYED_IDS)):
        ids = [stream_id(message.id) for message in some]
        try:
            _await_reading(redis, lane, max(ids, key=id_key))
            answer = give(redis, lane.settings.keys, ChangeDelayed(act, ids, due_ms))
        except (Exception, KeyboardInterrupt) as exc:
            # Nobody else knows which messages this was about.
            for message in some:
                yield Change(message.id, str(exc) or INTERRUPTED)
            raise
        # "message 1-1 has begun": the command names the message itself, with its partition.
        refused = {id_: why.removeprefix(f"message {id_} ") for id_, why in answer["refused"]}
        for message, id_ in zip(some, ids, strict=True):
            yield Change(message.id, refused.get(id_))


def _await_reading(redis: Redis, lane: AppLane, newest: str) -> None:
    """Waits a moment until the leader has read the message ``newest``. The leader refuses one that it has not read."""
    keys = lane.settings.keys
    end = time.monotonic() + READ_S
    while time.monotonic() < end:
        replies: Any = redis.execute_command("XINFO", "GROUPS", keys.stream)
        group = group_in(replies, keys.group)
        if group is not None and id_key(group.read_to) >= id_key(newest):
            return
        time.sleep(READ_POLL_S)
