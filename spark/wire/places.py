"""Arrays of numbers that grow by a step. pyarrow has a function for them from version 21 on."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def places(start: int, stop: int, step: int = 1) -> pa.Array:
    """The numbers of ``range(start, stop, step)``, of 64 bits."""
    count = len(range(start, stop, step))
    return pc.add(pc.cumulative_sum(pa.repeat(step, count)), start - step)
