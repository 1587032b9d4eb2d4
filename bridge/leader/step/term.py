"""The frozen handle of one leader's term: settings, keys, connections, parser and clock. Nothing in it changes.

Most parts of a leader need only this and the picture (`bridge.leader.picture.lane`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bridge.app.ticket_tasks import RESERVED
from bridge.link.connections import Wire, client, over
from bridge.protocol.agreement import facts
from bridge.routing.messages import EntryParser
from bridge.routing.transitions import Leadership

if TYPE_CHECKING:
    from celery import Celery

    from bridge.app.lanes import AppLane
    from bridge.link.server_clock import ServerClock
    from bridge.routing.keys import LaneKeys
    from bridge.settings.lane import LaneSettings

#: Longest time that a command of the leader may take, in seconds.
ANSWER_S = 10.0


@dataclass(frozen=True)
class Term:
    """One term of the leader of one lane. Only the leader's thread uses it."""

    settings: LaneSettings
    #: The arguments that every script of the term gets.
    leadership: Leadership
    #: For scripts, and for commands with a typed reply.
    redis: Any
    #: For commands with a raw reply.
    wire: Wire
    parser: EntryParser
    clock: ServerClock
    #: The ticket tasks of this master's own app that belong to the lane.
    own_tasks: frozenset[str]
    #: Facts about this master that other members compare with their own.
    facts: Mapping[str, Any]

    @classmethod
    def begin(
        cls,
        app: Celery,
        url: str,
        lane: AppLane,
        token: str,
        clock: ServerClock,
        consumers_know: Callable[[str], bool] = lambda _name: False,
    ) -> Term:
        """The term that ``token`` names, with its own connections to the server at ``url``.

        ``consumers_know``: whether some consumer of the lane has the task of this name.
        """
        settings, own_tasks = lane.settings, lane.tasks
        return cls(
            settings=settings,
            leadership=Leadership(settings.keys, token, settings.master),
            redis=client(url, timeout_s=ANSWER_S, single=True),
            wire=Wire(url, timeout_s=ANSWER_S),
            parser=EntryParser(
                default_task=settings.default_task,
                max_payload=settings.max_payload,
                known_tasks=own_tasks,
                # A message cannot mean a Celery task of this app that is not a ticket task.
                foreign=lambda name: name not in app.tasks and not name.startswith(RESERVED),
                wanted=settings.filter,
                elsewhere=lane.elsewhere if lane.is_subscription else None,
                consumers_know=consumers_know,
                partition=lane.part,
            ),
            clock=clock,
            own_tasks=own_tasks,
            facts=facts(app, settings, master=True),
        )

    @property
    def keys(self) -> LaneKeys:
        """The keys of the lane."""
        return self.leadership.keys

    @property
    def master(self) -> str:
        """The master's consumer name in the group."""
        return self.leadership.master

    @contextmanager
    def over(self, redis: Any, wire: Wire) -> Iterator[None]:
        """Uses other connections within the block."""
        with over(self.redis, redis), self.wire.over(wire):
            yield

    def rest(self) -> None:
        """Closes the connections. The next command opens them again."""
        self.wire.close()
        self.redis.connection_pool.disconnect()

    def close(self) -> None:
        """Closes the connections."""
        self.wire.close()
        self.redis.close()
