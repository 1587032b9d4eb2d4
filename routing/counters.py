"""The counters of a lane, a hash of numbers that only grow (`bridge.routing.keys.LaneKeys.counts`).

Somebody may have written what is no number. The scripts of the leader leave such a counter alone, and readers know that
it stands for any number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

#: A counter that holds no number: what it counts may have happened any number of times.
ANY = math.inf

#: The numbers that the server counts on from. It refuses others, such as 007 and 1_0.
_NUMBER = re.compile(rb"0|-?[1-9][0-9]{0,18}")


def read_counters(found: Mapping[bytes, bytes]) -> dict[str, float]:
    """Counter -> its number, or `ANY`; from the reply of HGETALL."""
    return {
        name.decode(errors="replace"): int(text) if _NUMBER.fullmatch(text) else ANY for name, text in found.items()
    }
