"""Which messages a lane wants, for the audit: by its filter and its tasks, as they are set now."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from bridge.settings.lane import LaneSettings

#: Whether the lane certainly wants the entry with these fields: names and values, alternating.
Wants = Callable[[Sequence[bytes]], bool]


def wants(lane: LaneSettings, own: Collection[str]) -> Wants:
    """``own``: the tasks that belong to the lane."""
    tasks = {name.encode() for name in own}

    def found(fields: Sequence[bytes]) -> bool:
        named = dict(zip(fields[::2], fields[1::2], strict=True))
        # The default task handles messages that no other task of the lane handles.
        if lane.default_task is None and named.get(b"task") not in tasks:
            return False
        try:
            payload = orjson.loads(named[b"payload"]) if b"payload" in named else None
        except orjson.JSONDecodeError:
            # Refused, and not left out.
            return False
        return lane.filter is None or lane.filter.passes(fields, payload)

    return found
