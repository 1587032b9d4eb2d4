"""Whatever a handler raises is its message's failure, and the port takes the outcome."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.consumer import GiveUp, HttpConsumer, Message, Refuse
from bridge.consumer.http_messages import Work, outcome_of
from bridge.http.consumer_forms import Acknowledgement
from bridge.protocol.outcome_limits import ERROR_CHARS, MOST_DELAY_S, MOST_ERROR_CHARS
from tests.unit.consumer.http_stub import Stub

ITEM = {"ticket_id": "T", "message_id": "1-0", "fence": 1, "attempt": 1, "task": "t", "payload": None}


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")


class NoNumber:
    def __float__(self) -> float:
        raise KeyboardInterrupt


KINDS = [ValueError, KeyError, SystemExit, KeyboardInterrupt, GeneratorExit, BaseException, MemoryError, Mute]
#: With half pairs, which UTF-8 cannot say, and NUL.
TEXTS = st.text(st.characters(exclude_categories=()), max_size=20)
LONG = st.builds(lambda text, count: text * count, TEXTS, st.sampled_from([1, ERROR_CHARS, MOST_ERROR_CHARS]))
DELAYS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.floats(),
    st.integers(),
    st.sampled_from([-1, 0, MOST_DELAY_S, MOST_DELAY_S + 1, 10**400, "5", "soon", [], NoNumber(), float("nan")]),
)
RAISED: st.SearchStrategy[BaseException] = st.one_of(
    st.builds(lambda kind, text: kind(text), st.sampled_from([*KINDS, GiveUp]), LONG), st.builds(Refuse, LONG, DELAYS)
)


def outcome(exc: BaseException) -> dict[str, Any]:
    def handle(_message: Message) -> None:
        raise exc

    return outcome_of(handle, Work("i", ITEM, None), lambda: True)


@given(RAISED)
def test_the_port_takes_what_becomes_of_any_error(exc: BaseException) -> None:
    found = outcome(exc)
    said = {"consumer": "h", "incarnation": "i", "message_id": "1-0", "fence": 1, **found}
    # Read as the port reads it.
    form = Acknowledgement.model_validate(orjson.loads(json.dumps(said)))
    if isinstance(exc, GiveUp):
        assert form.outcome == "dead"
    elif not isinstance(exc, Refuse):
        assert form.outcome == "failed"
        assert (form.error or "").startswith(type(exc).__name__)


@pytest.mark.parametrize(
    ("delay", "says"),
    [(-1, "-1"), (float("nan"), "nan"), (1e12, "1e+12"), (float("inf"), "inf"), ("soon", "a str"), ([], "a list")],
)
def test_a_delay_that_cannot_be_is_a_failure_that_says_so(delay: Any, says: str) -> None:
    found = outcome(Refuse("not yet", delay))
    assert found["outcome"] == "failed"
    assert f"the delay of Refuse is {says}" in found["error"]
    assert found["error"].endswith("not yet")


@pytest.mark.parametrize("delay", [0, 0.5, MOST_DELAY_S, None])
def test_a_delay_that_can_be_is_kept(delay: float | None) -> None:
    found = outcome(Refuse("not yet", delay))
    assert (found["outcome"], found["error"], found.get("delay")) == ("refused", "not yet", delay)


def test_an_error_is_cut_to_what_is_kept_and_the_port_takes_as_much() -> None:
    assert outcome(GiveUp("x" * 200_000))["error"] == "x" * ERROR_CHARS
    assert ERROR_CHARS <= MOST_ERROR_CHARS


@pytest.mark.parametrize("kind", KINDS)
def test_no_error_ends_the_thread_of_a_handler(url: str, stub: Stub, kind: type[BaseException]) -> None:
    def handle(message: Message) -> None:
        if message.ticket_id == "last":
            consumer.stop()
            return
        raise kind("no")

    # One thread: it has all of them.
    for ticket in ("bad", "worse", "last"):
        stub.add(ticket)
    consumer = HttpConsumer(url, "h", handle, wait_s=0)
    consumer.run()
    assert [stub.outcomes[f"{n}-0"]["outcome"] for n in (1, 2, 3)] == ["failed", "failed", "done"]
    assert stub.left.is_set()


def test_an_error_beside_the_handler_is_the_messages_failure(
    url: str, stub: Stub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Such as one of a handler of the app's log, which is called within.
    def breaks(*_: object) -> None:
        consumer.stop()
        raise SystemExit

    monkeypatch.setattr("bridge.consumer.http_consumer.outcome_of", breaks)
    stub.add("T")
    consumer = HttpConsumer(url, "h", lambda _message: None, wait_s=0)
    consumer.run()
    assert stub.outcomes["1-0"]["outcome"] == "failed"
    assert "message 1-0 failed beside its handler" in caplog.text
