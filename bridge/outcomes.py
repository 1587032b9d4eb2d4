"""The form of an outcome on its way from a worker to the leader.

An entry of the outcome stream has a field ``i`` (the incarnation that wrote it) and one more:

- ``o``: a JSON array of outcomes;
- ``joined``, ``leaving`` or ``gone``: a consumer's name;
- ``died``: a consumer's name, of a death notice; then a third field ``ran``, a JSON array of the fences that ran.
- ``order``: an operator's order (JSON, see `bridge.orders`); ``i`` is then the order's own id.

An outcome is an array::

    [message id, fence, kind, service ms, started us]                                      done, returned
    [message id, fence, kind, service ms, started us, error, traceback, delay ms | null]   failed, dead, lost

``started us`` is when the task began: Unix time in microseconds by the clock of the worker's machine, 0 for never.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import orjson

#: Characters of a traceback that are kept: its end, where the cause is.
TRACEBACK_CHARS = 16_384
ERROR_CHARS = 2_048


class Kind(Enum):
    """What became of one delivery."""

    DONE = "S"
    #: It raised: an attempt is charged.
    FAILED = "F"
    #: It was cut off half way (its process died, its time limit struck): an attempt is charged.
    LOST = "L"
    #: The rollback of an attempt that was cut off failed: an attempt is charged, and the rollback is still owed.
    UNDO_FAILED = "U"
    #: It asked never to come again (`Reject`, a revoked task, a task that the worker does not know).
    DEAD = "D"
    #: It was never started: no attempt is charged.
    RETURNED = "B"


@dataclass(slots=True)
class Outcome:
    """What became of one delivery of one message."""

    message_id: str
    fence: int
    kind: Kind
    service_ms: float = 0.0
    started_us: int = 0
    error: str = ""
    traceback: str = ""
    delay_ms: int | None = None

    def encode(self) -> bytes:
        """The outcome as JSON."""
        if self.kind is Kind.DONE or self.kind is Kind.RETURNED:
            return b'["%b",%d,"%b",%.3f,%d]' % (
                self.message_id.encode(),
                self.fence,
                self.kind.value.encode(),
                self.service_ms,
                self.started_us,
            )
        return orjson.dumps(
            [
                self.message_id,
                self.fence,
                self.kind.value,
                self.service_ms,
                self.started_us,
                _printable(self.error[:ERROR_CHARS]),
                _printable(self.traceback[-TRACEBACK_CHARS:]),
                self.delay_ms,
            ]
        )


def _printable(text: str) -> str:
    # An exception's text may hold lone surrogates, which are no UTF-8.
    return text.encode(errors="replace").decode()


def decode(data: bytes) -> list[Outcome]:
    """The outcomes of one entry."""
    return [Outcome(id_, fence, Kind(kind), *rest) for id_, fence, kind, *rest in orjson.loads(data)]
