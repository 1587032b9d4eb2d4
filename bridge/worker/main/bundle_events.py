"""Celery's task events of the messages of bundles, written as JSON, gathered, and sent together.

Celery makes a dict of each event, encodes it with Python's JSON, and sends up to 24 in one Redis message. That costs
the main process more than all else that it does for a message. A list of events in one message is Celery's own form
(``task.multi``), so Flower and other receivers see the same events. Here an event is text from the start, and a
fragment is encoded once: texts are cheaper to join than dicts to encode.

Events are gathered for `GATHER_S`, or until there are `MOST`, where Celery's own loop can send them then: in a worker
with pool processes that is not stopping. Else they are sent at once. Before an event of a message is sent in any other
way, the gathered ones are sent (`send_gathered`), so events of one message keep their order.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any
from weakref import WeakKeyDictionary

import orjson
from celery.utils.time import utcoffset
from kombu.asynchronous import get_event_loop
from kombu.common import maybe_declare
from kombu.transport import redis as redis_transport
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

#: One event: its type and its own fields, as JSON without braces.
TaskEvent = str

#: A text as JSON, in ASCII. It accepts half of a surrogate pair, too.
quoted = encode_basestring_ascii

#: Stands for the events in the sample of a Redis message.
_MARK = "@@EVENTS@@"


def watched(eventer: Any) -> bool:
    """Whether ``eventer``, Celery's dispatcher, sends task events."""
    return bool(eventer and eventer.enabled and (not eventer.groups or GROUP in eventer.groups))


def json_of(value: Any) -> str:
    """``value`` as JSON, as Celery would encode it in an event."""
    if type(value) is str:
        return quoted(value)
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        # A text within it is half of a surrogate pair, or it has a type that only kombu's encoder knows.
        return str(dumps(value))


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
        self.texts: list[str] = []
        #: When they are to be sent (monotonic seconds). Celery may have dropped its timer with a lost connection.
        self.due = NEVER


_gathered: WeakKeyDictionary[Any, _Gathered] = WeakKeyDictionary()


def _keep(eventer: Any) -> None:
    """Celery has closed the dispatcher, since the connection is lost. What was gathered goes to the next dispatcher."""
    gathered = _gathered.pop(eventer, None)
    if gathered is not None and gathered.texts:
        eventer._outbound_buffer.append((_parsed(gathered.texts), ROUTING_KEY))


def _texts(eventer: Any, events: Sequence[TaskEvent]) -> list[str]:
    """The whole text of each event."""
    clock = eventer.clock
    with clock.mutex:
        first = clock.value + 1
        clock.value += len(events)
    common = {"hostname": eventer.hostname, "utcoffset": utcoffset(), "pid": eventer.pid, "timestamp": time.time()}
    opening = orjson.dumps(common)[:-1].decode() + ',"clock":'
    return [f"{opening}{at},{event}}}" for at, event in enumerate(events, first)]


def _parsed(texts: Iterable[str]) -> Any:
    return loads(f"[{','.join(texts)}]")


def _publish(eventer: Any, texts: Sequence[str]) -> None:
    if not texts:
        return
    with eventer.mutex:
        producer = eventer.producer
        if producer is None:
            return
        if eventer.serializer != "json" or not _publish_text(eventer, producer, f"[{','.join(texts)}]"):
            eventer._publish(_parsed(texts), producer, ROUTING_KEY)


def _publish_text(eventer: Any, producer: Any, text: str) -> bool:
    """Publishes as kombu's producer does, without its encoding in base 64: JSON is text. Returns whether it did."""
    exchange = eventer.exchange
    try:
        channel = producer.channel
        if not isinstance(channel, Channel):
            return False
        maybe_declare(exchange, channel)
        is_plain = _is_plain_fanout(channel, exchange.name)
        message = channel.prepare_message(
            _MARK if is_plain else text,
            content_type="application/json",
            content_encoding="utf-8",
            headers=dict(eventer.headers),
            properties={"delivery_mode": eventer.delivery_mode},
        )
        encoding, channel.body_encoding = channel.body_encoding, None
        try:
            if is_plain:
                _put_fanout(channel, message, exchange.name, text)
            else:
                channel.basic_publish(message, exchange.name, ROUTING_KEY)
        finally:
            channel.body_encoding = encoding
    except Exception:
        # The broker is away. The dispatcher finds that out, too, and keeps the events.
        return False
    return True


def _is_plain_fanout(channel: Any, exchange: str) -> bool:
    """Whether `_put_fanout` does what the channel's own method would do."""
    own = getattr(type(channel), "_put_fanout", None)
    return (
        own is redis_transport.Channel._put_fanout
        and hasattr(channel, "_get_publish_topics")
        and channel.typeof(exchange).type == "fanout"
    )


def _put_fanout(channel: Any, message: Any, exchange: str, text: str) -> None:
    """Publishes ``message`` with the body ``text``. kombu's own way encodes the body several times slower."""
    channel._inplace_augment_message(message, exchange, ROUTING_KEY)
    before, mark, behind = redis_transport.dumps(message).encode().partition(b'"%b"' % _MARK.encode())
    if not mark:
        raise ValueError("kombu has changed the body")
    payload = b"".join((before, orjson.dumps(text), behind))
    with channel.conn_or_acquire() as client:
        for topic in channel._get_publish_topics(exchange, ROUTING_KEY):
            client.publish(topic, payload)
