"""Pushes to a split stream: each message goes to the partition of its ticket, whatever pushes it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bridge.producer.parts import PART_MESSAGES
from bridge.routing.errors import ConfigurationError, PayloadError, ServerUnavailable
from bridge.routing.keys import layout_key
from bridge.routing.layouts import claim_layout, text_of_layout
from bridge.routing.partitions import Layout, partition_of, stream_id, suffix_of
from bridge.stack.embedded import EmbeddedServer
from tests.integration.producer.test_producers import EACH_WAY, STREAM, in_loop, shop_of

P = 4
STREAMS = [f"{STREAM}:p{n}" for n in range(P)]


@pytest.fixture
def shop(server: EmbeddedServer) -> Iterator[Any]:
    task = shop_of(server.url, bridge_partitions=P)
    yield task
    task.app.bridge.client.close()


def entries(server: EmbeddedServer) -> dict[str, tuple[str, str]]:
    """Message id -> (ticket, payload), over all partitions, in the order of each."""
    found = {}
    with server.client(decode_responses=True) as client:
        assert not client.exists(STREAM)
        for n, stream in enumerate(STREAMS):
            page: Any = client.xrange(stream)
            for id_, fields in page:
                assert partition_of(fields["ticket_id"], P) == n
                found[f"{id_}@p{n}"] = (fields["ticket_id"], fields["payload"])
    return found


def in_order(found: dict[str, tuple[str, str]]) -> dict[str, list[str]]:
    """Ticket -> the payloads of its messages."""
    payloads: dict[str, list[str]] = defaultdict(list)
    for ticket, payload in found.values():
        payloads[ticket].append(payload)
    return payloads


@EACH_WAY
def test_each_message_is_in_its_partition_in_the_order_of_its_ticket(
    server: EmbeddedServer, shop: Any, push_many: Callable[..., list[str]]
) -> None:
    count = 2 * PART_MESSAGES + 3
    ids = push_many(shop, ((f"T{n % 7}", n) for n in range(count)))
    found = entries(server)
    assert [found[id_] for id_ in ids] == [(f"T{n % 7}", str(n)) for n in range(count)]
    assert in_order(found) == {f"T{t}": [str(n) for n in range(t, count, 7)] for t in range(7)}
    assert len({suffix_of(id_) for id_ in ids}) == P


def test_one_message_is_in_its_partition(server: EmbeddedServer, shop: Any) -> None:
    ids = [shop.push(f"T{n % 3}", n) for n in range(9)]
    assert [entries(server)[id_] for id_ in ids] == [(f"T{n % 3}", str(n)) for n in range(9)]


#: Each way to push one message.
ONE_MESSAGE: dict[str, Callable[[Any], Any]] = {
    "push": lambda task: task.push("T", 1),
    "key": lambda task: task.push("T", 1, idempotency_key="k"),
    "delay": lambda task: task.push("T", 1, delay=60),
    "push_many": lambda task: task.push_many([("T", 1)]),
    "apush": lambda task: in_loop(task, lambda: task.apush("T", 1)),
    "apush_many": lambda task: in_loop(task, lambda: task.apush_many([("T", 1)])),
}


@pytest.mark.parametrize("way", ONE_MESSAGE)
@pytest.mark.parametrize("partitions", [1, 2])
def test_the_first_message_of_a_new_version_is_in_the_generation_of_the_older_one(
    server: EmbeddedServer, partitions: int, way: str
) -> None:
    # Given a stream that was repartitioned, and a server that knows all scripts
    older = shop_of(server.url)
    for push in ONE_MESSAGE.values():
        push(older)
    older.app.bridge.client.close()
    with server.client(decode_responses=True) as client:
        client.set(layout_key(STREAM), text_of_layout(Layout(partitions, 1, 1)))
        before = set(client.scan_iter())
        # When a producer of the new version is the first to come
        newer = {"bridge_stream": "newer", "bridge_follows": [STREAM], "bridge_partitions": partitions}
        task = shop_of(server.url, **newer)
        ONE_MESSAGE[way](task)
        ONE_MESSAGE["push"](task)
        task.app.bridge.client.close()
        # Then the new stream has the same generation
        made = {key for key in set(client.scan_iter()) - before if client.type(key) == "stream"}
    assert made == {f"newer:g1:p{partition_of('T', partitions)}"}


def test_a_task_of_beats_pushes_once_into_the_partition_of_its_ticket(server: EmbeddedServer, shop: Any) -> None:
    task, ids = shop.app.tasks["bridge.push"], set()
    for _ in range(2):  # as a worker would that gets it twice
        task.push_request(id="one-and-the-same")
        try:
            ids.add(task.run("shop.apply_update", "T42", {"n": 1}))
        finally:
            task.pop_request()
    [id_] = ids
    assert id_.endswith("@p1")
    assert entries(server) == {id_: ("T42", '{"n":1}')}


def test_the_first_producer_stores_the_layout_and_later_pushes_take_one_round_trip(
    server: EmbeddedServer, shop: Any
) -> None:
    with server.client(decode_responses=True) as client:
        shop.push("T", 1)
        text = client.get(layout_key(STREAM))
        assert claim_layout(client, STREAM, 9) == Layout(P, 0, shop.app.bridge.layout.since_ms, text)
        client.config_resetstat()
        shop.push("T", 2)
        stats: Any = client.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 1
    assert stats["cmdstat_get"]["calls"] == 1
    assert stats["cmdstat_xadd"]["calls"] == 1


@EACH_WAY
def test_the_stored_layout_goes_before_the_setting(
    server: EmbeddedServer, push_many: Callable[..., list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    with server.client(decode_responses=True) as client:
        claim_layout(client, STREAM, P)
    for setting in (1, 2):
        task = shop_of(server.url, bridge_partitions=setting)
        with caplog.at_level(logging.WARNING):
            ids = push_many(task, [(f"T{n}", n) for n in range(20)])
        found = entries(server)
        assert [found[id_] for id_ in ids] == [(f"T{n}", str(n)) for n in range(20)]
        said = f"stream ticket_stream has 4 partitions, and bridge_partitions is {setting}: the stream is used as it is"
        assert [said in record.message for record in caplog.records] == [True]
        caplog.clear()
        task.app.bridge.client.close()


def test_a_stream_of_one_partition_that_exists_stays_one(server: EmbeddedServer, shop: Any) -> None:
    alone = shop_of(server.url)
    first = alone.push("T", 1)
    second = shop.push("T", 2)
    with server.client(decode_responses=True) as client:
        page: Any = client.xrange(STREAM)
        assert [id_ for id_, _ in page] == [first, second]
        # Nothing is kept beside a stream that is not split
        assert client.keys("*") == [STREAM]
    assert shop.app.bridge.layout == Layout()
    alone.app.bridge.client.close()


@EACH_WAY
@pytest.mark.parametrize("options", [{}, {"idempotency_key": "k"}], ids=["plain", "once"])
def test_a_layout_that_changes_between_two_parts_moves_the_later_ones(
    server: EmbeddedServer,
    shop: Any,
    push_many: Callable[..., list[str]],
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bridge.producer.parts import Part

    calls: list[Layout] = []
    made = Part.call
    later = '{"partitions":2,"generation":1,"since_ms":5}'

    def call(self: Part, stream: str, layout: Layout, *rest: Any) -> bytes:
        calls.append(layout)
        if len(calls) == 2:
            with server.client() as client:
                client.set(layout_key(STREAM), later)
        return made(self, stream, layout, *rest)

    monkeypatch.setattr(Part, "call", call)
    ids = push_many(shop, [(f"T{n % 5}", n) for n in range(3 * PART_MESSAGES)], **options)
    old, new = ids[:PART_MESSAGES], ids[PART_MESSAGES:]
    assert {suffix_of(id_)[:2] for id_ in old} == {"@p"}
    assert {suffix_of(id_) for id_ in new} == {"@g1p0", "@g1p1"}
    # The refused part is sent again; the last one is sent once.
    assert [layout.partitions for layout in calls] == [4, 4, 2, 2]
    with server.client(decode_responses=True) as client:
        assert sum(client.xlen(f"{STREAM}:g1:p{n}") for n in range(2)) == len(new)
        assert sum(client.xlen(stream) for stream in STREAMS) == len(old)


@EACH_WAY
def test_an_idempotent_push_is_in_once_also_when_the_layout_changed(
    server: EmbeddedServer, shop: Any, push_many: Callable[..., list[str]]
) -> None:
    messages = [(f"T{n % 5}", n) for n in range(PART_MESSAGES + 20)]
    ids = push_many(shop, messages, idempotency_key="k")
    assert push_many(shop, messages, idempotency_key="k") == ids
    with server.client() as client:
        client.set(layout_key(STREAM), '{"partitions":2,"generation":1,"since_ms":5}')
        assert push_many(shop, messages, idempotency_key="k") == ids
        assert not client.exists(f"{STREAM}:g1:p0")
        with pytest.raises(PayloadError, match="other messages were pushed under the idempotency key"):
            push_many(shop, messages[1:], idempotency_key="k")
    assert len(entries(server)) == len(messages)


@EACH_WAY
def test_a_part_is_in_whole_or_not_at_all(
    server: EmbeddedServer, shop: Any, push_many: Callable[..., list[str]]
) -> None:
    with server.client() as client:
        # A partition that is not the first message's is no stream.
        broken = (partition_of("T0", P) + 1) % P
        client.set(STREAMS[broken], "x")
        for options in ({}, {"idempotency_key": "k"}):
            with pytest.raises(ServerUnavailable, match="0 of 20 messages are in"):
                push_many(shop, [(f"T{n}", n) for n in range(20)], **options)
        assert not any(client.exists(stream) for stream in STREAMS if stream != STREAMS[broken])


@EACH_WAY
def test_a_layout_that_somebody_deleted_is_stored_again(
    server: EmbeddedServer, shop: Any, push_many: Callable[..., list[str]]
) -> None:
    ids = push_many(shop, [("T", 1)])
    with server.client() as client:
        client.delete(layout_key(STREAM))
        ids += push_many(shop, [("T", 2)])
        assert client.exists(layout_key(STREAM))
    assert list(entries(server)) == ids


@EACH_WAY
def test_a_layout_of_a_newer_version_is_one_line(
    server: EmbeddedServer, shop: Any, push_many: Callable[..., list[str]]
) -> None:
    with server.client() as client:
        client.set(layout_key(STREAM), '{"shards": 3}')
        with pytest.raises(ConfigurationError, match=r"the layout of stream ticket_stream cannot be read"):
            push_many(shop, [("T", 1)])
        assert client.keys("*") == [layout_key(STREAM).encode()]


def test_ids_are_those_of_the_entries(server: EmbeddedServer, shop: Any) -> None:
    [id_] = shop.push_many([("T42", 1)])
    assert suffix_of(id_) == "@p1"
    with server.client(decode_responses=True) as client:
        page: Any = client.xrange(f"{STREAM}:p1")
    assert [entry for entry, _ in page] == [stream_id(id_)]
