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
    listed = list(lanes)
    ending = tuple(f"{keys.prefix}:{kind}" for keys in listed for kind in MUST_EXPIRE)
    found = list(client.scan_iter(count=1000))
    with client.pipeline(transaction=False) as pipe:
        for raw in found:
            pipe.pttl(raw)
        left = pipe.execute()
    for raw, left_ms in zip(found, left, strict=True):
        # Not -1: it ends by itself, or has ended since the scan.
        if left_ms != -1:
            continue
        key = raw.decode(errors="surrogateescape") if isinstance(raw, bytes) else str(raw)
        if key.startswith(ending):
            problems.append(f"{key!r} must end by itself, and has no time to live")
        elif not any(fnmatchcase(key, one) for one in allowed) and not any(keys.owner_of(key) for keys in listed):
            problems.append(f"{key!r} has neither a time to live nor an owner")
    return problems


def check_keys(client: Any, *lanes: LaneKeys, allowed: Iterable[str] = ()) -> None:
    """Raises AssertionError with the lines of `ownerless`."""
    problems = ownerless(client, lanes, tuple(allowed))
    assert not problems, "\n".join(problems)
