"""Messages that made a master raise: what one message provokes is that message's failure, and the master lives.

All that is known to go wrong with a message is found where it is read. This is for what is not: the picture, which may
be half changed, is read anew, and then the message at fault is refused, by each leader of this process.
"""

from __future__ import annotations

from celery.utils.log import get_logger

from bridge.routing.errors import LaneConflict

logger = get_logger(__name__)

#: Messages that are remembered. One more is refused when it raises again, after another reading.
REMEMBERED = 10_000
#: Message id -> what it raised.
_faults: dict[str, str] = {}


class MessageAtFault(LaneConflict):
    """A message made the leader raise: the lane is read anew, without it."""

    def __init__(self, id_: str, exc: Exception) -> None:
        super().__init__(f"message {id_} cannot be handled here: {exc!r}")
        if len(_faults) >= REMEMBERED:
            del _faults[next(iter(_faults))]
        _faults[id_] = repr(exc)


def fault_of(id_: str) -> str | None:
    """What the message raised before; None: nothing."""
    return _faults.get(id_) if _faults else None
