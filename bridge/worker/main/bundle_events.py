"""Celery's task events of the messages of bundles, written as JSON, gathered, and sent together.

Celery makes a dict of each event, encodes it with Python's JSON, and sends up to 24 in one Redis message. That costs
the main process more than all else that it does for a message. A list of events in one message is Celery's own form
(``task.multi``), so Flower and other receivers see the same events. Here an event is text from the start, and a
fragment is encoded once: texts are cheaper to join than dicts to encode.

Events are gathered for `GATHER_S`, or until there are `MOST`, where Celery's own loop can send them then: in a worker
with pool processes that is not stopping. Else they are sent at once. Before an event of a message is sent in any other
way, the gathered ones are sent (`send_gathered`), so events of one message keep their order.

Redis tells a publisher how many clients got a message. After one that nobody got, an empty list of events goes ahead of
the next ones. If nobody gets that either, these are not even written: each would be lost. So events cost next to
nothing while no Flower listens, and the first one to listen gets what everybody would get.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from json.encoder import encode_basestring_ascii
from typing import Any
from weakref import WeakKeyDictionary

import orjson
from celery import VERSION
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


class _Batch:
    """Events that happened together, and are not written yet. ``first``: the logical clock of the first one."""

    __slots__ = ("first", "timestamp", "write")

    def __init__(self, eventer: Any, count: int, write: Callable[[], Sequence[TaskEvent]]) -> None:
        self.timestamp = time.time()
        self.write = write
        clock = eventer.clock
        with clock.mutex:
            self.first = clock.value + 1
            clock.value += count

    def texts(self, eventer: Any) -> list[str]:
        """The whole text of each event."""
        common = {"hostname": eventer.hostname, "utcoffset": utcoffset(), "pid": eventer.pid}
        opening = orjson.dumps({**common, "timestamp": self.timestamp})[:-1].decode() + ',"clock":'
        return [f"{opening}{at},{event}}}" for at, event in enumerate(self.write(), self.first)]


class _Gathered:
    """The events of one dispatcher that are not sent yet."""

    def __init__(self) -> None:
        self.batches: list[_Batch] = []
        self.count = 0
        #: When they are to be sent (monotonic seconds). Celery may have dropped its timer with a lost connection.
        self.due = NEVER
        #: Whether nobody got what was published last.
        self.unheard = False


#: The due time of nothing.
NEVER = float("inf")

_gathered: WeakKeyDictionary[Any, _Gathered] = WeakKeyDictionary()


def send_together(eventer: Any, count: int, write: Callable[[], Sequence[TaskEvent]], *, later: bool = False) -> None:
    """Sends ``count`` task events through ``eventer``. While the broker is away, it keeps them as it keeps others.

    ``write``: makes them, when they are sent. ``later``: they may be gathered first.
    """
    if not watched(eventer) or not count:
        return
    gathered = _gathered.get(eventer)
    if gathered is None:
        gathered = _gathered[eventer] = _Gathered()
        eventer.on_disabled.add(lambda: _keep(eventer))
    gathered.batches.append(_Batch(eventer, count, write))
    gathered.count += count
    hub = get_event_loop() if later else None
    now = time.monotonic()
    if hub is None or gathered.count >= MOST or now >= gathered.due:
        send_gathered(eventer)
    elif gathered.due == NEVER:
        gathered.due = now + GATHER_S
        hub.call_later(GATHER_S, send_gathered, eventer)


def send_gathered(eventer: Any) -> None:
    """Sends what was gathered. ``eventer``: None when Celery has none."""
    gathered = None if eventer is None else _gathered.get(eventer)
    if gathered is None or not gathered.batches:
        return
    batches, gathered.batches, gathered.count, gathered.due = gathered.batches, [], 0, NEVER
    if gathered.unheard and _publish(eventer, ()) == 0:
        return
    texts = _texts(eventer, batches)
    for at in range(0, len(texts), MOST):
        gathered.unheard = _publish(eventer, texts[at : at + MOST]) == 0


def _keep(eventer: Any) -> None:
    """Celery has closed the dispatcher, since the connection is lost. What was gathered goes to the next dispatcher."""
    gathered = _gathered.pop(eventer, None)
    if gathered is not None and gathered.batches:
        kept = (_parsed(_texts(eventer, gathered.batches)), ROUTING_KEY)
        # Before 5.7, Celery keeps an error beside each event, and does not look at it.
        eventer._outbound_buffer.append(kept if VERSION >= (5, 7) else (*kept, None))


def _texts(eventer: Any, batches: Iterable[_Batch]) -> list[str]:
    return [text for batch in batches for text in batch.texts(eventer)]


def _parsed(texts: Iterable[str]) -> Any:
    return loads(f"[{','.join(texts)}]")


def _publish(eventer: Any, texts: Sequence[str]) -> int | None:
    """Returns how many clients got the events; None: it is not known."""
    with eventer.mutex:
        producer = eventer.producer
        if producer is None:
            return None
        if eventer.serializer == "json":
            # If the broker is away, the dispatcher finds that out, too, and keeps the events.
            with suppress(Exception):
                return _publish_text(eventer, producer, f"[{','.join(texts)}]")
        if texts:
            eventer._publish(_parsed(texts), producer, ROUTING_KEY)
        return None


def _publish_text(eventer: Any, producer: Any, text: str) -> int | None:
    """Publishes as kombu's producer does, without its encoding in base 64: JSON is text. Returns as `_publish`."""
    exchange = eventer.exchange
    channel = producer.channel
    if not isinstance(channel, Channel):
        raise TypeError("a transport of its own form")
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
            return _put_fanout(channel, message, exchange.name, text)
        channel.basic_publish(message, exchange.name, ROUTING_KEY)
    finally:
        channel.body_encoding = encoding
    return None


def _is_plain_fanout(channel: Any, exchange: str) -> bool:
    """Whether `_put_fanout` does what the channel's own method would do."""
    own = getattr(type(channel), "_put_fanout", None)
    return own is redis_transport.Channel._put_fanout and channel.typeof(exchange).type == "fanout"


def _put_fanout(channel: Any, message: Any, exchange: str, text: str) -> int:
    """Publishes ``message`` with the body ``text``. kombu's own way encodes the body several times slower.

    Returns how many clients got it.
    """
    channel._inplace_augment_message(message, exchange, ROUTING_KEY)
    before, mark, behind = redis_transport.dumps(message).encode().partition(b'"%b"' % _MARK.encode())
    if not mark:
        raise ValueError("kombu has changed the body")
    payload = b"".join((before, orjson.dumps(text), behind))
    with channel.conn_or_acquire() as client:
        return sum(client.publish(topic, payload) for topic in _topics(channel, exchange))


def _topics(channel: Any, exchange: str) -> Any:
    """Where kombu publishes what goes to ``exchange``: before 5.7 there is one such place."""
    if hasattr(channel, "_get_publish_topics"):
        return channel._get_publish_topics(exchange, ROUTING_KEY)
    return (channel._get_publish_topic(exchange, ROUTING_KEY),)
