"""Recurring messages: ``bridge_schedule``. An entry says what is pushed, and at which times.

The times of a crontab are those of Celery's own class. Times of an interval are multiples of it since 1970, so they do
not depend on when a master started. All times are Unix ms.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import ParseException, crontab
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from bridge.settings.numbers import int_as_float

#: Most entries of one app.
MOST = 1000
#: The form of an entry's name: it is shown in commands, and is a part of a field's name in Redis.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]{0,99}")
#: Longest interval, in seconds.
LONGEST_S = 366 * 86_400
_DAY_MS = 86_400_000


class Scheduled(BaseModel):
    """One entry of ``bridge_schedule``. ``crontab`` or ``every`` says when."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)

    task: str = Field(min_length=1, description="The task of the messages.")
    ticket: tuple[str | int, ...] = Field(
        min_length=1, max_length=500, description="The ticket, or a list of at most 500: each gets a message."
    )
    payload: Any = Field(default_factory=dict, description="The payload of each message.")
    tick: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="A member of the payload, which must be a dict: it gets the time of the tick, Unix ms.",
    )
    crontab: Any = Field(default=None, description="Minute, hour, day, month and weekday; or a celery crontab object.")
    every: float | None = Field(
        default=None, ge=1, le=LONGEST_S, description="Seconds, or a timedelta: 1 s to 366 days."
    )
    timezone: str | None = Field(default=None, description="Of a crontab. Default: the app's `timezone`.")
    catch_up: bool = Field(
        default=True, description="Whether a tick is pushed late, when no master ran at its time: the newest one."
    )

    @field_validator("ticket", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
            return (value,)
        if not isinstance(value, list | tuple) or not value:
            raise ValueError("must be a ticket, or a list of tickets")
        if len(set(map(str, value))) < len(value):
            raise ValueError("names a ticket twice")
        return tuple(value)

    @field_validator("every", mode="before")
    @classmethod
    def _seconds(cls, value: object) -> object:
        if isinstance(value, timedelta):
            return value.total_seconds()
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("must be seconds")
        return int_as_float(value)

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str | None) -> str | None:
        if value is not None:
            zone_of(value)
        return value

    @field_validator("crontab", mode="before")
    @classmethod
    def _parsed(cls, value: object) -> object:
        if value is None or type(value) is crontab:
            return value
        if not isinstance(value, str):
            raise ValueError("must be five fields in a text, such as '0 3 * * *', or a celery crontab object")  # noqa: TRY004
        fields = value.split()
        if len(fields) != 5:
            raise ValueError(f"must have five fields, such as '0 3 * * *', and {value!r} has {len(fields)}")
        try:
            return crontab.from_string(" ".join(fields))
        except (ParseException, ValueError, KeyError) as exc:
            raise ValueError(f"{value!r} is no crontab: {exc}") from None

    @model_validator(mode="after")
    def _one_time(self) -> Scheduled:
        if (self.crontab is None) == (self.every is None):
            raise ValueError("must have either crontab or every")
        if self.timezone is not None and self.crontab is None:
            raise ValueError("has a timezone, which only a crontab can have")
        if self.tick is not None and not isinstance(self.payload, Mapping):
            raise ValueError("has a tick, which only a payload that is a dict can take")
        return self

    def times(self, default_zone: tzinfo) -> Every | Crontab:
        """When the entry ticks. ``default_zone``: the app's. Raises `ValueError` for a crontab that never does."""
        if self.every is not None:
            return Every(round(self.every * 1000))
        found = Crontab(self.crontab, zone_of(self.timezone) if self.timezone else default_zone)
        try:
            found.after(0)
        except RuntimeError:
            raise ValueError(f"the crontab {found.text} has no time that ever comes") from None
        return found


class Every:
    """The multiples of an interval."""

    def __init__(self, ms: int) -> None:
        self._ms = ms

    @property
    def text(self) -> str:
        """The times as a text: as it is stored, and shown."""
        # Exact: two intervals with one text would be one.
        seconds, ms = divmod(self._ms, 1000)
        return f"every {seconds}{f'.{ms:03d}'.rstrip('0').rstrip('.')} s"

    def after(self, at_ms: int) -> int:
        """The first tick after ``at_ms``."""
        return (at_ms // self._ms + 1) * self._ms

    def latest(self, after_ms: int, to_ms: int) -> int | None:
        """The last tick after ``after_ms``, up to ``to_ms``; None: there is none."""
        found = to_ms // self._ms * self._ms
        return found if found > after_ms else None


class Crontab:
    """The times of a crontab in one time zone."""

    def __init__(self, of: Any, zone: tzinfo) -> None:
        # A copy: the times of the original depend on the app that it was made for.
        kinds = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
        self._fields = [str(getattr(of, f"_orig_{kind}")) for kind in kinds]
        self._crontab = crontab(*(getattr(of, f"_orig_{kind}") for kind in kinds))
        # It reckons as if there were no summer time.
        self._crontab.tz = UTC
        self._zone = zone

    @cached_property
    def text(self) -> str:
        minute, hour, weekday, day, month = self._fields
        return f"crontab {minute} {hour} {day} {month} {weekday} {self._zone}"

    def after(self, at_ms: int) -> int:
        """The first tick after ``at_ms``."""
        now = self._clock_at(at_ms)
        # Times that summer time left out come that much later: those of the last day may be still to come.
        left_out = now.utcoffset() - self._clock_at(at_ms - _DAY_MS).utcoffset()  # type: ignore[operator]
        shown = now.replace(tzinfo=None)
        at = shown - max(left_out, timedelta())
        found: int | None = None
        while found is None or at < shown:
            at = self._next_on_the_clock(at)
            # At the end of summer time an hour comes twice. This is the first of the two times.
            tick = int(at.replace(tzinfo=self._zone).timestamp()) * 1000
            if tick > at_ms and (found is None or tick < found):
                found = tick
                # Up to the time that the clock shows then, which is later than ``at`` if that is left out.
                shown = self._clock_at(tick).replace(tzinfo=None)
        return found

    def _clock_at(self, at_ms: int) -> datetime:
        return datetime.fromtimestamp(at_ms / 1000, self._zone)

    def _next_on_the_clock(self, at: datetime) -> datetime:
        """The first time of the crontab that a clock without summer time shows after ``at``."""
        start = at.replace(tzinfo=UTC)
        # Celery 5.6 finds the later times of a day only if that day is today.
        self._crontab.nowfun = lambda: start
        last, delta, _ = self._crontab.remaining_delta(start)
        following: datetime = last + delta
        return following.replace(tzinfo=None)

    def latest(self, after_ms: int, to_ms: int) -> int | None:
        """The last tick after ``after_ms``, up to ``to_ms``; None: there is none."""
        found = self.after(after_ms)
        if found > to_ms:
            return None
        # The tick that follows a moment is the later, the later the moment is. So it is searched by halves.
        low, high = after_ms, to_ms
        while high - low > 1000:
            middle = (low + high) // 2
            tick = self.after(middle)
            if tick <= to_ms:
                low, found = middle, max(found, tick)
            else:
                high = middle
        return found


def zone_of(name: str) -> ZoneInfo:
    """The time zone ``name``. Raises `ValueError`."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        # Not found; or no name of a file in the data.
        raise ValueError(f"{name!r} is no time zone, such as 'Europe/Berlin'") from None


def check_names(value: object) -> object:
    """The value of ``bridge_schedule``, when it is a dict of entries with names. Raises `ValueError`."""
    if not isinstance(value, Mapping):
        raise ValueError("must be a dict from name to entry")  # noqa: TRY004
    for name in value:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot name an entry; use letters, digits, '_', '.', ':', '-' or '@', at most 100"
            )
    if len(value) > MOST:
        raise ValueError(f"has {len(value):,} entries, and {MOST:,} are possible")
    return value
