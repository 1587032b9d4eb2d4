"""Outcomes go to the master in calls that it takes, and what it refuses is one message's failure."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from http.client import RemoteDisconnected
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.consumer import HttpConsumer, Message, http_outcomes
from bridge.consumer.http_calls import HttpProblem
from bridge.consumer.http_outcomes import BATCH_BYTES, BATCH_ITEMS, SURE_BYTES, Item, Life, Outcomes, batches
from bridge.protocol import outcome_limits
from bridge.settings.app import Settings
from bridge.testing.waiting import wait_until
from tests.unit.consumer.http_stub import Stub

Said = dict[str, Any]


class Masters:
    """Stands for `Calls`. ``refuses``: the status for an outcome that is refused, or None."""

    def __init__(self, refuses: Callable[[Said], int | None], most_bytes: int = 1 << 60) -> None:
        self._refuses = refuses
        self._most_bytes = most_bytes
        self.taken: list[Said] = []
        self.sizes: list[int] = []

    def call(self, method: str, path: str, body: bytes, *, goes_on: Callable[[], bool]) -> Any:
        assert (method, path) == ("POST", "/api/messages/acknowledge")
        self.sizes.append(len(body))
        if len(body) > self._most_bytes:
            while goes_on():
                pass
            raise RemoteDisconnected("closed")
        items = json.loads(body)
        if (status := next(filter(None, map(self._refuses, items)), None)) is not None:
            raise HttpProblem(status, "not like this")
        self.taken += items
        return {"results": [{"message_id": item["message_id"], "status": 200} for item in items]}


class Consumer:
    """What `Outcomes` asks."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.released: list[int] = []

    def life(self) -> Life:
        return Life(
            lambda incarnation: incarnation not in self.lost,
            self.lost.append,
            lambda _incarnation, fences: self.released.extend(fences),
        )


def said(number: int, outcome: str = "done", error: str = "") -> Said:
    return {
        "consumer": "h",
        "incarnation": "i",
        "message_id": f"{number}-0",
        "fence": number,
        "outcome": outcome,
        **({"error": error} if error else {}),
    }


def sent(masters: Masters, *outcomes: Said) -> Consumer:
    consumer = Consumer()
    some = Outcomes(masters, consumer.life())  # type: ignore[arg-type]
    for one in outcomes:
        some.put(one["incarnation"], one)
    some.end()
    some.run()
    # Whatever happened: a fence that stays is one message less for ever.
    assert sorted(consumer.released) == sorted(one["fence"] for one in outcomes)
    return consumer


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1_500_000)), max_size=12))
def test_a_call_is_of_one_incarnation_and_of_limited_bytes_unless_it_is_of_one_outcome(
    some: list[tuple[str, int]],
) -> None:
    items = [Item(incarnation, {"n": n}, b"x" * size) for n, (incarnation, size) in enumerate(some)]
    found = list(batches(items))
    assert [item for batch in found for item in batch] == items
    for batch in found:
        assert len({item.incarnation for item in batch}) == 1
        assert len(batch) == 1 or len(b",".join(item.text for item in batch)) + 2 <= BATCH_BYTES
    # No call that could have been one with the call before.
    for one, two in pairwise(found):
        fits = len(b",".join(item.text for item in [*one, two[0]])) + 2 <= BATCH_BYTES
        assert not fits or one[0].incarnation != two[0].incarnation


def test_many_large_outcomes_go_in_calls_that_the_port_takes() -> None:
    masters = Masters(lambda _said: None)
    sent(masters, *(said(n, "failed", "\N{ROCKET}" * outcome_limits.ERROR_CHARS) for n in range(300)))
    assert len(masters.taken) == 300
    # Much less than what the port takes by default.
    assert max(masters.sizes) <= Settings.model_fields["http_max_body"].default / 2
    assert BATCH_ITEMS <= outcome_limits.MOST_ITEMS


@pytest.mark.parametrize("most_bytes", [SURE_BYTES, 300_000])
def test_a_port_with_a_smaller_limit_gets_smaller_calls(most_bytes: int) -> None:
    # It ends the connection before it has read such a body, and its answer is lost.
    masters = Masters(lambda _said: None, most_bytes)
    sent(masters, *(said(n, "failed", "x" * outcome_limits.ERROR_CHARS) for n in range(400)))
    assert [one["fence"] for one in masters.taken] == list(range(400))


@pytest.mark.parametrize("status", http_outcomes.REFUSED)
@pytest.mark.parametrize("bad", [{0}, {3}, {2, 5}, set(range(6))], ids=str)
def test_an_outcome_that_is_refused_is_its_messages_failure_alone(status: int, bad: set[int]) -> None:
    masters = Masters(lambda one: status if one["fence"] in bad and one["outcome"] != "failed" else None)
    sent(masters, *(said(n) for n in range(6)))
    assert {one["fence"]: one["outcome"] for one in masters.taken} == {
        n: "failed" if n in bad else "done" for n in range(6)
    }
    for one in masters.taken:
        if one["fence"] in bad:
            assert one["error"] == f"the port refused the outcome done of this message: {status}: not like this"


def test_an_outcome_that_is_refused_even_as_a_failure_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    masters = Masters(lambda one: 400 if one["fence"] == 1 else None)
    sent(masters, said(0), said(1), said(2))
    assert [one["fence"] for one in masters.taken] == [0, 2]
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors[-1] == "message 1-0 cannot be acknowledged at all, and comes again: 400: not like this"


@pytest.mark.parametrize("status", [401, 403, 500])
def test_another_refusal_is_in_the_log(caplog: pytest.LogCaptureFixture, status: int) -> None:
    assert sent(Masters(lambda _said: status), said(0), said(1)).lost == []
    assert f"2 messages cannot be acknowledged, and will come again: {status}: " in caplog.text


@pytest.mark.parametrize("status", http_outcomes.OVER)
def test_an_incarnation_that_is_over_is_lost_and_acknowledges_no_more(
    caplog: pytest.LogCaptureFixture, status: int
) -> None:
    masters = Masters(lambda _said: status)
    assert sent(masters, said(0), {**said(1), "incarnation": "j"}).lost == ["i", "j"]
    assert "cannot be acknowledged, and will come again" in caplog.text


def test_an_answer_without_sense_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Masters):
        def call(self, *arguments: Any, **options: Any) -> Any:
            super().call(*arguments, **options)
            return []

    masters = Odd(lambda _said: None)
    sent(masters, said(0), {**said(1), "incarnation": "j"})
    assert len(masters.taken) == 2
    assert caplog.text.count("1 message cannot be acknowledged, and will come again") == 2


def test_errors_that_are_too_large_together_are_all_acknowledged(url: str, stub: Stub) -> None:
    # More than the port takes: it ends the connection, since the rest of the body is not read.
    count = 100
    stub.most_bytes = SURE_BYTES
    together = threading.Barrier(count)
    for n in range(count):
        stub.add(f"T{n}")

    def handle(_message: Message) -> None:
        with suppress(threading.BrokenBarrierError):
            together.wait(20)
        raise ValueError("x" * 100_000)

    consumer = HttpConsumer(url, "h", handle, concurrency=count, wait_s=0)
    running = threading.Thread(target=consumer.run, daemon=True)
    running.start()
    try:
        wait_until(lambda: len(stub.outcomes) == count, description="all outcomes", timeout_s=180)
    finally:
        consumer.stop()
        running.join(30)
    assert not running.is_alive()
    assert sum(stub.calls) == count
