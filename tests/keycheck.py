"""After a test: every key has a time to live or a named owner, and those that must have a time to live have one.

The owners are those that `LaneKeys.owner_of` names (invariant I9: no key grows without bound or without an owner).
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from bridge.routing.keys import LaneKeys

#: Kinds of keys that expire when they are not renewed.
MUST_EXPIRE = ("leader", "lease:", "held:", "given:", "acknowledged:", "reply:")


def ownerless(client: Any, lanes: Iterable[LaneKeys], allowed: Iterable[str] = ()) -> list[str]:
    """A line for each key on the server that breaks the rule. ``allowed``: patterns of the test's own keys."""
    problems = []
    for raw in client.scan_iter(count=1000):
        key = raw.decode(errors="surrogateescape") if isinstance(raw, bytes) else str(raw)
        left_ms = int(client.pttl(raw))
        if left_ms == -2:
            continue  # it expired since the scan
        expires = left_ms >= 0
        owner = None
        must = False
        for keys in lanes:
            owner = owner or keys.owner_of(key)
            must = must or key.startswith(tuple(f"{keys.prefix}:{kind}" for kind in MUST_EXPIRE))
        if must and not expires:
            problems.append(f"{key!r} must end by itself, and has no time to live")
        elif owner is None and not expires and not any(fnmatchcase(key, pattern) for pattern in allowed):
            problems.append(f"{key!r} has neither a time to live nor an owner")
    return problems


def check_keys(client: Any, *lanes: LaneKeys, allowed: Iterable[str] = ()) -> None:
    """Raises AssertionError with the lines of `ownerless`."""
    problems = ownerless(client, lanes, tuple(allowed))
    assert not problems, "\n".join(problems)
