"""Ends the blocking read (BRPOP) that is open when a worker stops consuming, and handles the message that it returns.

Celery leaves its loop while kombu's BRPOP is open. It reads the reply when it closes the connection, after all running
tasks have ended. A run in that reply would be lost until then: it is not in the queue any more, so the warm shutdown
does not find it there, and the worker does not know of it. So the read is ended first. To end it for certain, the
worker pushes a probe to its own queue, which answers the BRPOP.

No race is left. The loop has ended, so no other read starts. What the leader pushes from now on stays in the queue, and
the warm shutdown gives it back. The probe is taken back, if it is still there: a worker whose lease is over does not
empty its queue, and the queue of a lane that was left has no owner.
"""

from __future__ import annotations

from collections.abc import Collection
from queue import Empty
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from bridge.link.connections import client
from bridge.protocol.envelope import OPENING, Envelopes
from bridge.protocol.names import WorkerRequest

if TYPE_CHECKING:
    from bridge.worker.main.member import Member

logger = get_logger(__name__)

#: Timeout for pushing the probe, and for taking it back, in seconds.
PUSH_S = 1.0
#: How long to wait for the reply, in seconds, beyond the timeout of the BRPOP itself: a server may be slow.
PATIENCE_S = 1.0


def end_last_read(member: Member, queues: Collection[str], consumer: Any) -> None:
    """Ends the open read of ``consumer`` (Celery's), whose loop has ended. A stopping worker gives the message back.

    ``member``: one of the worker's. ``queues``: those for tickets of all of them. If the server is away, there is no
    reply to read. That is no error here.
    """
    tasks = consumer.task_consumer
    channel = tasks.channel if tasks is not None else None
    # Kombu has no public name for the open read.
    if channel is None or not channel._in_poll:
        return
    reading = channel._in_poll
    probe = _probe_of(member)
    try:
        for other in [other for other in tasks.queues if other.name not in queues]:
            # An ordinary message must go back to its queue, since the pool is closed. Kombu does that for a queue that
            # is not consumed.
            tasks.cancel_by_queue(other)
        _quietly(member, "LPUSH", probe)
        if reading.can_read(timeout=channel.brpop_timeout + PATIENCE_S):
            channel._brpop_read()
    except Empty:
        # The read had timed out without a message.
        pass
    except (*consumer.connection_errors, RedisError, OSError) as exc:
        logger.debug("the last read was lost with its connection: %s", exc)
    _quietly(member, "LREM", 0, probe)
    if channel._in_poll:
        # Kombu would wait for the reply without a limit.
        reading.disconnect()


def _probe_of(member: Member) -> bytes:
    """A Celery message that carries no message of the stream. It only has to leave the queue."""
    # No message has fence 0.
    return (
        OPENING.encode()
        + b"0"
        + Envelopes(member.app).request(member.shared.incarnation, member.queue, WorkerRequest.PROBE)
    )


def _quietly(member: Member, command: str, *arguments: bytes | int) -> None:
    """Runs a command on the member's queue. Where the server refuses it (it is full, for example) or is away, the read
    ends by itself, after `brpop_timeout`.
    """
    try:
        with client(member.url, timeout_s=PUSH_S) as redis:
            redis.execute_command(command, member.queue, *arguments)
    except (RedisError, OSError) as exc:
        logger.debug("cannot %s the probe of the last read: %s", command, exc)
