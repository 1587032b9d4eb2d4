"""What a leader works with for one term: the same from the first step of the term to the last one.

Most parts of a leader need this and the picture (`bridge.leader.picture.lane`), and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bridge.app.ticket_tasks import RESERVED, ticket_tasks
from bridge.link.connections import Wire, client
from bridge.protocol.agreement import facts
from bridge.routing.messages import EntryParser
from bridge.routing.transitions import Leadership

if TYPE_CHECKING:
    from celery import Celery

    from bridge.link.server_clock import ServerClock
    from bridge.routing.keys import LaneKeys
    from bridge.settings.lane import LaneSettings

#: Most seconds that a command of the leader may take.
ANSWER_S = 10.0


@dataclass(frozen=True)
class Term:
    """One term of a leader, of one lane. Of the leader's own thread."""

    settings: LaneSettings
    #: What every script of the term is called with.
    leadership: Leadership
    #: For scripts, and for commands with a typed reply.
    redis: Any
    #: For commands whose replies are taken as they come.
    wire: Wire
    parser: EntryParser
    clock: ServerClock
    #: The ticket tasks of this master's own app.
    own_tasks: frozenset[str]
    #: What this master says of itself.
    facts: Mapping[str, Any]

    @classmethod
    def begin(cls, app: Celery, url: str, settings: LaneSettings, token: str, clock: ServerClock) -> Term:
        """The term of ``token``, with connections of its own to the server at ``url``."""
        own_tasks = ticket_tasks(app)
        return cls(
            settings=settings,
            leadership=Leadership(settings.keys, token, settings.master),
            redis=client(url, timeout_s=ANSWER_S, single=True),
            wire=Wire(url, timeout_s=ANSWER_S),
            parser=EntryParser(
                default_task=settings.default_task,
                max_payload=settings.max_payload,
                known_tasks=own_tasks,
                # Of a name that this app has for something else no message is meant.
                foreign=lambda name: name not in app.tasks and not name.startswith(RESERVED),
            ),
            clock=clock,
            own_tasks=own_tasks,
            facts=facts(app, master=True),
        )

    @property
    def keys(self) -> LaneKeys:
        """The keys of the lane."""
        return self.leadership.keys

    @property
    def master(self) -> str:
        """The name under which the group knows the master."""
        return self.leadership.master

    def close(self) -> None:
        """Ends the connections."""
        self.wire.close()
        self.redis.close()
