"""Celery's task events of the messages of a bundle, encoded and sent together.

Celery encodes each event by itself, with Python's JSON, and sends up to 24 in one Redis message. That costs the main
process more than all else that it does for a message. A list of events in one message is Celery's own form
(``task.multi``), so Flower and other receivers see the same events.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import orjson
from celery.utils.time import utcoffset

#: The event group of tasks. A dispatcher may send the events of some groups only.
GROUP = "task"
#: Routing key of a list of task events.
ROUTING_KEY = f"{GROUP}.multi"
#: Most events of one message.
MOST = 1000

#: One event: its type and its own fields.
TaskEvent = tuple[str, dict[str, Any]]


def send_together(eventer: Any, events: Sequence[TaskEvent]) -> None:
    """Sends task events through ``eventer``, Celery's dispatcher. While the broker is away, the dispatcher keeps them
    as it keeps others.
    """
    if not eventer.enabled or (eventer.groups and GROUP not in eventer.groups):
        return
    for at in range(0, len(events), MOST):
        some = events[at : at + MOST]
        if not _sent(eventer, some):
            for kind, fields in some:
                eventer.send(kind, **fields)


def _sent(eventer: Any, events: Sequence[TaskEvent]) -> bool:
    producer = eventer.producer
    if eventer.serializer != "json" or producer is None:
        return False
    now, forward = time.time(), eventer.clock.forward
    common = {"hostname": eventer.hostname, "utcoffset": utcoffset(), "pid": eventer.pid, "timestamp": now}
    try:
        body = orjson.dumps([{**common, "type": kind, "clock": forward(), **fields} for kind, fields in events])
        with eventer.mutex:
            producer.publish(
                body,
                routing_key=ROUTING_KEY,
                exchange=eventer.exchange.name,
                declare=[eventer.exchange],
                content_type="application/json",
                content_encoding="utf-8",
                headers=eventer.headers,
                delivery_mode=eventer.delivery_mode,
            )
    except Exception:
        # The broker is away, or a field is not JSON for this encoder. The dispatcher knows what to do with each event.
        return False
    return True
