"""Producers: one message, many, with idempotency keys, from asyncio, with Django's commits, from Beat; and their
errors.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Timer
from types import ModuleType, SimpleNamespace
from typing import Any

import orjson
import pytest
from celery import Celery
from hypothesis import given, settings
from hypothesis import strategies as st

import bridge
from bridge.producer.parts import PART_BYTES, PART_MESSAGES, Part
from bridge.routing.errors import PayloadError, ServerUnavailable, Unanswered
from bridge.routing.producing import IDEMPOTENCY_S
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import wait_until
from tests.integration.proxies import Proxy

STREAM = "ticket_stream"


def shop_of(url: str, **conf: Any) -> Any:
    """A task of a new app, on the server at ``url``."""
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.update(conf)
    bridge.install(app)

    def apply_update(self: Any, ticket_id: str, payload: Any) -> None:
        del self, ticket_id, payload

    return app.task(bind=True, name="shop.apply_update", lazy=False, shared=False)(apply_update)


@pytest.fixture
def shop(server: EmbeddedServer) -> Iterator[Any]:
    task = shop_of(server.url)
    yield task
    task.app.bridge.client.close()


def entries(server: EmbeddedServer) -> list[tuple[str, str, str]]:
    """(id, ticket, payload) of each entry in the stream."""
    with server.client(decode_responses=True) as client:
        found: Any = client.xrange(STREAM)
    assert all(fields["task"] == "shop.apply_update" for _, fields in found)
    return [(id_, fields["ticket_id"], fields["payload"]) for id_, fields in found]


def in_loop(task: Any, run: Callable[[], Any]) -> Any:
    """The result of ``run`` in a new event loop. Afterwards no connection is left."""

    async def inside() -> Any:
        try:
            return await run()
        finally:
            await task.app.bridge.aclose()

    return asyncio.run(inside())


#: Ways to push many messages: synchronously, and with asyncio.
WAYS: list[Callable[..., list[str]]] = [
    lambda task, *args, **options: task.push_many(*args, **options),
    lambda task, *args, **options: in_loop(task, lambda: task.apush_many(*args, **options)),
]
WAY_NAMES = ["push_many", "apush_many"]
EACH_WAY = pytest.mark.parametrize("push_many", WAYS, ids=WAY_NAMES)


@EACH_WAY
def test_many_are_in_the_stream_in_their_order_with_the_ids_that_are_returned(
    server: EmbeddedServer, shop: Any, push_many: Callable[..., list[str]]
) -> None:
    count = 2 * PART_MESSAGES + 3
    ids = push_many(shop, ((f"T{n % 7}", {"n": n}) for n in range(count)))
    assert entries(server) == [(id_, f"T{n % 7}", f'{{"n":{n}}}') for n, id_ in enumerate(ids)]
    assert len(ids) == count
    assert push_many(shop, []) == []


@EACH_WAY
def test_a_part_is_bounded_by_bytes_too(server: EmbeddedServer, shop: Any, push_many: Callable[..., list[str]]) -> None:
    with server.client() as client:
        client.config_resetstat()
        ids = push_many(shop, [("T", "x" * (PART_BYTES // 3)) for _ in range(7)])
        stats: Any = client.info("commandstats")
    # Two payloads of a third each fit with their quotes, a third one does not.
    assert stats["cmdstat_evalsha"]["calls"] - stats["cmdstat_evalsha"].get("failed_calls", 0) in (4, 5)
    assert [id_ for id_, _, _ in entries(server)] == ids


@EACH_WAY
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (("", {}), "message 2: ticket_id must have 1 to 512 bytes"),
        (("T", object()), "message 2: the payload cannot be written as JSON"),
        (("T", "x" * 1024 * 1024), "message 2: the payload has"),
        ("T", "message 2 must be a pair"),
        ("T4", "message 2 must be a pair"),
        (b"T4", "message 2 must be a pair"),
        ({"ticket_id": "T", "payload": {}}, "message 2 must be a pair"),
        ({"T", "U"}, "message 2 must be a pair"),
        (("T", {}, 3), "message 2: the options of a message must be a dict"),
        (("T", {}, {}, {}), "message 2 must be a pair"),
        (None, "message 2 must be a pair"),
    ],
    ids=["ticket", "payload", "large", "text", "text of two", "bytes of two", "names", "set", "three", "four", "none"],
)
def test_a_message_that_cannot_be_sent_prevents_the_whole_push(
    server: EmbeddedServer, shop: Any, push_many: Callable[..., list[str]], bad: Any, said: str
) -> None:
    with pytest.raises(PayloadError, match=said) as error:
        push_many(shop, [("A", 1), ("B", 2), bad, ("C", 3)])
    assert "\n" not in str(error.value)
    assert entries(server) == []


@EACH_WAY
def test_a_push_with_a_key_is_in_once_however_often_it_is_tried(
    server: EmbeddedServer, shop: Any, push_many: Callable[..., list[str]]
) -> None:
    messages = [(f"T{n % 3}", n) for n in range(PART_MESSAGES + 2)]
    first = push_many(shop, messages, idempotency_key="order 7: {x}")
    assert push_many(shop, messages, idempotency_key="order 7: {x}") == first
    assert [id_ for id_, _, _ in entries(server)] == first
    # Another key is another push
    assert push_many(shop, messages[:1], idempotency_key="order 8") != first[:1]
    with server.client() as client:
        [kept] = client.scan_iter("*order%208")
        assert IDEMPOTENCY_S - 60 < client.ttl(kept) <= IDEMPOTENCY_S


@EACH_WAY
@pytest.mark.parametrize(
    "other", [[("T", 2)], [("U", 1)], [("T", 1), ("T", 1)], [("T1", None)]], ids=["payload", "ticket", "more", "both"]
)
def test_a_key_that_was_used_for_other_messages_is_refused(
    server: EmbeddedServer, shop: Any, push_many: Callable[..., list[str]], other: list[tuple[str, Any]]
) -> None:
    push_many(shop, [("T", 1)], idempotency_key="k")
    with pytest.raises(PayloadError, match="other messages were pushed under the idempotency key 'k'"):
        push_many(shop, other, idempotency_key="k")
    assert len(entries(server)) == 1


@EACH_WAY
@pytest.mark.parametrize(("first", "then"), [(501, 500), (500, 501), (1001, 500)], ids=["less", "more", "a part"])
def test_a_key_stands_for_all_of_its_messages(
    server: EmbeddedServer, shop: Any, push_many: Callable[..., list[str]], first: int, then: int
) -> None:
    # One push is the beginning of the other, and ends where a part of it ends
    push_many(shop, [("T", n) for n in range(first)], idempotency_key="k")
    with pytest.raises(PayloadError, match="other messages were pushed under the idempotency key 'k'"):
        push_many(shop, [("T", n) for n in range(then)], idempotency_key="k")
    assert len(entries(server)) == first


@EACH_WAY
def test_a_key_that_was_used_for_another_task_is_refused(
    server: EmbeddedServer, shop: Any, push_many: Callable[..., list[str]]
) -> None:
    @shop.app.task(name="shop.other", shared=False)
    def other(ticket_id: str, payload: Any) -> None: ...

    push_many(shop, [("T", 1)], idempotency_key="k")
    with pytest.raises(PayloadError, match="other messages were pushed under the idempotency key 'k'"):
        push_many(other, [("T", 1)], idempotency_key="k")
    assert len(entries(server)) == 1


@pytest.mark.parametrize("key", ["", 7, "x" * 513, "\ud800"], ids=["empty", "number", "long", "no UTF-8"])
def test_a_key_that_is_none_is_refused(server: EmbeddedServer, shop: Any, key: Any) -> None:
    with pytest.raises(PayloadError, match="idempotency_key"):
        shop.push("T", 1, idempotency_key=key)
    assert entries(server) == []


def test_a_single_message_has_the_same_key_in_every_form(server: EmbeddedServer, shop: Any) -> None:
    id_ = shop.push("T", {"a": 1}, idempotency_key="k")
    assert shop.push_many([("T", {"a": 1})], idempotency_key="k") == [id_]
    assert in_loop(shop, lambda: shop.apush("T", {"a": 1}, idempotency_key="k")) == id_
    assert len(entries(server)) == 1


# -- what an error says --------------------------------------------------------------------------------------------


@EACH_WAY
def test_a_server_that_is_not_there_has_nothing(push_many: Callable[..., list[str]]) -> None:
    task = shop_of("redis://127.0.0.1:1/0")
    with pytest.raises(ServerUnavailable, match=r"cannot reach Redis at .*; 0 of 2 messages are in") as error:
        push_many(task, [("T", 1), ("U", 2)])
    assert not isinstance(error.value, Unanswered)
    assert error.value.pushed == ()
    with pytest.raises(ServerUnavailable, match=r"cannot reach Redis at .*; the message is not in"):
        task.push("T", 1)


@EACH_WAY
def test_a_full_server_takes_none(server: EmbeddedServer, shop: Any, push_many: Callable[..., list[str]]) -> None:
    with server.client() as client:
        client.config_set("maxmemory", "1")
        try:
            for options in ({}, {"idempotency_key": "k"}):
                with pytest.raises(ServerUnavailable, match=r"Redis is full: .*none after them") as error:
                    push_many(shop, [("T", 1), ("U", 2)], **options)
                assert not isinstance(error.value, Unanswered)
        finally:
            client.config_set("maxmemory", "0")
    assert entries(server) == []
    assert len(push_many(shop, [("T", 1), ("U", 2)], idempotency_key="k")) == 2


@EACH_WAY
def test_a_stream_that_is_none_is_one_line(
    server: EmbeddedServer, shop: Any, push_many: Callable[..., list[str]]
) -> None:
    with server.client() as client:
        client.set(STREAM, "no stream")
        for options in ({}, {"idempotency_key": "k"}):
            with pytest.raises(ServerUnavailable, match=r"Redis refused: .*WRONGTYPE") as error:
                push_many(shop, [("T", 1)], **options)
            assert "\n" not in str(error.value)
        client.delete(STREAM)
    # The refused push did not use the key
    assert len(push_many(shop, [("T", 1)], idempotency_key="k")) == 1


@EACH_WAY
def test_a_missing_answer_differs_from_a_refusal_and_a_key_resolves_it(
    server: EmbeddedServer, push_many: Callable[..., list[str]]
) -> None:
    with Proxy(server.port) as proxy:
        task = shop_of(f"redis://127.0.0.1:{proxy.port}/0")
        messages = [("T", n) for n in range(3)]
        known = push_many(task, messages[:1], idempotency_key="warm")
        with server.client() as client, closing(task.app.bridge.client):
            client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
            timer = Timer(0.3, proxy.cut)
            timer.start()
            try:
                with pytest.raises(Unanswered, match=r"no answer from Redis .*0 of 3 messages are in.*may be") as error:
                    push_many(task, messages, idempotency_key="k")
            finally:
                timer.join()
                client.execute_command("CLIENT", "UNPAUSE")
        assert error.value.pushed == ()
        ids = push_many(task, messages, idempotency_key="k")
        assert [id_ for id_, _, _ in entries(server)] == known + ids


@EACH_WAY
def test_the_error_of_push_many_names_the_pushed_messages(
    server: EmbeddedServer, push_many: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server becomes full between the first and the second part
    task = shop_of(server.url)
    calls: list[bytes] = []
    made = Part.call

    def call(self: Part, *args: Any) -> bytes:
        calls.append(b"")
        if len(calls) == 2:
            with server.client() as client:
                client.config_set("maxmemory", "1")
        return made(self, *args)

    monkeypatch.setattr(Part, "call", call)
    try:
        with pytest.raises(ServerUnavailable, match=r"500 of 1,200 messages are in, in order, and none after") as error:
            push_many(task, [("T", n) for n in range(1200)])
    finally:
        with server.client() as client:
            client.config_set("maxmemory", "0")
    assert list(error.value.pushed) == [id_ for id_, _, _ in entries(server)]
    assert len(error.value.pushed) == PART_MESSAGES


def test_a_script_flush_is_not_noticed(server: EmbeddedServer, shop: Any) -> None:
    for _ in range(2):
        shop.push_many([("T", 1)])
        in_loop(shop, lambda: shop.apush("T", 1))
        with server.client() as client:
            client.script_flush()
    assert len(entries(server)) == 4


# -- asyncio -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [300, pytest.param(1000, marks=pytest.mark.long)])
def test_many_at_once_share_a_few_connections(server: EmbeddedServer, shop: Any, count: int) -> None:
    most = 0

    async def run() -> list[str]:
        nonlocal most
        found = await asyncio.gather(*(shop.apush(f"T{n}", n) for n in range(count)))
        with server.client() as client:
            most = sum(1 for one in client.client_list() if one["cmd"] in ("evalsha", "evalsha|evalsha"))
        return found

    ids = in_loop(shop, run)
    assert len(set(ids)) == count
    assert len(entries(server)) == count
    assert 1 <= most <= 10


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of asyncio, for what the first loop left open
def test_each_event_loop_has_connections_of_its_own(server: EmbeddedServer, shop: Any) -> None:
    # The first loop ends without closing: what it had must not be used in the second one
    for n in range(2):
        asyncio.run(shop.apush("T", n))
    assert [payload for _, _, payload in entries(server)] == ["0", "1"]


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # as above
@pytest.mark.parametrize("at_once", [1, 3])
def test_loops_that_ended_without_closing_leave_no_connections(server: EmbeddedServer, shop: Any, at_once: int) -> None:
    async def run() -> None:
        await asyncio.gather(*(shop.apush(f"T{n}", n) for n in range(at_once)))

    def connected() -> int:
        with server.client() as client:
            return len(client.client_list())

    open_loop = asyncio.new_event_loop()
    open_loop.run_until_complete(run())
    asyncio.run(run())
    before, files = connected(), len(list(Path("/dev/fd").iterdir()))
    # Nothing here waits for the garbage collector
    gc.disable()
    try:
        for _ in range(50):
            asyncio.run(run())
        assert len(list(Path("/dev/fd").iterdir())) <= files
    finally:
        gc.enable()
    wait_until(lambda: connected() <= before, description="the server to see the ends")
    assert len(shop.app.bridge._async_clients) == 2
    # A loop that only stands still keeps its client
    mine = shop.app.bridge._async_clients[open_loop]
    open_loop.run_until_complete(run())
    assert shop.app.bridge._async_clients[open_loop] is mine
    open_loop.run_until_complete(shop.app.bridge.aclose())
    open_loop.close()


@pytest.mark.parametrize("turns", [1, 2, 3, 5, 8, 50])
def test_a_push_that_is_cancelled_leaves_no_answer_for_the_next_one(
    server: EmbeddedServer, shop: Any, turns: int
) -> None:
    async def run() -> list[str]:
        await shop.apush("T", "first")
        with server.client() as client:
            client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
            pushing = asyncio.create_task(shop.apush("T", "cancelled"))
            for _ in range(turns):  # of the event loop: cancelled at any point of its way
                await asyncio.sleep(0)
            pushing.cancel()
            client.execute_command("CLIENT", "UNPAUSE")
        with suppress(asyncio.CancelledError):  # redis-py may miss it while it looks at a connection
            await pushing
        return [await shop.apush("T", n) for n in range(3)]

    ids = in_loop(shop, run)
    by_id = {id_: payload for id_, _, payload in entries(server)}
    assert [by_id[id_] for id_ in ids] == ["0", "1", "2"]


# -- Django, Beat --------------------------------------------------------------------------------------------------


def test_a_task_of_beats_pushes_once_under_its_own_id(server: EmbeddedServer, shop: Any) -> None:
    task = shop.app.tasks["bridge.push"]
    for _ in range(2):  # as a worker would that gets it twice
        task.push_request(id="one-and-the-same")
        try:
            id_ = task.run("shop.apply_update", "T", {"n": 1})
        finally:
            task.pop_request()
    assert entries(server) == [(id_, "T", '{"n":1}')]


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What Django would call after the commit."""
    found: list[Callable[[], None]] = []
    django: Any = ModuleType("django.db")

    def on_commit(send: Callable[[], None], using: str | None) -> None:
        assert using is None
        found.append(send)

    django.transaction = SimpleNamespace(on_commit=on_commit)
    monkeypatch.setitem(sys.modules, "django", ModuleType("django"))
    monkeypatch.setitem(sys.modules, "django.db", django)
    return found


@pytest.mark.parametrize("key", [7, "", "k" * 513, b"k"])
def test_push_on_commit_refuses_a_key_before_the_commit(key: Any, shop: Any, hooks: list[Callable[[], None]]) -> None:
    with pytest.raises(PayloadError):
        shop.push_on_commit("T", 1, idempotency_key=key)
    assert not hooks


def test_push_on_commit_with_a_key_may_be_repeated_when_its_eta_is_past(
    server: EmbeddedServer, shop: Any, hooks: list[Callable[[], None]]
) -> None:
    past = datetime.now(UTC) - timedelta(seconds=5)
    with pytest.raises(PayloadError, match="is past"):
        shop.push_on_commit("T", 1, eta=past)
    for _ in range(2):
        shop.push_on_commit("T", 1, eta=past, idempotency_key="k")
        hooks.pop()()
    assert len(entries(server)) == 1


def test_without_django_push_on_commit_says_so(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "django.db", None)
    with pytest.raises(bridge.ConfigurationError, match="push_on_commit needs Django"):
        shop.push_on_commit("T", 1)


# -- any messages --------------------------------------------------------------------------------------------------

PAYLOADS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
TICKETS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(messages=st.lists(st.tuples(TICKETS, PAYLOADS), max_size=20), key=st.none() | TICKETS)
def test_the_stream_has_exactly_the_pushed_messages(
    valkey_of_session: EmbeddedServer, messages: list[tuple[str, Any]], key: str | None
) -> None:
    with valkey_of_session.client() as client:
        client.flushall()
    task = shop_of(valkey_of_session.url)
    try:
        ids = task.push_many(messages, idempotency_key=key)
        if key is not None:
            assert task.push_many(messages, idempotency_key=key) == ids
    finally:
        task.app.bridge.client.close()
    found = [(id_, ticket, orjson.loads(payload)) for id_, ticket, payload in entries(valkey_of_session)]
    assert found == [(id_, *message) for id_, message in zip(ids, messages, strict=True)]
