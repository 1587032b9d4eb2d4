"""An app whose data is in PostgreSQL: each message adds a line to its ticket's account, exactly once by the inbox."""

from __future__ import annotations

import os
import signal
from functools import cache
from typing import Any

from celery import Celery
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

import bridge
from bridge.sql import Inbox

app = Celery("accounts", broker=os.environ.get("CELERY_BROKER_URL"))
bridge.install(app)
app.conf.update(bridge_lease=2.0, bridge_leader_lease=2.0, bridge_backoff={"base": 0.05, "factor": 2.0, "limit": 1.0})
app.conf.update(bridge_follows=[{"stream": "older_stream"}])
inbox = Inbox()


@cache
def engine() -> Engine:
    """This process's own: connections must not be shared with forks."""
    return create_engine(os.environ["ACCOUNTS_URL"], poolclass=NullPool)


@app.task(bind=True, name="accounts.add", ignore_result=True)
def add(self: Any, ticket_id: str, payload: dict[str, Any]) -> None:
    """Adds a line. ``dies``: where the process of the first attempt ends, "before" the commit or "after" it."""
    dies = payload.get("dies") if self.ticket.attempt == 1 else None
    with engine().begin() as connection:
        if inbox.first(connection, self.ticket):
            line = {"ticket": ticket_id, "n": payload["n"]}
            connection.execute(text("INSERT INTO account (ticket, n) VALUES (:ticket, :n)"), line)
        if dies == "before":
            os.kill(os.getpid(), signal.SIGKILL)
    if dies == "after":
        os.kill(os.getpid(), signal.SIGKILL)
