"""Keeps the current state of each incident, event by event, in ``self.ticket.state``.

The task needs no lock and no transaction of its own. The bridge hands it the events of one incident in order and one
at a time, reads the state before each, and saves it in the same atomic step as the task's success: an event whose
worker died runs again on the state before it, and an event that succeeded never runs again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

from bridge.app.task import TicketTask
from bridge.stack.demo.follow_ups import FIRST, FOLLOW_UP_S, SECOND, has_follow_ups
from tasks import app

State = dict[str, str]

#: Seconds until the first of two follow-ups of an incident; 0: none has any.
FIRST_DUE_S = float(os.environ.get(FOLLOW_UP_S) or "0")

#: In these states an incident is over. A change from one of them to any other state is a reopening.
DONE_STATES = ("Resolved", "Closed")
#: The clock of the service level stops in the states above, and in all states that begin with this prefix.
WAITING_PREFIX = "Awaiting"


class OutOfOrder(Exception):
    """An event does not follow the last one of its incident: the bridge broke its promise."""


@app.task(bind=True, bridge_state=True, ignore_result=True)
def record_event(self: TicketTask, ticket_id: str, payload: dict[str, Any]) -> None:
    """Applies one event of an incident log to the incident's state. Raises `OutOfOrder`."""
    if self.ticket is None:
        raise RuntimeError("record_event runs only as a message of a ticket: call record_event.push(ticket_id, event)")
    if int(payload["seq"]) < 0:
        # A follow-up, which is due some time after the first event: somebody should look at the incident again.
        self.ticket.effects.rpush(f"follow_ups:{ticket_id}", payload["seq"])
        return
    state = self.ticket.state
    expected = int(state.get("seq", 0)) + 1
    if int(payload["seq"]) != expected:
        raise OutOfOrder(f"incident {ticket_id} got event {payload['seq']} where event {expected} was due")
    state.update(fold(state, payload))
    if FIRST_DUE_S and expected == 1 and has_follow_ups(ticket_id):
        for number in (SECOND, FIRST):
            # The key: an event whose worker died runs again, and pushes no other follow-up.
            key = f"follow-up {number} of {self.ticket.message_id}"
            record_event.push(ticket_id, {"seq": number}, delay=-number * FIRST_DUE_S, idempotency_key=key)


def fold(state: Mapping[str, str], event: Mapping[str, Any]) -> State:
    """The state of an incident after ``event``, from the one before; ``{}`` is the state before its first event.

    ``seq``, ``status``, ``assignment_group``, ``updated_at``, ``opened_at``, ``priority``, ``made_sla``: as in the
    event. ``events``: how many there were. ``reassignments``: how often the group changed. ``reopenings``: how often
    the incident left `DONE_STATES`. ``sla_seconds``: whole seconds that passed while it was neither done nor waiting
    for somebody; time that runs backwards does not count, and beside an event without a time none passes. ``digest``: a
    fingerprint of all events in their order, so that one lost, doubled or misplaced event changes it for good.
    """
    seq, status, group, at = _parts(event)
    before = state.get("status", "")
    was_done = before in DONE_STATES
    earlier = state.get("updated_at", "")
    elapsed = 0
    if at and earlier and not was_done and not before.startswith(WAITING_PREFIX):
        elapsed = max(0, _second(at) - _second(earlier))
    digest = 31 * int(state.get("digest", 0)) + crc32(line_of(event).encode())
    return {
        "seq": seq,
        "events": str(int(state.get("events", 0)) + 1),
        "status": status,
        "assignment_group": group,
        "updated_at": at,
        "opened_at": _text(event, "opened_at"),
        "priority": _text(event, "priority"),
        "made_sla": _text(event, "made_sla"),
        "reassignments": str(int(state.get("reassignments", 0)) + bool(state and group != state["assignment_group"])),
        "reopenings": str(int(state.get("reopenings", 0)) + (was_done and status not in DONE_STATES)),
        "sla_seconds": str(int(state.get("sla_seconds", 0)) + elapsed),
        "digest": str(digest % 2**32),
    }


def line_of(event: Mapping[str, Any]) -> str:
    """An event as one line: its number, status, group and time."""
    return "|".join(_parts(event))


def _parts(event: Mapping[str, Any]) -> tuple[str, str, str, str]:
    seq, status, group, at = (_text(event, name) for name in ("seq", "activity", "assignment_group", "timestamp"))
    return seq, status, group, at


def _text(event: Mapping[str, Any], name: str) -> str:
    """A member of an event as text; logs that are not CSV have numbers, booleans and nulls."""
    value = event.get(name)
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _second(timestamp: str) -> int:
    """Seconds since 1970 of an ISO time; UTC where it names no zone. Raises ValueError."""
    at = datetime.fromisoformat(timestamp)
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return int(at.timestamp())
