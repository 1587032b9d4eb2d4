"""Messages that made a leader raise: such an error is the message's failure, and does not end the master.

The code that reads a message handles all known faults. This module handles unknown ones. The picture may be half
changed then, so the leader reads the lane again. From then on, every leader of the lane in this process refuses that
message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.routing.errors import LaneConflict

if TYPE_CHECKING:
    from bridge.routing.keys import LaneKeys

logger = get_logger(__name__)

#: Most messages that are remembered. A forgotten one raises again, and is refused after another reading of the lane.
REMEMBERED = 10_000
#: (prefix of the keys of a lane, message id) -> the error that the message caused there. Lanes of one master may have
#: messages with the same id.
_faults: dict[tuple[str, str], str] = {}


class MessageAtFault(LaneConflict):
    """A message made the leader raise. The leader reads the lane again and refuses the message."""

    def __init__(self, keys: LaneKeys, id_: str, exc: Exception) -> None:
        super().__init__(f"message {id_} cannot be handled here: {exc!r}")
        if len(_faults) >= REMEMBERED:
            del _faults[next(iter(_faults))]
        _faults[keys.prefix, id_] = repr(exc)


def fault_of(keys: LaneKeys, id_: str) -> str | None:
    """The error that the message caused in that lane before; None: it caused none."""
    return _faults.get((keys.prefix, id_)) if _faults else None
