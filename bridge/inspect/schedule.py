"""The schedule of an app: when each entry ticked last, and when it ticks next. Never writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.app.installed import bridge_of
from bridge.protocol.agreement import app_name
from bridge.routing.ticks import read_ticks

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis


@dataclass(frozen=True)
class ScheduleRow:
    """One entry. Times are Unix ms. ``last_ms``: when it ticked last, or was first seen; None: no leader has seen it.
    ``next_ms``: its next tick; one in the past was not pushed yet.
    """

    name: str
    task: str
    tickets: int
    times: str
    last_ms: int | None
    next_ms: int
    next_in_ms: int


def read_schedule(redis: Redis, app: Celery) -> list[ScheduleRow]:
    """The entries in the order of their next ticks. Raises redis errors."""
    settings = bridge_of(app).settings
    seconds, micros = redis.time()
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    stored = read_ticks(redis, settings.lane.stream, app_name(app))
    rows = []
    for name, entry in settings.schedule.items():
        times = entry.times(app.timezone)
        last = stored.get(name)
        if last is not None and last.times != times.text:
            # Its times were changed, and no leader has seen that yet.
            last = None
        next_ms = times.after(now_ms if last is None else last.at_ms)
        rows.append(
            ScheduleRow(
                name=name,
                task=entry.task,
                tickets=len(entry.ticket),
                times=times.text,
                last_ms=None if last is None else last.at_ms,
                next_ms=next_ms,
                next_in_ms=next_ms - now_ms,
            )
        )
    return sorted(rows, key=lambda row: (row.next_ms, row.name))
