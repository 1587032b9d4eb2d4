"""An order that a consumer takes nothing new, as a value of the lane's hash ``drains``.

The leader writes it when an operator drains a consumer, and removes it when the operator resumes the consumer or its
process is gone. An HTTP consumer removes it when it leaves: it has no process that the bridge knows. When it registers
again, it takes the start of the one that the order is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import orjson

if TYPE_CHECKING:
    from bridge.protocol.registration import Registration


class DrainOrder(NamedTuple):
    """One order. It is for one process of the consumer: a worker that is restarted takes work again."""

    #: When it was given, Unix time in ms.
    at_ms: int
    #: Start of the process that it is for, Unix time in seconds; None: the process did not say.
    started: float | None

    def text(self) -> str:
        """The value for the hash."""
        return orjson.dumps(self._asdict()).decode()

    def is_for(self, registration: Registration) -> bool:
        """Whether the order is for this process. A process may have several incarnations."""
        return self.started == registration.started


def read_drain_order(text: bytes) -> DrainOrder:
    """The order in ``text``."""
    found = orjson.loads(text)
    started = found["started"]
    return DrainOrder(int(found["at_ms"]), None if started is None else float(started))
