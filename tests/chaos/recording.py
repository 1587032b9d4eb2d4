"""Adds the ledger and an effect to the ticket tasks of any app, whose tasks know nothing of it (`watch`), or to a task
that asks for it (`recorded`). Signals keep the light tracer of bundles away; `recorded` does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

from celery import signals

import bridge
from tests.chaos.ledger import LedgerWriter
from tests.chaos.subscriptions import OF, SUBSCRIPTIONS, label_of

#: Where the effects are: a stream for each ticket, since its ids tell when the server applied them.
EFFECTS = "effects:"
#: The member of a payload that has the time of a tick.
AT = "at"
#: What the command line of the watcher beside a worker contains.
WATCHER = "bridge.worker.guard.watcher"


def place_of(payload: Any) -> int:
    """A message's place in its ticket, from 0. Incident events have theirs from 1; that of a tick is its time."""
    if AT in payload:
        return int(payload[AT])
    return int(payload["n"]) if "n" in payload else int(payload["seq"]) - 1


def id_of(message_id: str, payload: Any) -> str:
    """How the ledger and the effects name a message."""
    return f"{payload['v']}{OF}{message_id}" if payload.get("v") else message_id


def name_of(ticket: Any) -> str:
    """How the ledger and the effects name the ticket of a task."""
    return label_of(ticket.subscription, ticket.id, several=SUBSCRIPTIONS in os.environ)


def keeps(task: Any, payload: Any) -> bool:
    """Whether the success of a message changes its ticket's state."""
    return bool(getattr(task, "bridge_state", None) and payload.get("keep"))


def folded(state: dict[str, Any], id_: str, fence: int) -> None:
    """Changes a ticket's state as the success of one message does. ``last`` is changed in its place."""
    state["digest"] = (31 * state.get("digest", 0) + crc32(id_.encode())) % 2**32
    last = state.setdefault("last", {})
    last["id"], last["fence"] = id_, fence


def watch(folder: Path) -> LedgerWriter:
    """From now on every execution of a ticket's message in this process and its children is in the ledger.

    And every success leaves an effect, applied in one step with it, that names its message, place and fence.
    """
    writer = LedgerWriter(folder)

    def started(task: Any, args: Any, **_: Any) -> None:
        ticket = getattr(task, "ticket", None)
        if ticket is not None:
            _start(writer, task, args[1])

    def ended(task: Any, state: str, **_: Any) -> None:
        ticket = getattr(task, "ticket", None)
        if ticket is not None:
            # Before the bridge writes the outcome: whatever is acknowledged has its end in the ledger.
            writer.end(name_of(ticket), ticket.fence, "done" if state == "SUCCESS" else "raised")

    signals.task_prerun.connect(started, weak=False)
    signals.task_postrun.connect(ended, weak=False)
    return writer


@contextmanager
def recorded(writer: LedgerWriter, task: Any, payload: Any) -> Iterator[None]:
    """The same for the body of one task, without signals."""
    _start(writer, task, payload)
    end = "raised"
    try:
        yield
        end = "done"
    except bridge.Drop:
        end = "done"
        raise
    finally:
        writer.end(name_of(task.ticket), task.ticket.fence, end)


def _start(writer: LedgerWriter, task: Any, payload: Any) -> None:
    ticket = task.ticket
    n = place_of(payload)
    name, id_ = name_of(ticket), id_of(ticket.message_id, payload)
    writer.start(task.request.hostname, name, ticket.fence, id_, n, ticket.attempt)
    fields: dict[Any, Any] = {"id": id_, "n": n, "fence": ticket.fence}
    if keeps(task, payload):
        fields["kept"] = 1
    ticket.effects.xadd(EFFECTS + name, fields)
