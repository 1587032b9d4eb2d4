"""The testing kit for users: handle one message without a server, record handled messages, run a whole lane in a test.

Imports `bridge.stack` and what is below it. Fixtures are in `bridge.testing.plugin`, which pytest loads by itself;
a lane with a server, a master and a worker is `bridge.testing.lane.Lane`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bridge.app.eager import Handled
from bridge.app.installed import bridge_of
from bridge.producer.message_bytes import payload_bytes, ticket_bytes
from bridge.routing.errors import ConfigurationError
from bridge.routing.records import LostAttempt

__all__ = ["Handled", "LostAttempt", "handle", "recorded"]


def handle(
    task: Any,
    ticket_id: str | int,
    payload: Any = None,
    *,
    attempt: int = 1,
    lost: LostAttempt | None = None,
    state: Mapping[str, Any] | None = None,
) -> Handled:
    """Handles one message once, as a worker would, without a server; effects are recorded and applied nowhere.

        ``attempt``: the number of the attempt, from 1. ``lost``: the attempt before, if that was cut off half way, for
    `bridge_rollback`. ``state``: the ticket's state before the message; None: what the ticket's last message saved.
    `Handled.saved` is the state after it. Raises `PayloadError` for a message that could not be pushed.
    """
    eager = bridge_of(task.app).eager
    content = payload_bytes(payload, bridge_of(task.app).settings.lane.max_payload)
    return eager.handle(task, ticket_bytes(ticket_id).decode(), content, eager.next_id(), attempt, lost, state)


@contextmanager
def recorded(app: Any) -> Iterator[list[Handled]]:
    """A list that gets every attempt that ``app`` handles eagerly (``task_always_eager``), for as long as the block.

    When the block begins, and after it, no ticket is parked, and no idempotency key is taken. A block in another one
    leaves both as they are. Raises `ConfigurationError` when the app is not eager: its pushes would go to the stream.
    """
    if not app.conf.task_always_eager:
        raise ConfigurationError("recorded(app) needs task_always_eager = True: without it a push goes to the stream")
    found: list[Handled] = []
    eager = bridge_of(app).eager
    listeners = eager.listeners
    if not listeners:
        # Another test may have left some.
        eager.begin_again()
    listeners.append(found.append)
    try:
        yield found
    finally:
        listeners.remove(found.append)
        if not listeners:
            eager.begin_again()
