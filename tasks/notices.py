"""Names the task of the urgent events, which no Celery worker runs: a program in Node handles them over HTTP.

The program is ``bridge/stack/demo/notices.mjs``. Masters must know a task to accept its messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks import app


@app.task(ignore_result=True)
def notify(ticket_id: str, payload: Mapping[str, Any]) -> None:
    """Notes one urgent event of an incident log."""
    raise NotImplementedError("a program in Node handles these messages")
