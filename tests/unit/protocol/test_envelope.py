"""Celery messages as text: what kombu, Celery and a worker read in them, with any tickets and payloads."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest
from celery import Celery
from celery.worker.request import Request
from hypothesis import example, given
from hypothesis import strategies as st
from kombu import Connection, Producer
from kombu.transport.virtual import Message as VirtualMessage

from bridge.app.installation import install
from bridge.protocol.envelope import OPENING, SHOWN, Envelopes, Limits, Run, returned
from bridge.protocol.names import BUNDLE_TASK, HEADER_BASE, HEADER_FIRST, HEADER_INCARNATION, HEADER_RUNS
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.messages import EntryParser, Message

BASE = 1_750_000_000_000_000
LIFE = "0123456789abcdef0123456789abcdef"
QUEUE = "{ticket_stream}:bridge:queue:w1@host"


def make_app() -> Any:
    app = install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False))

    @app.task(
        bind=True, name="shop.update", lazy=False, shared=False, ignore_result=False, time_limit=30, soft_time_limit=20
    )
    def update(self: Any, ticket_id: str, payload: Any) -> None: ...

    @app.task(bind=True, name='shop.ünï "quoted"', lazy=False, shared=False, ignore_result=True)
    def strange(self: Any, ticket_id: str, payload: Any) -> None: ...

    return app


APP = make_app()
ENVELOPES = Envelopes(APP)
CHANNEL = Connection("memory://").channel()


def message(
    ticket: str = "T42", payload: bytes = b'{"amount": 3}', id_: str = "5-1", task: str = "shop.update"
) -> Message:
    return Message(id_, ticket, task, payload)


def whole(text: bytes) -> dict[str, Any]:
    """The message as the script completes it."""
    raw: dict[str, Any] = json.loads(OPENING.encode() + str(BASE).encode() + text)
    # The worker's transport reads the same with another parser
    assert orjson.loads(OPENING.encode() + str(BASE).encode() + text) == raw
    return raw


def plain(sent: Message, offset: int = 0, attempt: int = 1, doubt: bool = False) -> dict[str, Any]:
    return whole(ENVELOPES.plain(LIFE, QUEUE, sent, offset, attempt, doubt))


def bundle(runs: Sequence[Run], limits: Limits = (None, None)) -> dict[str, Any]:
    return whole(ENVELOPES.bundle(LIFE, QUEUE, runs, limits))


def test_a_message_or_a_bundle_that_goes_first_says_so_in_its_headers() -> None:
    sent = Message("1-0", "T1", "t", b"1")
    alone = whole(ENVELOPES.plain(LIFE, QUEUE, sent, 0, 1, False, first=True))
    together = whole(ENVELOPES.bundle(LIFE, QUEUE, [Run("T1", 0, 1, False, [sent])], (None, None), first=True))
    for first, usual in ((alone, plain(sent)), (together, bundle([Run("T1", 0, 1, False, [sent])]))):
        assert first["headers"] == {**usual["headers"], HEADER_FIRST: 1}
        assert HEADER_FIRST not in usual["headers"]


def received(raw: dict[str, Any]) -> Any:
    """The message as kombu hands it to a worker."""
    return VirtualMessage(raw, channel=CHANNEL)


def _is_text(text: str) -> bool:
    return not any(0xD800 <= ord(c) < 0xE000 for c in text)


TICKETS = st.text(min_size=1, max_size=30).filter(_is_text) | st.sampled_from(
    ["a:b", "{x}", '"', "\\", "\n", "\0", "@@ID@@", "@@BODY@@", "🎫", "'", "%s", "</script>", "\u2028", "x" * 512]
)
NAMES = st.sampled_from(["a", "ü", '"', "\0", ""])
PAYLOADS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=10).filter(_is_text),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "ü", '"', "\0", ""]), inner, max_size=3)
    ),
    max_leaves=8,
).map(orjson.dumps)


# -- alone ---------------------------------------------------------------------------------------------------------


@given(ticket=TICKETS, payload=PAYLOADS, attempt=st.integers(1, 9), offset=st.integers(0, 10**6))
@example(ticket="@@ID@@", payload=b'"@@SHOWN@@ @@BODY@@ @@RUNS@@ @@RETRIES@@"', attempt=1, offset=0)
@example(ticket="T", payload=b'"\\u0000\\u001f\\\\\\""', attempt=2, offset=7)
@example(ticket="T", payload=b' {"b" : 1.50 , "n": 123456789012345678901234567890} ', attempt=1, offset=0)
def test_a_single_message_is_unchanged(ticket: str, payload: bytes, attempt: int, offset: int) -> None:
    # Given any ticket and payload that may be sent
    parser = EntryParser(default_task="shop.update", max_payload=10**6, known_tasks=["shop.update"])
    sent = parser.parse("5-1", (b"ticket_id", ticket.encode(), b"payload", payload))
    assert isinstance(sent, Message)
    # When kombu parses it
    got = received(plain(sent, offset, attempt))
    # Then the body decodes to exactly the ticket and the payload
    args, kwargs, embed = got.decode()
    assert args == [ticket, json.loads(payload)]
    assert kwargs == {}
    assert embed == {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    # And the headers name the run
    assert got.headers[HEADER_BASE] == BASE
    assert got.headers[HEADER_RUNS] == [[ticket, offset, 1, attempt, 0]]
    assert got.headers[HEADER_INCARNATION] == LIFE
    assert (got.headers["id"], got.headers["root_id"], got.headers["retries"]) == ("5-1", "5-1", attempt - 1)


def test_doubt_is_shown() -> None:
    assert plain(message(), doubt=True)["headers"][HEADER_RUNS] == [["T42", 0, 1, 1, 1]]


def test_celery_takes_it_for_an_ordinary_request() -> None:
    got = received(plain(message(), attempt=3))
    request = Request(got, app=APP, task=APP.tasks["shop.update"], hostname="w1@host")
    assert (request.id, request.name, request.root_id, request.parent_id) == ("5-1", "shop.update", "5-1", None)
    assert request.argsrepr == "('T42', {\"amount\": 3})"
    assert request.kwargsrepr == "{}"
    assert (request.eta, request.expires, request.reply_to, request.correlation_id) == (None, None, "", "5-1")
    assert request.request_dict["retries"] == 2
    assert request.request_dict["ignore_result"] is False
    assert request.request_dict["delivery_info"]["routing_key"] == QUEUE
    assert request.execute_using_pool is not None


def test_it_is_protocol_2_and_says_all_that_celery_says() -> None:
    # Given the message that Celery itself would send
    theirs = APP.amqp.as_task_v2("5-1", "shop.update", args=["T42", {"amount": 3}], root_id="5-1")
    ours = plain(message())
    # Then it has every header of Celery's, with equal values, except those of sender and receiver
    ours_only = {HEADER_BASE, HEADER_RUNS, HEADER_INCARNATION}
    assert set(ours["headers"]) == set(theirs.headers) | ours_only
    differing = {name for name, value in theirs.headers.items() if ours["headers"][name] != value}
    assert differing <= {"argsrepr", "origin"}
    assert (ours["content-type"], ours["content-encoding"]) == ("application/json", "utf-8")
    assert ours["properties"]["correlation_id"] == "5-1"


def test_the_body_is_plain_text_not_base64() -> None:
    raw = plain(message(ticket="ü"))
    assert "body_encoding" not in raw["properties"]
    assert raw["body"].startswith('[["ü",{"amount": 3}],{},')


@pytest.mark.parametrize("task", ["shop.update", 'shop.ünï "quoted"'])
def test_each_task_has_an_envelope_of_its_own(task: str) -> None:
    got = plain(message(task=task))
    assert got["headers"]["task"] == task
    assert got["headers"]["ignore_result"] is bool(APP.tasks[task].ignore_result)
    assert received(got).decode()[0] == ["T42", {"amount": 3}]


def test_leaders_of_several_lanes_may_make_envelopes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first_is_in, second_is_made = threading.Event(), threading.Event()
    publish = Producer.publish

    def slow(*args: Any, **kwargs: Any) -> Any:
        publish(*args, **kwargs)
        if not first_is_in.is_set():
            first_is_in.set()
            second_is_made.wait(0.5)

    first, second = Envelopes(APP), Envelopes(APP)
    monkeypatch.setattr(Producer, "publish", slow)
    with ThreadPoolExecutor(1) as other:
        found = other.submit(_task_in, first, "shop.bill")
        assert first_is_in.wait(10)
        assert _task_in(second, "shop.orders") == "shop.orders"
        second_is_made.set()
        assert found.result() == "shop.bill"


def _task_in(envelopes: Envelopes, name: str) -> object:
    return whole(envelopes.plain(LIFE, QUEUE, message(task=name), 0, 1, False))["headers"]["task"]


def test_a_long_payload_is_shown_in_part_and_sent_whole() -> None:
    payload = orjson.dumps("é" * 5000)
    got = plain(message(payload=payload))
    assert len(got["headers"]["argsrepr"]) < SHOWN + 20
    assert got["headers"]["argsrepr"].endswith("…)")
    assert received(got).decode()[0][1] == "é" * 5000


def test_two_queues_and_lives_do_not_share_a_text() -> None:
    first = whole(ENVELOPES.plain("life-1", "q1", message(), 0, 1, False))
    second = whole(ENVELOPES.plain("life-2", "q2", message(), 0, 1, False))
    assert [m["headers"][HEADER_INCARNATION] for m in (first, second)] == ["life-1", "life-2"]
    assert [m["properties"]["delivery_info"]["routing_key"] for m in (first, second)] == ["q1", "q2"]


@pytest.mark.parametrize("queue", [QUEUE, '{s}:g"\\:queue:w@h', "{ü}:g:queue:w1@höst"])
def test_a_queue_name_is_data(queue: str) -> None:
    raw = whole(ENVELOPES.plain(LIFE, queue, message(), 0, 1, False))
    assert raw["properties"]["delivery_info"]["routing_key"] == queue


# -- bundles -------------------------------------------------------------------------------------------------------


@given(
    runs=st.lists(
        st.tuples(TICKETS, st.integers(1, 5), st.booleans(), st.lists(PAYLOADS, min_size=1, max_size=4)),
        min_size=1,
        max_size=4,
    )
)
@example(runs=[('@@ID@@"\\', 1, True, [b'"@@BODY@@"', b'"\\u0000"'])])
def test_a_bundle_is_what_its_runs_were(runs: list[tuple[str, int, bool, list[bytes]]]) -> None:
    # Given runs of several tickets
    sent: list[Run] = []
    at = 0
    for ticket, attempt, doubt, payloads in runs:
        messages = [message(ticket, payload, f"{at + i}-0") for i, payload in enumerate(payloads)]
        sent.append(Run(ticket, at, attempt, doubt, messages))
        at += len(payloads)
    # When they travel in one Celery message
    got = received(bundle(sent))
    # Then the body decodes to each message, in order, and the headers to each run
    assert got.decode() == [
        [ticket, offset, attempt, [[m.id, "shop.update", json.loads(m.payload)] for m in messages]]
        for ticket, offset, attempt, _, messages in sent
    ]
    assert got.headers[HEADER_RUNS] == [
        [ticket, offset, len(messages), attempt, int(doubt)] for ticket, offset, attempt, doubt, messages in sent
    ]
    assert (got.headers["task"], got.headers["retries"]) == (BUNDLE_TASK, 0)
    assert got.headers["id"] == "bundle-0-0"
    assert got.headers["ignore_result"] is True


def test_a_bundle_has_the_limits_that_it_is_given() -> None:
    runs = [Run("T", 0, 1, False, [message()]), Run("U", 1, 1, False, [message("U", id_="6-1")])]
    got = received(bundle(runs, (30.05, 20.05)))
    # As the worker's strategy makes it: the body is for the pool process
    request = Request(
        got, app=APP, task=APP.tasks[BUNDLE_TASK], body=((), {}, {}), headers=got.headers, decoded=True, hostname="w1@h"
    )
    assert request.time_limits == [30.05, 20.05]
    assert request.argsrepr == "2 messages of 2 tickets"
    assert bundle(runs)["headers"]["timelimit"] == [None, None]


def test_bundles_of_other_limits_do_not_share_a_text() -> None:
    runs = [Run("T", 0, 1, False, [message()])]
    limits: list[Limits] = [(1.0, None), (None, 1.0), (1.0, 1.0), (None, None)]
    assert [bundle(runs, one)["headers"]["timelimit"] for one in limits] == [list(one) for one in limits]


def test_a_bundle_may_carry_messages_of_several_tasks() -> None:
    strange = 'shop.ünï "quoted"'
    runs = [Run("T", 0, 1, False, [message(), message(id_="6-0", task=strange)])]
    [[_, _, _, messages]] = received(bundle(runs)).decode()
    assert [name for _, name, _ in messages] == ["shop.update", strange]


def test_a_bundle_without_a_valid_body_is_given_back_by_its_headers() -> None:
    headers = {"task": BUNDLE_TASK, "id": "5-0", HEADER_INCARNATION: "a", HEADER_BASE: 1000}
    for body in ('[["T", {}], {}, {}]', "", "[1]", "null"):
        alone = {"headers": {**headers, HEADER_RUNS: [["T", 3, 1, 1, 0]]}, "body": body}
        assert returned(alone, "a") == [Outcome("5-0", 1003, Kind.RETURNED)]
        several = {"headers": {**headers, HEADER_RUNS: [["T", 3, 2, 1, 0]]}, "body": body}
        assert returned(several, "a") == []
