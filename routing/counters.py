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
#: Why it is not counted.
NO_NUMBER = "it holds no number"

#: The numbers that the server counts on from. It refuses others, such as 007 and 1_0.
_NUMBER = re.compile(rb"0|-?[1-9][0-9]{0,18}")


def uncounted(key: str, name: str, why: str) -> str:
    """One sentence: the counter ``name`` of the hash ``key`` is left alone, and what to do."""
    return f"the counter {name!r} of the key {key} is not counted: {why}; write a number there, rather too large a one"


def read_counters(found: Mapping[bytes, bytes]) -> dict[str, float]:
    """Counter -> its number, or `ANY`; from the reply of HGETALL."""
    return {
        name.decode(errors="replace"): int(text) if _NUMBER.fullmatch(text) else ANY for name, text in found.items()
    }
