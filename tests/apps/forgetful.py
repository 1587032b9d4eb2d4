"""The app `tests.apps.counter` in a forgetful worker: it takes the first message of ticket ``F`` from its queue and
does nothing. And tasks that set what a dead message does to its ticket.
"""

from __future__ import annotations

from typing import Any

from bridge.protocol.names import HEADER_RUNS
from bridge.worker.main.member import Member
from tests.apps.counter import app

_take = Member.take
_forgotten: list[str] = []


def take(self: Member, headers: dict[str, Any], body: str | bytes) -> bool:
    if not _forgotten and any(ticket == "F" for ticket, *_ in headers[HEADER_RUNS]):
        _forgotten.append("F")
        return False
    return _take(self, headers, body)


Member.take = take  # type: ignore[method-assign]


@app.task(name="forgetful.parks", ignore_result=True, bridge_on_dead="park", bridge_max_attempts=1)
def parks(ticket_id: str, payload: Any) -> None:
    """Fails unless its payload says otherwise."""
    del ticket_id
    if not payload.get("good"):
        raise ValueError("bad")


@app.task(name="forgetful.skips", ignore_result=True, bridge_on_dead="skip", bridge_max_attempts=1)
def skips(ticket_id: str, payload: Any) -> None:
    """The same, and its ticket goes on."""
    parks(ticket_id, payload)
