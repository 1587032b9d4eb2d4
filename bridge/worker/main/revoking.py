"""An operator revokes messages (``app.control.revoke``, Flower): what Celery does not know of those in bundles.

Celery keeps revoked ids in the main process, and looks at the id of a Celery message. The messages of a bundle have ids
of their own, and wait in a pool process. So the ids go into the page that pool processes look at before each message,
and what is to be terminated is looked for in bundles, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from celery.worker import state as worker_state
from celery.worker.control import Panel, ok
from kombu.utils.functional import maybe_list

if TYPE_CHECKING:
    from bridge.worker.main.member import Member

logger = get_logger(__name__)


def hook_revokes(members: Mapping[str, Member]) -> None:
    """Makes Celery's remote commands ``revoke`` and ``terminate`` tell the one of ``members`` that they come to."""
    ordinary: Callable[..., Any] = Panel.data["revoke"]
    if getattr(ordinary, "of_ticket_bridge", False):
        return

    def revoke(state: Any, task_id: Any, terminate: bool = False, signal: Any = None, **kwargs: Any) -> Any:
        member = members.get(state.hostname)
        if member is None:
            return ordinary(state, task_id, terminate, signal, **kwargs)
        ids = frozenset(maybe_list(task_id) or ())
        known = sorted(id_ for id_ in ids if id_ in worker_state.requests)
        member.shared.revoke(ids)
        reply = ordinary(state, task_id, terminate, signal, **kwargs)
        ended = _end(member, state.consumer.pool, ids, signal) if terminate else []
        return ok(f"terminate: {', '.join([*known, *ended])}") if ended else reply

    def terminate(state: Any, signal: Any, task_id: Any, **kwargs: Any) -> Any:
        return revoke(state, task_id, True, signal, **kwargs)

    revoke.of_ticket_bridge = True  # type: ignore[attr-defined]
    Panel.data["revoke"] = revoke
    Panel.data["terminate"] = terminate


def _end(member: Member, pool: Any, ids: frozenset[str], signal: Any) -> list[str]:
    """Ends messages that are in bundles here; which ones were there and had not ended."""
    found: list[str] = []
    for request in list(member.requests.values()):
        if request.carries_many and (mine := [one.id for one in request.unfinished() if one.id in ids]):
            logger.info("terminating %s, in a bundle", ", ".join(mine))
            request.end(pool, frozenset(mine), signal)
            found += mine
    return found
