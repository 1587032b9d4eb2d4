"""Events of a bundle: receivers get the same as from Celery's dispatcher, in one Redis message."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery
from kombu.transport import redis as redis_transport

from bridge.worker.main import bundle_events
from bridge.worker.main.bundle_events import GATHER_S, MOST, TaskEvent, json_of, send_gathered, send_together

#: An event as Celery's dispatcher gets it: its type, and its own fields.
Event = tuple[str, dict[str, Any]]

EVENTS: list[Event] = [
    ("task-received", {"uuid": "1-0", "name": "a.b", "args": "('T', {\"ü\": 1})", "kwargs": "{}", "retries": 0}),
    ("task-started", {"uuid": "1-0"}),
    ("task-succeeded", {"uuid": "1-0", "result": "None", "runtime": 0.25}),
]
#: Fields that differ from one sending to the next.
CHANGING = ("timestamp", "local_received", "clock")


def as_text(events: list[Event]) -> list[TaskEvent]:
    return [
        ",".join(f'"{name}":{json_of(value)}' for name, value in {"type": kind, **fields}.items())
        for kind, fields in events
    ]


def together(eventer: Any, events: list[Event]) -> None:
    send_together(eventer, len(events), lambda: as_text(events))


def one_by_one(eventer: Any, events: list[Event]) -> None:
    for kind, fields in events:
        eventer.send(kind, **fields)


def received(
    send: Callable[[Any, list[Event]], Any], events: list[Event], **dispatcher: Any
) -> tuple[list[dict[str, Any]], int]:
    """The events as a receiver gets them, and in how many messages they came."""
    app = Celery("events", broker="memory://")
    found: list[dict[str, Any]] = []
    messages: list[Any] = []
    with app.connection_for_write() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": found.append}, accept=["json", "yaml"])
        take = receiver._receive

        def receive(body: Any, message: Any) -> None:
            messages.append(message)
            take(body, message)

        receiver._receive = receive
        with receiver.consumer_context(wakeup=False) as (link, _, _):
            eventer = app.events.Dispatcher(connection, hostname="w1@here", **dispatcher)
            send(eventer, events)
            eventer.flush()
            while True:
                try:
                    link.drain_events(timeout=0.2)
                except TimeoutError:
                    return found, len(messages)


def without_changing(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in event.items() if name not in CHANGING} for event in events]


def test_a_receiver_gets_what_celery_would_have_sent() -> None:
    found, messages = received(together, EVENTS)
    expected, several = received(one_by_one, EVENTS)
    assert without_changing(found) == without_changing(expected)
    assert (messages, several) == (1, 3)
    assert {name: type(found[0][name]) for name in CHANGING} == {name: type(expected[0][name]) for name in CHANGING}
    clocks = [event["clock"] for event in found]
    assert clocks == sorted(set(clocks))


def test_many_events_go_in_several_messages() -> None:
    found, messages = received(together, [("task-started", {"uuid": f"{n}-0"}) for n in range(MOST + 1)])
    assert [event["uuid"] for event in found] == [f"{n}-0" for n in range(MOST + 1)]
    assert messages == 2


@pytest.mark.parametrize("options", [{"enabled": False}, {"groups": ["worker"]}])
def test_what_nobody_wants_is_not_sent(options: dict[str, Any]) -> None:
    assert received(together, EVENTS, **options) == ([], 0)


def test_another_serializer_gets_the_events_as_lists_of_its_own() -> None:
    pytest.importorskip("yaml")
    found, messages = received(together, EVENTS, serializer="yaml")
    assert without_changing(found) == without_changing(received(one_by_one, EVENTS)[0])
    assert messages == 1


@pytest.mark.parametrize("value", [Decimal("1.5"), "half of a pair: \ud800", 2**70])
def test_a_value_that_only_celerys_encoder_knows_arrives_as_from_celery(value: Any) -> None:
    events = [*EVENTS, ("task-succeeded", {"uuid": "2-0", "result": value, "runtime": 1.0})]
    assert without_changing(received(together, events)[0]) == without_changing(received(one_by_one, events)[0])


def test_events_wait_while_the_broker_is_away() -> None:
    def send(eventer: Any, events: list[Event]) -> None:
        sound, eventer.producer = eventer.producer, Unreachable()
        together(eventer, events)
        eventer.producer = sound

    found, _ = received(send, EVENTS)
    assert [event["type"] for event in found] == [kind for kind, _ in EVENTS]


class Unreachable:
    """A producer whose broker is away."""

    def publish(self, *_: Any, **__: Any) -> None:
        raise ConnectionRefusedError


# -- gathering ---------------------------------------------------------------------------------------------------------


class Hub:
    """Celery's loop, as far as it is used. Its timers end when a test says so."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Any]] = []

    def call_later(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        self.timers.append((delay, lambda: call(*args)))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub()
    monkeypatch.setattr(bundle_events, "get_event_loop", lambda: made)
    return made


def one_later(eventer: Any, event: Event) -> None:
    send_together(eventer, 1, lambda: as_text([event]), later=True)


def test_events_are_gathered_until_the_timer_ends(hub: Hub) -> None:
    def send(eventer: Any, events: list[Event]) -> None:
        for event in events:
            one_later(eventer, event)
        [(delay, end)] = hub.timers
        assert delay == GATHER_S
        end()

    found, messages = received(send, EVENTS)
    assert [event["type"] for event in found] == [kind for kind, _ in EVENTS]
    assert messages == 1


def test_many_gathered_events_go_at_once(hub: Hub) -> None:
    events: list[Event] = [("task-started", {"uuid": f"{n}-0"}) for n in range(MOST)]
    found, messages = received(
        lambda eventer, some: send_together(eventer, MOST, lambda: as_text(some), later=True), events
    )
    assert [len(found), messages, hub.timers] == [MOST, 1, []]


def test_gathered_events_go_before_those_that_are_sent_at_once(hub: Hub) -> None:
    def send(eventer: Any, events: list[Event]) -> None:
        one_later(eventer, events[0])
        together(eventer, events[1:2])
        one_later(eventer, events[2])
        send_gathered(eventer)

    found, _ = received(send, EVENTS)
    assert [event["type"] for event in found] == [kind for kind, _ in EVENTS]


def test_a_lost_timer_keeps_no_event_back(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_events, "GATHER_S", 0.0)

    def send(eventer: Any, events: list[Event]) -> None:
        one_later(eventer, events[0])
        # Celery drops its timers when it reconnects
        hub.timers.clear()
        one_later(eventer, events[1])

    found, _ = received(send, EVENTS)
    assert [event["type"] for event in found] == [kind for kind, _ in EVENTS[:2]]


def test_the_next_dispatcher_gets_what_a_closed_one_had_gathered(hub: Hub) -> None:
    def send(eventer: Any, events: list[Event]) -> None:
        for event in events:
            one_later(eventer, event)
        # As Celery does when it has lost its connection
        eventer.disable()
        eventer.enable()

    found, _ = received(send, EVENTS)
    assert [event["type"] for event in found] == [kind for kind, _ in EVENTS]


# -- what goes to Redis ------------------------------------------------------------------------------------------------


class RedisChannel(redis_transport.Channel):
    """kombu's channel to Redis, with a client that keeps what is published."""

    def __init__(self, kind: str) -> None:
        self.published: list[tuple[str, str | bytes]] = []
        self.listeners = 1
        self.keyprefix_fanout = "/0."
        self._kind = kind

    def typeof(self, *_: Any) -> Any:
        deliver = lambda message, exchange, routing_key: self._put_fanout(exchange, message, routing_key)  # noqa: E731
        return SimpleNamespace(type=self._kind, deliver=deliver)

    @contextmanager
    def conn_or_acquire(self, *_: Any) -> Iterator[Any]:
        yield SimpleNamespace(publish=self._publish)

    def _publish(self, topic: str, payload: str | bytes) -> int:
        self.published.append((topic, payload))
        return self.listeners

    def __del__(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("kind", ["fanout", "topic"])
def test_redis_gets_what_kombu_would_publish(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a fanout exchange has a way of its own. What it publishes differs from kombu's in nothing."""
    monkeypatch.setattr(bundle_events, "maybe_declare", lambda *_: None)
    monkeypatch.setattr(bundle_events, "_put_fanout", own := Mock(side_effect=bundle_events._put_fanout))
    channel = RedisChannel(kind)
    monkeypatch.setattr(channel, "_next_delivery_tag", lambda: "tag")
    eventer = SimpleNamespace(headers={"hostname": "w1"}, delivery_mode=1, exchange=SimpleNamespace(name="celeryev"))
    text = '[{"type":"task-succeeded","result":"\\u00fc \\"x\\""},{"type":"ü"}]'
    bundle_events._publish_text(eventer, SimpleNamespace(channel=channel), text)
    monkeypatch.setattr(bundle_events, "_is_plain_fanout", lambda *_: False)
    bundle_events._publish_text(eventer, SimpleNamespace(channel=channel), text)
    [(topic, payload), (expected_topic, expected)] = channel.published
    assert (topic, json.loads(payload)) == (expected_topic, json.loads(expected))
    assert json.loads(payload)["body"] == text
    assert own.called is (kind == "fanout")


def test_a_channel_of_another_kind_publishes_by_its_own_method() -> None:
    class Other(RedisChannel):
        def _put_fanout(self, exchange: Any, message: Any, routing_key: Any, **kwargs: Any) -> None:
            raise NotImplementedError

    assert bundle_events._is_plain_fanout(RedisChannel("fanout"), "celeryev")
    assert not bundle_events._is_plain_fanout(Other("fanout"), "celeryev")


def redis_dispatcher() -> tuple[RedisChannel, Any]:
    """A channel that keeps what is published, and Celery's dispatcher on it."""
    channel = RedisChannel("fanout")
    eventer = Celery("events", broker="memory://").events.Dispatcher(hostname="w1@here", enabled=False)
    eventer.enabled, eventer.producer = True, SimpleNamespace(channel=channel)
    return channel, eventer


def bodies(channel: RedisChannel) -> list[list[str]]:
    """The ids of the events of each message that was published."""
    return [[event["uuid"] for event in json.loads(json.loads(payload)["body"])] for _, payload in channel.published]


def test_events_that_nobody_would_get_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_events, "maybe_declare", lambda *_: None)
    channel, eventer = redis_dispatcher()
    written: list[str] = []

    def send(uuid: str) -> None:
        def write() -> list[TaskEvent]:
            written.append(uuid)
            return as_text([("task-started", {"uuid": uuid})])

        send_together(eventer, 1, write)

    channel.listeners = 0
    for uuid in ("1-0", "2-0", "3-0"):
        send(uuid)
    # The first told that nobody listens. Before each other one an empty list asks whether somebody does now.
    assert (written, bodies(channel)) == (["1-0"], [["1-0"], [], []])
    channel.listeners = 1
    for uuid in ("4-0", "5-0"):
        send(uuid)
    assert (written, bodies(channel)[3:]) == (["1-0", "4-0", "5-0"], [[], ["4-0"], ["5-0"]])


def test_a_receiver_takes_the_empty_list_that_asks_for_listeners() -> None:
    found, messages = received(lambda eventer, _: bundle_events._publish(eventer, ()), [])
    assert (found, messages) == ([], 1)


def test_an_event_tells_when_it_happened_and_not_when_it_was_sent(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((1000.0, 2000.0))
    monkeypatch.setattr(bundle_events, "time", SimpleNamespace(time=lambda: next(times), monotonic=time.monotonic))

    def send(eventer: Any, events: list[Event]) -> None:
        one_later(eventer, events[0])
        eventer.clock.forward()
        one_later(eventer, events[1])
        send_gathered(eventer)

    (first, second), _ = received(send, EVENTS[:2])
    assert [first["timestamp"], second["timestamp"]] == [1000.0, 2000.0]
    assert second["clock"] == first["clock"] + 2
