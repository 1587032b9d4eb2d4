"""Revokes (``app.control.revoke``, Flower) for messages that travel in bundles.

Celery keeps revoked ids in the main process, and compares them with the ids of Celery messages. But the messages of a
bundle have their own ids, and wait in a pool process. So two things are added. Revoked ids go into the shared page,
which a pool process reads before each message. And ``terminate`` also looks into bundles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from celery.worker import state as worker_state
from celery.worker.control import Panel, ok
from kombu.utils.functional import maybe_list

from bridge.worker.main.workers_here import members_of

if TYPE_CHECKING:
    from bridge.worker.main.members import Members

logger = get_logger(__name__)


def hook_revokes() -> None:
    """Extends Celery's remote commands ``revoke`` and ``terminate`` for the workers of this process."""
    ordinary: Callable[..., Any] = Panel.data["revoke"]
    if getattr(ordinary, "of_ticket_bridge", False):
        return

    def revoke(state: Any, task_id: Any, terminate: bool = False, signal: Any = None, **kwargs: Any) -> Any:
        members = members_of(state.consumer)
        if members is None:
            return ordinary(state, task_id, terminate, signal, **kwargs)
        ids = frozenset(maybe_list(task_id) or ())
        known = sorted(id_ for id_ in ids if id_ in worker_state.requests)
        for member in members:
            member.shared.revoke(ids)
        reply = ordinary(state, task_id, terminate, signal, **kwargs)
        ended = _end(members, state.consumer.pool, ids, signal) if terminate else []
        return ok(f"terminate: {', '.join([*known, *ended])}") if ended else reply

    def terminate(state: Any, signal: Any, task_id: Any, **kwargs: Any) -> Any:
        return revoke(state, task_id, True, signal, **kwargs)

    revoke.of_ticket_bridge = True  # type: ignore[attr-defined]
    Panel.data["revoke"] = revoke
    Panel.data["terminate"] = terminate


def _end(members: Members, pool: Any, ids: frozenset[str], signal: Any) -> list[str]:
    """Ends those of the messages ``ids`` that are in bundles here. Returns the ids that it found unfinished."""
    found: list[str] = []
    for request in [one for member in members for one in member.open.all.values()]:
        if request.carries_many and (mine := [one.id for one in request.unfinished() if one.id in ids]):
            logger.info("terminating %s, in a bundle", ", ".join(mine))
            request.end(pool, frozenset(mine), signal)
            found += mine
    return found
