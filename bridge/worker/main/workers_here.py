"""The workers of this process: a program or a test may start several, of one app or of several ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bridge.routing.errors import ConfigurationError

if TYPE_CHECKING:
    from bridge.worker.main.members import Members

#: Celery's worker -> its members. Names are no keys: workers of two apps may have the same one.
workers: dict[Any, Members] = {}


def members_of(consumer: Any) -> Members | None:
    """The members of the worker that has ``consumer`` (Celery's). None: it is no worker of the bridge."""
    return workers.get(getattr(consumer, "controller", None))


def ticket_queues() -> frozenset[str]:
    """The queues for tickets of all workers of this process."""
    return frozenset[str]().union(*(members.queues for members in list(workers.values())))


def require_own_queues(members: Members) -> None:
    """Raises `ConfigurationError` if a running worker of this process has a queue of the same name.

    That can only be on another server: on the same one its lease refuses the second worker. Pool processes and threads
    know a worker by its queue.
    """
    for other in workers.values():
        if other.have_leases and other.queues & members.queues:
            raise ConfigurationError(
                f"another worker of this process is named {members.name}, too, and serves a lane of the same name on "
                "another server: give this one a name of its own (hostname='NAME@here')"
            )
