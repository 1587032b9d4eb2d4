"""Celery's task events of the messages of bundles, written as JSON, gathered, and sent together.

Celery makes a dict of each event, encodes it with Python's JSON, and sends up to 24 in one Redis message. That costs
the main process more than all else that it does for a message. A list of events in one message is Celery's own form
(``task.multi``), so Flower and other receivers see the same events.

Events are gathered for `GATHER_S`, or until there are `MOST`, where Celery's own loop can send them then: in a worker
with pool processes that is not stopping. Else they are sent at once. Before an event of a message is sent in any other
way, the gathered ones are sent (`send_gathered`), so events of one message keep their order.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import orjson
from celery.utils.time import utcoffset
from kombu.asynchronous import get_event_loop
from kombu.common import maybe_declare
from kombu.transport.virtual import Channel
from kombu.utils.json import dumps, loads

#: The event group of tasks. A dispatcher may send the events of some groups only.
GROUP = "task"
#: Routing key of a list of task events.
ROUTING_KEY = f"{GROUP}.multi"
#: Most events of one message.
MOST = 2000
#: Longest time for which events are gathered, in seconds. A worker that is killed loses the events of this time.
GATHER_S = 0.1

#: One event: its type, and its own fields as JSON without braces.
TaskEvent = tuple[str, bytes]


def watched(eventer: Any) -> bool:
    """Whether ``eventer``, Celery's dispatcher, sends task events."""
    return bool(eventer and eventer.enabled and (not eventer.groups or GROUP in eventer.groups))


def json_of(value: Any) -> bytes:
    """``value`` as JSON, as Celery would encode it in an event."""
    try:
        return orjson.dumps(value)
    except TypeError:
        # Half of a surrogate pair, or a type that only kombu's encoder knows.
        return str(dumps(value)).encode()


def send_together(eventer: Any, events: Sequence[TaskEvent], *, later: bool = False) -> None:
    """Sends task events through ``eventer``. While the broker is away, it keeps them as it keeps others.

    ``later``: they may be gathered first.
    """
    if not watched(eventer) or not events:
        return
    texts = _texts(eventer, events)
    hub = get_event_loop() if later else None
    if hub is None:
        send_gathered(eventer)
        for at in range(0, len(texts), MOST):
            _publish(eventer, texts[at : at + MOST])
        return
    gathered = _gathered.get(eventer)
    if gathered is None:
        gathered = _gathered[eventer] = _Gathered()
        eventer.on_disabled.add(lambda: _keep(eventer))
    gathered.texts += texts
    now = time.monotonic()
    if len(gathered.texts) >= MOST or now >= gathered.due:
        send_gathered(eventer)
    if gathered.texts and gathered.due == NEVER:
        gathered.due = now + GATHER_S
        hub.call_later(GATHER_S, send_gathered, eventer)


def send_gathered(eventer: Any) -> None:
    """Sends what was gathered. ``eventer``: None when Celery has none."""
    gathered = None if eventer is None else _gathered.get(eventer)
    if gathered is None:
        return
    texts, gathered.texts, gathered.due = gathered.texts, [], NEVER
    for at in range(0, len(texts), MOST):
        _publish(eventer, texts[at : at + MOST])


#: The due time of nothing.
NEVER = float("inf")


class _Gathered:
    """The events of one dispatcher that are not sent yet."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        #: When they are to be sent (monotonic seconds). Celery may have dropped its timer with a lost connection.
        self.due = NEVER


_gathered: WeakKeyDictionary[Any, _Gathered] = WeakKeyDictionary()


def _keep(eventer: Any) -> None:
    """Celery has closed the dispatcher, since the connection is lost. What was gathered goes to the next dispatcher."""
    gathered = _gathered.pop(eventer, None)
    if gathered is not None and gathered.texts:
        eventer._outbound_buffer.append((_parsed(gathered.texts), ROUTING_KEY))


def _texts(eventer: Any, events: Sequence[TaskEvent]) -> list[bytes]:
    """The whole text of each event."""
    clock = eventer.clock
    with clock.mutex:
        first = clock.value + 1
        clock.value += len(events)
    common = {"hostname": eventer.hostname, "utcoffset": utcoffset(), "pid": eventer.pid, "timestamp": time.time()}
    opening = orjson.dumps(common)[:-1]
    return [
        b'%b,"type":"%b","clock":%d,%b}' % (opening, kind.encode(), at, fields)
        for at, (kind, fields) in enumerate(events, first)
    ]


def _parsed(texts: Iterable[bytes]) -> Any:
    return loads(b"[" + b",".join(texts) + b"]")


def _publish(eventer: Any, texts: Sequence[bytes]) -> None:
    if not texts:
        return
    with eventer.mutex:
        producer = eventer.producer
        if producer is None:
            return
        if eventer.serializer != "json" or not _publish_text(eventer, producer, b"[" + b",".join(texts) + b"]"):
            eventer._publish(_parsed(texts), producer, ROUTING_KEY)


def _publish_text(eventer: Any, producer: Any, text: bytes) -> bool:
    """Publishes as kombu's producer does, without its encoding in base 64: JSON is text. Returns whether it did."""
    exchange = eventer.exchange
    try:
        channel = producer.channel
        if not isinstance(channel, Channel):
            return False
        maybe_declare(exchange, channel)
        message = channel.prepare_message(
            text.decode(),
            content_type="application/json",
            content_encoding="utf-8",
            headers=dict(eventer.headers),
            properties={"delivery_mode": eventer.delivery_mode},
        )
        encoding, channel.body_encoding = channel.body_encoding, None
        try:
            channel.basic_publish(message, exchange.name, ROUTING_KEY)
        finally:
            channel.body_encoding = encoding
    except Exception:
        # The broker is away. The dispatcher finds that out, too, and keeps the events.
        return False
    return True
