"""The report of the runs that a worker holds.

The worker sends it with each renewal of its lease. The leader compares it with the runs that it dispatched.
"""

from __future__ import annotations

from typing import NamedTuple

import orjson


class HeldRuns(NamedTuple):
    """One report. The names of its fields are as short as they are in Redis."""

    #: Number of the report. It grows as long as the worker's process lives.
    n: int
    #: The first fence of each run that is held. A run that was sent again may have a later one.
    fences: list[int]

    def text(self) -> bytes:
        """The value for the key (`bridge.routing.keys.LaneKeys.held`)."""
        return orjson.dumps(self._asdict())


def read_held_runs(text: bytes) -> HeldRuns:
    """The report in ``text``."""
    fields = orjson.loads(text)
    return HeldRuns(int(fields["n"]), [int(fence) for fence in fields["fences"]])
