"""Keeps an audit trail of each incident: a second subscription, which gets every event for itself.

The Redis list ``trail:<ticket>`` has a line for each event of the incident, once and in order: the bridge hands over
the events of one incident in order, and applies ``self.ticket.effects`` in the same atomic step as the task's success.
The subscription of `tasks.incidents` may be slow or fail meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.app.task import TicketTask
from tasks import app
from tasks.incidents import line_of


@app.task(bind=True, ignore_result=True)
def note_event(self: TicketTask, ticket_id: str, payload: Mapping[str, Any]) -> None:
    """Adds one event of an incident log to the incident's trail."""
    if self.ticket is None:
        raise RuntimeError("note_event runs only as a message of a ticket")
    if int(payload["seq"]) < 0:
        return  # a follow-up, and no event
    self.ticket.effects.rpush(f"trail:{ticket_id}", line_of(payload))
