"""The streams of an app: how they are split, and what is in each. Never writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from bridge.routing.groups import groups_in

if TYPE_CHECKING:
    from redis import Redis

    from bridge.app.lanes import AppLane


@dataclass(frozen=True)
class StreamState:
    """One stream. ``partition``: its number; None: the stream is not split. ``version``: 0 for the newest, 1 for the
    one before, and so on. ``last_id``: of the last entry ever added; None: there is no stream yet.
    """

    stream: str
    partition: int | None
    version: int
    entries: int
    last_id: str | None
    groups: tuple[str, ...]


def read_streams(redis: Redis, lanes: Sequence[AppLane]) -> list[StreamState]:
    """The streams of ``lanes``, each once, in one round trip. Raises redis errors."""
    found = {lane.settings.stream: lane for lane in lanes}
    with redis.pipeline(transaction=False) as pipe:
        for stream in found:
            pipe.execute_command("XINFO", "STREAM", stream)
            pipe.execute_command("XINFO", "GROUPS", stream)
        replies = pipe.execute(raise_on_error=False)
    return [
        _state(stream, lane, *replies[2 * place : 2 * place + 2]) for place, (stream, lane) in enumerate(found.items())
    ]


def _state(stream: str, lane: AppLane, info: Any, groups: Any) -> StreamState:
    names = tuple(sorted(name.decode(errors="backslashreplace") for name in groups_in(groups)))
    where = (stream, lane.partition, len(lane.newer))
    if isinstance(info, ResponseError) and "no such key" in str(info):
        return StreamState(*where, 0, None, names)
    if isinstance(info, Exception):
        raise info
    flat = info if isinstance(info, dict) else dict(zip(info[::2], info[1::2], strict=True))
    values = {key.decode() if isinstance(key, bytes) else key: value for key, value in flat.items()}
    last = values["last-generated-id"]
    return StreamState(*where, int(values["length"]), last.decode() if isinstance(last, bytes) else str(last), names)
