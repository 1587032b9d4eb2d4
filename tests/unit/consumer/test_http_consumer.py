"""`HttpConsumer` goes by the options of a message. Its master is a stub, whose clock is far from this machine's."""

from __future__ import annotations

import itertools
import sys
import threading
from typing import Any

import pytest

from bridge.consumer import GiveUp, HttpConsumer, Message, Refuse
from bridge.consumer.http_calls import HttpProblem
from bridge.consumer.http_consumer import LOST_STATUS
from bridge.consumer.http_messages import Work
from bridge.routing.message_options import EXPIRED
from tests.unit.consumer.http_stub import NOW_MS, Stub, serving


def handled(url: str, stub: Stub, handler: Any) -> dict[str, dict[str, Any]]:
    """The outcomes of all messages, by ticket."""
    seen: list[str] = []

    def handle(message: Message) -> None:
        seen.append(message.ticket_id)
        if message.ticket_id == "last":
            consumer.stop()
            return
        handler(message)

    stub.add("last")
    consumer = HttpConsumer(url, "h", handle, concurrency=1, wait_s=0)
    consumer.run()
    tickets = {message["message_id"]: message["ticket_id"] for message in stub.messages}
    found = {tickets[id_]: outcome for id_, outcome in stub.outcomes.items()}
    assert found.keys() == set(tickets.values())
    assert sorted(seen) == sorted(ticket for ticket in found if ticket != "expired")
    return found


@pytest.mark.parametrize("wait_s", [0, 0.001])
def test_one_that_receives_nothing_at_once_pauses_longer_and_longer(
    wait_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Idle(Stub):
        received = 0

        def answer(self, path: str, body: Any) -> Any:
            if "/next" in path:
                self.received += 1
                if self.received == 8:
                    self.add("T")
                if self.received >= 12:
                    consumer.stop()
            return super().answer(path, body)

    pauses: list[float] = []
    with serving(Idle()) as url:
        consumer = HttpConsumer(url, "h", lambda _message: None, wait_s=wait_s)
        monkeypatch.setattr(consumer._stopping, "wait", pauses.append)
        # Calls take no time, however busy this machine is.
        monkeypatch.setattr("bridge.consumer.http_consumer.now_ns", lambda: 1)
        consumer.run()
    # As often as it received nothing, and a message makes them short again.
    assert pauses[:10] == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.3, 0.3, 0.01, 0.02, 0.04])


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 520])
@pytest.mark.parametrize("path", ["/register", "/next", "/acknowledge"])
def test_an_answer_of_a_gateway_that_passes_costs_nothing(path: str, status: int, url: str, stub: Stub) -> None:
    stub.add("T")
    stub.gateway[path] = [status] * 2
    assert handled(url, stub, lambda _message: None)["T"]["outcome"] == "done"


@pytest.mark.parametrize("path", ["/register", "/next", "/acknowledge"])
def test_a_bug_of_the_masters_is_said(
    path: str, url: str, stub: Stub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bridge.consumer.http_calls.MOST_BUGS", 3)
    stub.gateway[path] = [500] * 3
    if path != "/acknowledge":
        with pytest.raises(HttpProblem, match="500"):
            handled(url, stub, lambda _message: None)
    else:
        with pytest.raises(AssertionError):
            handled(url, stub, lambda _message: None)
        assert "1 message cannot be acknowledged, and will come again: 500" in caplog.text
    assert stub.gateway[path] == []


def test_a_long_poll_that_brings_nothing_is_followed_by_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = HttpConsumer("http://127.0.0.1:1", "h", lambda _message: None)
    pauses: list[float] = []
    monkeypatch.setattr(consumer._stopping, "wait", pauses.append)
    for took_s in (20.0, 20.0, 0.3, 0.3, 0.3, 0.1):
        consumer._pause(False, took_s)
    assert pauses == pytest.approx([0.2])


def test_what_has_expired_is_dead_and_its_handler_is_not_called(url: str, stub: Stub) -> None:
    stub.add("expired", expires_ms=NOW_MS)
    stub.add("in time", expires_ms=NOW_MS + 3_600_000)
    found = handled(url, stub, lambda _message: None)
    assert (found["expired"]["outcome"], found["expired"]["error"]) == ("dead", EXPIRED)
    assert found["in time"]["outcome"] == "done"


def test_a_handler_that_takes_too_long_fails_when_it_ends_and_one_that_looks_can_stop_itself(
    url: str, stub: Stub
) -> None:
    left: dict[str, float] = {}

    def handle(message: Message) -> None:
        left[message.ticket_id] = message.left_s()
        while message.ticket_id != "in time" and message.left_s() > 0:
            pass
        if message.ticket_id == "refuses":
            raise Refuse("later")
        if message.ticket_id == "gives up":
            raise GiveUp("never")

    for ticket in ("slow", "refuses", "gives up"):
        stub.add(ticket, timeout_ms=1)
    stub.add("in time", timeout_ms=3_600_000, max_attempts=2)
    found = handled(url, stub, handle)
    assert "after the time that its message allows" in found["slow"]["error"]
    assert {ticket: outcome["outcome"] for ticket, outcome in found.items()} == {
        "slow": "failed",
        "refuses": "refused",
        "gives up": "dead",
        "in time": "done",
        "last": "done",
    }
    assert 3_500 < left["in time"] <= 3_600


def test_a_message_says_its_options_and_one_without_has_all_the_time(url: str, stub: Stub) -> None:
    seen: list[tuple[Any, float, bool]] = []
    stub.add("with", max_attempts=2)
    stub.add("without")
    handled(url, stub, lambda message: seen.append((message.options, message.left_s(), message.holds())))
    assert seen == [({"max_attempts": 2}, float("inf"), True), (None, float("inf"), True)]


def test_the_end_of_the_lease_is_noticed_while_a_renewal_waits_for_its_answer(
    url: str, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    lost = threading.Event()

    def end(status: int) -> None:
        ended.append(status)
        lost.set()

    def handle(_message: Message) -> None:
        lost.wait(8)
        stub.answers.set()
        consumer.stop()

    monkeypatch.setattr("bridge.consumer.http_consumer.os._exit", end)
    stub.lease_ms = 400
    stub.answers.clear()
    stub.add("long")
    consumer = HttpConsumer(url, "h", handle, concurrency=1, wait_s=0)
    consumer.run()
    assert ended == [LOST_STATUS]


@pytest.mark.parametrize("first", ["wait", "set"], ids=["a signal in a wait", "a signal in the handler of another"])
def test_stop_may_be_called_between_any_two_steps_of_its_own_thread(first: str) -> None:
    ended: list[int] = []

    def interrupted(n: int) -> bool:
        """Whether there is an ``n``-th step, before which `stop` is called."""
        consumer = HttpConsumer("http://127.0.0.1:9", "h", print)
        steps = itertools.count()

        def step(*_: Any) -> Any:
            if next(steps) == n:
                consumer.stop()
            return step

        sys.settrace(step)
        consumer.stop() if first == "set" else consumer._stopping.wait(0.001)
        sys.settrace(None)
        ended.append(n)
        return next(steps) > n

    def all_steps() -> None:
        for n in itertools.count():
            if not interrupted(n):
                return

    thread = threading.Thread(target=all_steps, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), f"step {len(ended)} waits for ever"
    assert len(ended) > 2


def test_a_message_that_came_too_late_comes_again_when_the_renewal_is_answered_after_all(url: str, stub: Stub) -> None:
    ran: list[str] = []
    consumer = HttpConsumer(url, "h", lambda message: ran.append(message.message_id), wait_s=0)
    # Given a message that is received when the deadline is over, and nobody has noticed that
    consumer._register()
    consumer._deadline_ns = 1
    stub.add("T")
    work = Work("i", stub.messages[0], None)
    consumer._take(work)
    consumer._work.put(None)
    consumer._handle()
    # When the renewal that was sent before is answered
    consumer._renew("i")
    # Then it is received again
    consumer._take(work)
    consumer._work.put(None)
    consumer._handle()
    assert ran == ["1-0"]


def test_one_that_is_told_to_leave_registers_again_with_the_master_that_said_so(url: str, stub: Stub) -> None:
    # A deploy: two masters know different lanes. The thread that renews has left the first one, which answers 503.
    stub.status, other = 503, Stub()
    other.wants = "leave"
    with serving(other) as second:
        consumer = HttpConsumer([url, second], "h", lambda _message: None, wait_s=0)
        running = threading.Thread(target=consumer.run)
        running.start()
        try:
            assert other.registered.wait(30)
        finally:
            consumer.stop()
            running.join()


def test_one_that_is_interrupted_while_a_handler_runs_does_not_leave(
    url: str, stub: Stub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Others would get the ticket while this process still handles its message.
    handles, goes_on = threading.Event(), threading.Event()

    def handle(_message: Message) -> None:
        handles.set()
        goes_on.wait(30)

    def interrupted() -> None:
        assert handles.wait(30)
        raise KeyboardInterrupt

    stub.add("T")
    consumer = HttpConsumer(url, "h", handle, concurrency=2)
    receive = consumer._receive
    monkeypatch.setattr(consumer, "_receive", lambda: interrupted() if consumer._held else receive())
    with pytest.raises(KeyboardInterrupt):
        consumer.run()
    goes_on.set()
    assert not stub.left.is_set()
    assert "1 message still handled: the lease will end by itself" in caplog.text
