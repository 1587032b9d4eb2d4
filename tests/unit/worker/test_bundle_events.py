"""Events of a bundle: receivers get the same as from Celery's dispatcher, in one Redis message."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from celery import Celery

from bridge.worker.main.bundle_events import MOST, TaskEvent, send_together

EVENTS: list[TaskEvent] = [
    ("task-received", {"uuid": "1-0", "name": "a.b", "args": "('T', {\"ü\": 1})", "kwargs": "{}", "retries": 0}),
    ("task-started", {"uuid": "1-0"}),
    ("task-succeeded", {"uuid": "1-0", "result": "None", "runtime": 0.25}),
]
#: Fields that differ from one sending to the next.
CHANGING = ("timestamp", "local_received", "clock")


def one_by_one(eventer: Any, events: list[TaskEvent]) -> None:
    for kind, fields in events:
        eventer.send(kind, **fields)


def received(
    send: Callable[[Any, list[TaskEvent]], None], events: list[TaskEvent], **dispatcher: Any
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
    together, messages = received(send_together, EVENTS)
    expected, several = received(one_by_one, EVENTS)
    assert without_changing(together) == without_changing(expected)
    assert (messages, several) == (1, 3)
    assert {name: type(together[0][name]) for name in CHANGING} == {name: type(expected[0][name]) for name in CHANGING}
    clocks = [event["clock"] for event in together]
    assert clocks == sorted(set(clocks))


def test_many_events_go_in_several_messages() -> None:
    found, messages = received(send_together, [("task-started", {"uuid": f"{n}-0"}) for n in range(MOST + 1)])
    assert [event["uuid"] for event in found] == [f"{n}-0" for n in range(MOST + 1)]
    assert messages == 2


@pytest.mark.parametrize("options", [{"enabled": False}, {"groups": ["worker"]}])
def test_what_nobody_wants_is_not_sent(options: dict[str, Any]) -> None:
    assert received(send_together, EVENTS, **options) == ([], 0)


@pytest.mark.parametrize("options", [{}, {"serializer": "yaml"}])
def test_what_this_encoder_cannot_send_goes_as_celery_sends_it(options: dict[str, Any]) -> None:
    events: list[TaskEvent] = [*EVENTS, ("task-succeeded", {"uuid": "2-0", "result": Decimal("1.5"), "runtime": 1.0})]
    if options:
        events = EVENTS
        pytest.importorskip("yaml")
    found, messages = received(send_together, events, **options)
    assert [event["uuid"] for event in found] == [fields["uuid"] for _, fields in events]
    assert messages == len(events)


def test_events_wait_while_the_broker_is_away() -> None:
    def send(eventer: Any, events: list[TaskEvent]) -> None:
        sound, eventer.producer = eventer.producer, Unreachable()
        send_together(eventer, events)
        eventer.producer = sound

    found, _ = received(send, EVENTS)
    assert [event["type"] for event in found] == [kind for kind, _ in EVENTS]


class Unreachable:
    """A producer whose broker is away."""

    def publish(self, *_: Any, **__: Any) -> None:
        raise ConnectionRefusedError
