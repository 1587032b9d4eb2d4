"""Ends the blocking read that is under way when a worker stops consuming, and hands over what it brought.

Celery leaves its loop with kombu's BRPOP still asked, and reads the reply when it closes the connection: last of all,
when whatever runs is done. A run in that reply would be in nobody's hands until then: it left the queue, so the
farewell does not find it there, and the worker does not know of it. So the read is ended before anything else of the
shutdown, and for certain: a word to the worker itself, pushed to its own queue, answers it when nothing else does.

No race is left: the loop is over, so no other read begins, and what the leader pushes from now on stays in the queue,
where the farewell takes it.
"""

from __future__ import annotations

from queue import Empty
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from bridge.link.connections import client
from bridge.protocol.envelope import OPENING, Envelopes
from bridge.protocol.names import WorkerWord

if TYPE_CHECKING:
    from bridge.worker.main.member import Member

logger = get_logger(__name__)

#: Seconds that pushing the word may take.
PUSH_S = 1.0
#: Seconds that the reply may take, beyond the longest that the read itself lasts: a server may be slow.
PATIENCE_S = 1.0


def end_last_read(member: Member, consumer: Any) -> None:
    """Ends the read of ``consumer`` (Celery's), whose loop is over, and delivers what it brought: a worker that goes
    gives that back.

    A server that is away is no error here: then there is nothing to be read, or it will be read by nobody.
    """
    tasks = consumer.task_consumer
    channel = tasks.channel if tasks is not None else None
    # Kombu has no public name for its read.
    if channel is None or not channel._in_poll:
        return
    reading = channel._in_poll
    queue = member.lane.keys.queue(member.name)
    try:
        for other in [other for other in tasks.queues if other.name != queue]:
            # What is not the bridge's shall go back to its queue, as it does when kombu reads this: the pool is closed.
            tasks.cancel_by_queue(other)
        _wake(member, queue)
        if reading.can_read(timeout=channel.brpop_timeout + PATIENCE_S):
            channel._brpop_read()
    except Empty:
        # It had ended by itself, with nothing. The word is left to the farewell.
        pass
    except (*consumer.connection_errors, RedisError, OSError) as exc:
        logger.debug("the last read was lost with its connection: %s", exc)
    if channel._in_poll:
        # Kombu would wait for the reply, without a limit.
        reading.disconnect()


def _wake(member: Member, queue: str) -> None:
    # No message has fence 0. What carries a word is answered by having been taken.
    word = Envelopes(member.app).word(member.shared.incarnation, queue, WorkerWord.PROBE)
    try:
        with client(member.url, timeout_s=PUSH_S) as redis:
            redis.lpush(queue, OPENING.encode() + b"0" + word)
    except (RedisError, OSError) as exc:
        # A full server, for one, refuses it. Then the read ends by itself, after `brpop_timeout`.
        logger.debug("cannot end the last read at once: %s", exc)
