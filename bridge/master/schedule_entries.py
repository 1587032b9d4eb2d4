"""The entries of ``bridge_schedule`` as a master pushes them: times, and messages as bytes."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from bridge.app.installed import bridge_of
from bridge.app.ticket_tasks import ticket_tasks
from bridge.producer.message_bytes import payload_bytes, ticket_bytes
from bridge.routing.errors import ConfigurationError, PayloadError

if TYPE_CHECKING:
    from celery import Celery

    from bridge.settings.schedule import Crontab, Every, Scheduled

#: Most bytes of one tick's messages, unless it is one message.
TICK_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Entry:
    """One entry. ``tick``: the member of the payload that gets the tick's time; None: there is none."""

    name: str
    task: str
    times: Every | Crontab
    tickets: tuple[bytes, ...]
    payload: Any
    tick: str | None
    catch_up: bool

    def messages(self, at_ms: int) -> tuple[tuple[bytes, bytes], ...]:
        """Ticket and payload of each message of the tick at ``at_ms``."""
        payload = orjson.dumps(self.payload if self.tick is None else {**self.payload, self.tick: at_ms})
        return tuple((ticket, payload) for ticket in self.tickets)


def entries_of(app: Celery) -> list[Entry]:
    """The entries of the app's schedule. Its tasks must be loaded. Raises `ConfigurationError`, one line."""
    settings = bridge_of(app).settings
    return [_entry(app, name, given, settings.lane.max_payload) for name, given in settings.schedule.items()]


def _entry(app: Celery, name: str, given: Scheduled, max_payload: int) -> Entry:
    where = f"bridge_schedule.{name}"
    try:
        # The longest time that there is.
        longest = given.payload if given.tick is None else {**given.payload, given.tick: 10**14}
        size = len(payload_bytes(longest, max_payload))
        tickets = tuple(map(ticket_bytes, given.ticket))
        times = given.times(app.timezone)
    except (PayloadError, ValueError) as exc:
        raise ConfigurationError(f"{where}: {exc}") from None
    size = sum(len(ticket) + size for ticket in tickets)
    if len(tickets) > 1 and size > TICK_BYTES:
        raise ConfigurationError(
            f"{where}: its {len(tickets)} messages have {size:,} bytes, and a tick may have {TICK_BYTES:,}: use "
            "several entries"
        )
    _check_task(app, where, given.task)
    return Entry(name, given.task, times, tickets, given.payload, given.tick, given.catch_up)


def _check_task(app: Celery, where: str, name: str) -> None:
    known = sorted(ticket_tasks(app))
    if name in known:
        return
    if name in app.tasks:
        raise ConfigurationError(f"{where}: {name} is a task of this app without a ticket")
    near = difflib.get_close_matches(name, known, n=1, cutoff=0)
    meant = f"; did you mean {near[0]}?" if near else ""
    raise ConfigurationError(f"{where}: the app has no task {name!r}{meant}")
