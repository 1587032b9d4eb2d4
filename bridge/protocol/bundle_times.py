"""How long a bundle may take: when it starts no more messages, and the time limits that Celery has for it.

Celery counts the time of a whole bundle, and a time limit means one message. So a bundle with limits stops to start
messages early enough for the last one to have its whole limit. The leader computes both times and sends the limits; the
pool process computes the first one again from them. `tests/unit/protocol/test_bundle_times.py` holds them together.
"""

from __future__ import annotations

from collections.abc import Iterable

#: A bundle that takes this many times ``bridge_bundle_ms`` starts nothing more, and gives back what it has not started.
OVERTIME = 16
#: The same for a bundle whose smallest time limit is shorter than that.
LEAST_OVERTIME = 2


def limits_of(bundle_s: float, hard: Iterable[float], soft: Iterable[float]) -> tuple[float | None, float | None]:
    """The hard and the soft limit of a bundle, in seconds; None: none. ``hard``, ``soft``: those of its tasks."""
    smallest = [min(found, default=None) for found in (list(hard), list(soft))]
    known = [limit for limit in smallest if limit is not None]
    if not known:
        return None, None
    # One time of a bundle more: it is accepted, and reads states, before its first message starts.
    more_s = _bounded(bundle_s, min(known)) + bundle_s
    first, second = (None if limit is None else limit + more_s for limit in smallest)
    return first, second


def last_start_s(bundle_s: float, limits: Iterable[float | None]) -> float:
    """How long after its start a bundle starts no more messages. ``limits``: those of `limits_of`."""
    known = [limit for limit in limits if limit]
    return _bounded(bundle_s, (min(known) - bundle_s) / 2 if known else OVERTIME * bundle_s)


def _bounded(bundle_s: float, limit_s: float) -> float:
    return min(OVERTIME * bundle_s, max(LEAST_OVERTIME * bundle_s, limit_s))
