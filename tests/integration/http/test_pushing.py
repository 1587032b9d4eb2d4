"""`POST /api/messages`: what goes into the stream, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.http.bodies import MOST_MEMBERS
from bridge.http.problems import problem_of
from bridge.routing.errors import KeyUsed
from bridge.stack.embedded import EmbeddedServer
from tests.integration.http.http_port import STREAM, Port, app_of, client_of, port_of

EVENT = {
    "specversion": "1.0",
    "id": "e1",
    "source": "/orders",
    "type": "order.paid",
    "partitionkey": "T42",
    "data": {"amount": 3},
}
STRUCTURED = {"Content-Type": "application/cloudevents+json; charset=utf-8"}
BATCHED = {"Content-Type": "application/cloudevents-batch+json"}
MANY_MEMBERS = b", ".join(b'"x%d": 0' % n for n in range(1000))


@pytest.fixture
def valkey(flushed: EmbeddedServer) -> EmbeddedServer:
    return flushed


@pytest.fixture(scope="module")
def kept_port(module_server: EmbeddedServer) -> Iterator[Port]:
    app = app_of(module_server.url, bridge_max_payload=1000, bridge_http_max_body=100_000)
    with port_of(app) as found:
        yield found
    app.bridge.client.close()


@pytest.fixture
def port(kept_port: Port, valkey: EmbeddedServer) -> Port:
    del valkey  # nothing is in it
    return client_of(kept_port)


def entries(server: EmbeddedServer) -> list[tuple[str, dict[str, str]]]:
    with server.client(decode_responses=True) as client:
        found: Any = client.xrange(STREAM)
    return found  # type: ignore[no-any-return]


def test_one_message_and_many_come_into_the_stream_in_order(port: Port, valkey: EmbeddedServer) -> None:
    one = port.post("/api/messages", {"ticket_id": "T42", "payload": {"n": 1.10}})
    many = port.post("/api/messages", [{"ticket_id": n, "payload": [n, "ü"], "task": "shop.other"} for n in range(3)])
    assert (one.status, many.status) == (201, 201)
    found = entries(valkey)
    assert [id_ for id_, _ in found] == [*one.body["message_ids"], *many.body["message_ids"]]
    assert [(fields["ticket_id"], fields["task"], fields["payload"]) for _, fields in found] == [
        ("T42", "shop.apply", '{"n":1.1}'),
        *((str(n), "shop.other", f'[{n},"ü"]') for n in range(3)),
    ]


def test_a_task_of_no_subscription_is_refused(valkey: EmbeddedServer) -> None:
    """Subscriptions with a default task would handle it by that one."""
    app = app_of(valkey.url, bridge_default_task=None, bridge_subscriptions={"one": {"task": "shop.apply"}})
    with port_of(app) as port:
        refused = port.post("/api/messages", {"ticket_id": "T", "task": "shop.other"})
        taken = [port.post("/api/messages", {"ticket_id": "T", **named}) for named in ({}, {"task": "another.apps"})]
    assert (refused.status, "belongs to no subscription" in refused.body["detail"]) == (400, True), refused
    assert [answer.status for answer in taken] == [201, 201]
    assert len(entries(valkey)) == 2
    app.bridge.client.close()


def test_a_large_float_is_no_whole_number(port: Port, valkey: EmbeddedServer) -> None:
    raw = b'{"ticket_id": "T", "payload": [1e300, 100000000000000000000.0, "1234567890123456789"]}'
    assert port.post("/api/messages", raw=raw, headers={"Content-Type": "application/json"}).status == 201
    [(_, fields)] = entries(valkey)
    assert json.loads(fields["payload"]) == [1e300, 1e20, "1234567890123456789"]


def test_a_message_may_be_due_later(port: Port, valkey: EmbeddedServer) -> None:
    with valkey.client() as client:
        now_ms = int(client.time()[0]) * 1000
    later = {"ticket_id": "T", "eta": "2090-01-01T00:00:00+01:00", "hold": True}
    assert port.post("/api/messages", [{"ticket_id": "T", "delay": 30}, later, {"ticket_id": "T"}]).status == 201
    first, second, third = (fields for _, fields in entries(valkey))
    assert 30_000 <= int(first["due"]) - now_ms < 40_000
    assert (second["due"], second["hold"]) == ("3786908400000", "1")
    assert "due" not in third


def test_a_payload_may_have_many_members(port: Port, valkey: EmbeddedServer) -> None:
    members = b", ".join(b'"%d":0' % n for n in range(MOST_MEMBERS + 1))
    raw = b'{"ticket_id": "T", "payload": {' + members + b"}}"
    assert port.post("/api/messages", raw=raw, headers={"Content-Type": "application/json"}).status == 201
    assert len(entries(valkey)) == 1


def test_a_message_may_have_rules_of_its_own(port: Port, valkey: EmbeddedServer) -> None:
    rules = {"max_attempts": 2, "timeout": 1.5, "expires": 60, "priority": 3}
    assert port.post("/api/messages", {"ticket_id": "T", "payload": 1, **rules}).status == 201
    [(_, fields)] = entries(valkey)
    assert {name: fields[name] for name in rules if name != "expires"} == {
        "max_attempts": "2",
        "timeout": "1500",
        "priority": "3",
    }
    assert int(fields["expires"]) > 0


def test_a_push_with_a_key_can_be_sent_again(port: Port, valkey: EmbeddedServer) -> None:
    key = {"Idempotency-Key": "k1"}
    first = port.post("/api/messages", {"ticket_id": "T", "payload": 1}, headers=key)
    again = port.post("/api/messages", {"ticket_id": "T", "payload": 1}, headers=key)
    other = port.post("/api/messages", {"ticket_id": "T", "payload": 2}, headers=key)
    assert (again.status, again.body) == (201, first.body)
    assert other.status == 409
    assert len(entries(valkey)) == 1
    # In whatever words its error is
    assert problem_of(KeyUsed("another text")).status == 409


@pytest.mark.parametrize(
    ("raw", "status", "said"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"\xff", 400, "not JSON"),
        (b"[" * 5000, 400, "not JSON"),
        (b'{"ticket_id": "T", "payload": NaN}', 400, "not JSON"),
        (b'{"ticket_id": "T", "payload": 1e999}', 400, "not JSON"),
        (b'{"ticket_id": "T", "payload": 123456789012345678901}', 400, "does not fit into 64 bits"),
        (b'[{"ticket_id": "T", "payload": [{"a": 1, "a": 1}]}]', 400, "an object with the key 'a' twice"),
        (b'{"ticket_id": "T", "payload": "\\ud800"}', 400, "not JSON"),
        (b'{"payload": 1}', 400, "the message, ticket_id"),
        (b'{"ticket_id": true}', 400, "the message, ticket_id"),
        (b'{"ticket_id": ""}', 400, "1 to 512 bytes"),
        (b'{"ticket_id": "T", "surprise": 1}', 400, "surprise"),
        (b'{"ticket_id": "T", "delay": -1}', 400, "greater than or equal to 0"),
        (b'{"ticket_id": "T", "delay": "3"}', 400, "the message, delay"),
        (b'{"ticket_id": "T", "delay": 3153600001}', 400, "less than or equal"),
        (b'{"ticket_id": "T", "delay": 1, "eta": "2090-01-01T00:00:00Z"}', 400, "give one of them"),
        (b'{"ticket_id": "T", "eta": "2090-01-01T00:00:00"}', 400, "time zone"),
        (b'{"ticket_id": "T", "eta": "1990-01-01T00:00:00Z"}', 400, "is past"),
        (b'{"ticket_id": "T", "eta": "2190-01-01T00:00:00Z"}', 400, "100 years"),
        (b'{"ticket_id": "T", "eta": "soon"}', 400, "eta must be a time"),
        (b'{"ticket_id": "T", "hold": true}', 400, "hold=True needs delay or eta"),
        (b'{"ticket_id": "T", "max_attempts": 0}', 400, "the message, max_attempts"),
        (b'{"ticket_id": "T", "timeout": 0}', 400, "the message, timeout"),
        (b'{"ticket_id": "T", "priority": 10}', 400, "the message, priority"),
        (b'{"ticket_id": "T", "delay": 9, "expires": 5}', 400, "would never begin"),
        (b'{"ticket_id": "T", "task": ""}', 400, "the message, task"),
        (b'[{"ticket_id": "T"}, {"ticket_id": "T", "task": "shop.other"}]', 400, "one task"),
        (b'[{"ticket_id": "T"}, 3]', 400, "message 1"),
        (b'"T"', 400, "the message"),
        (b"[]", 400, "1 to 10,000 messages"),
        (b"[" + b'{"ticket_id":1},' * 10_000 + b'{"ticket_id":1}]', 413, "at most"),
        (b"[" + b"0," * 20_000 + b"0]", 400, "1 to 10,000 messages, not 20,001"),
        (b"[" + b"0," * 9_000 + b"0]", 400, "message 0"),
        (b'{"ticket_id": "T", ' + MANY_MEMBERS + b"}", 400, "1,001 members"),
        (b'[{"ticket_id": "T"}, {"ticket_id": "T", ' + MANY_MEMBERS + b"}]", 400, "1,001 members"),
        (b'[{"ticket_id": "T", "payload": "' + b"x" * 2000 + b'"}]', 400, "bridge_max_payload"),
        (b'{"ticket_id": "T", "payload": ' + b"[" * 300 + b"]" * 300 + b"}", 400, "levels deep"),
        (b'{"ticket_id": "T", "payload": "' + b"x" * 200_000 + b'"}', 413, "100,000 bytes"),
    ],
)
def test_a_malformed_body_is_refused_and_pushes_nothing(
    port: Port, valkey: EmbeddedServer, raw: bytes, status: int, said: str
) -> None:
    answer = port.post("/api/messages", raw=raw, headers={"Content-Type": "application/json"})
    assert (answer.status, said in answer.body["detail"]) == (status, True), answer
    assert entries(valkey) == []


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_body_of_another_media_type_is_refused(port: Port, media_type: str) -> None:
    # A page in a browser can send these to another origin without asking first.
    headers = {"Content-Type": media_type} if media_type else {}
    answer = port.post("/api/messages", raw=b'{"ticket_id": "T"}', headers=headers)
    assert (answer.status, answer.headers["accept"]) == (415, "application/json")


def test_an_event_is_a_message_in_each_mode(port: Port, valkey: EmbeddedServer) -> None:
    structured = port.post("/api/messages", raw=json.dumps(EVENT).encode(), headers=STRUCTURED)
    batch = [{**EVENT, "id": f"b{n}", "partitionkey": f"T{n}"} for n in range(2)]
    batched = port.post("/api/messages?task=shop.other", raw=json.dumps(batch).encode(), headers=BATCHED)
    binary = port.post(
        "/api/messages",
        {"amount": 3},
        headers={
            "ce-specversion": "1.0",
            "ce-id": "x1",
            "ce-source": "/orders",
            "ce-type": "order.paid",
            "ce-partitionkey": "T%C3%BC",
        },
    )
    assert (structured.status, batched.status, binary.status) == (201, 201, 201)
    assert [(fields["ticket_id"], fields["task"], fields["payload"]) for _, fields in entries(valkey)] == [
        ("T42", "shop.apply", '{"amount":3}'),
        ("T0", "shop.other", '{"amount":3}'),
        ("T1", "shop.other", '{"amount":3}'),
        ("Tü", "shop.apply", '{"amount":3}'),
    ]


@pytest.mark.parametrize("ticket", ["T%FF", "%ED%A0%80", "T%C3", "Tü"])
def test_a_ticket_in_a_header_is_utf8(port: Port, valkey: EmbeddedServer, ticket: str) -> None:
    """Else all such tickets would be one, with a replacement character."""
    head = {f"ce-{name}": str(EVENT[name]) for name in ("specversion", "id", "source", "type")}
    answer = port.post("/api/messages", 1, headers={**head, "ce-partitionkey": ticket})
    assert (answer.status, "partitionkey must be UTF-8" in answer.body["detail"]) == (400, True), answer
    assert entries(valkey) == []


def test_an_event_that_comes_again_is_pushed_once(port: Port, valkey: EmbeddedServer) -> None:
    answers = [port.post("/api/messages", raw=json.dumps(EVENT).encode(), headers=STRUCTURED) for _ in range(2)]
    assert answers[0].body == answers[1].body
    changed = json.dumps({**EVENT, "data": 4}).encode()
    assert port.post("/api/messages", raw=changed, headers=STRUCTURED).status == 409
    assert len(entries(valkey)) == 1


@given(batches=st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=4), min_size=1, max_size=5))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_event_that_comes_again_in_another_batch_is_pushed_once(
    port: Port, valkey: EmbeddedServer, batches: list[list[str]]
) -> None:
    source = f"/{uuid4()}"
    ids: dict[str, str] = {}
    before = len(entries(valkey))
    for batch in batches:
        events = [{**EVENT, "source": source, "id": name, "partitionkey": name} for name in batch]
        answer = port.post("/api/messages", raw=json.dumps(events).encode(), headers=BATCHED)
        assert answer.status == 201, answer
        for name, id_ in zip(batch, answer.body["message_ids"], strict=True):
            assert ids.setdefault(name, id_) == id_
    added = entries(valkey)[before:]
    assert [id_ for id_, _ in added] == list(ids.values())
    assert [fields["ticket_id"] for _, fields in added] == list(ids)


@pytest.mark.parametrize("mode", ["structured", "batched", "binary"])
def test_a_key_of_the_request_does_not_change_the_identity_of_an_event(
    port: Port, valkey: EmbeddedServer, mode: str
) -> None:
    source = f"/{uuid4()}"
    before = len(entries(valkey))
    ids = set()
    for key in ({}, {"Idempotency-Key": f"{source} 1"}, {"Idempotency-Key": f"{source} 2"}, {}):
        event = {**EVENT, "source": source}
        if mode == "binary":
            headers = {
                f"ce-{name}": str(event[name]) for name in ("specversion", "id", "source", "type", "partitionkey")
            }
            answer = port.post("/api/messages", EVENT["data"], headers={**headers, **key})
        else:
            raw = json.dumps(event if mode == "structured" else [event]).encode()
            how = STRUCTURED if mode == "structured" else BATCHED
            answer = port.post("/api/messages", raw=raw, headers={**how, **key})
        assert answer.status == 201, answer
        ids.add(tuple(answer.body["message_ids"]))
    assert (len(ids), len(entries(valkey)) - before) == (1, 1)


@pytest.mark.parametrize("character", ["\0", "\n", "\x1f", "\x7f", "\x9f"])
@pytest.mark.parametrize("name", ["id", "source", "type", "partitionkey"])
def test_an_event_with_a_control_character_in_an_attribute_is_refused(port: Port, name: str, character: str) -> None:
    """Two events could be one: a source that ends with what the id of the other one begins with."""
    for text in (f"a{character}b", f"a{character}"):
        answer = port.post("/api/messages", raw=json.dumps({**EVENT, name: text}).encode(), headers=STRUCTURED)
        assert (answer.status, f"the attribute {name} must be" in answer.body["detail"]) == (400, True), answer


def test_a_batch_with_an_event_that_was_other_before_says_what_is_in(port: Port, valkey: EmbeddedServer) -> None:
    first = port.post("/api/messages", raw=json.dumps([EVENT]).encode(), headers=BATCHED)
    events = [{**EVENT, "id": "before"}, {**EVENT, "data": "other"}, {**EVENT, "id": "after"}]
    answer = port.post("/api/messages", raw=json.dumps(events).encode(), headers=BATCHED)
    assert (first.status, answer.status) == (201, 409)
    assert "1 of 3 messages are in, in order, and none after them" in answer.body["detail"]
    assert len(entries(valkey)) == 2


def test_nothing_of_a_batch_is_pushed_when_one_of_its_events_cannot_be(port: Port, valkey: EmbeddedServer) -> None:
    events = [{**EVENT, "id": "good"}, {**EVENT, "id": "bad", "data": "x" * 2000}]
    answer = port.post("/api/messages", raw=json.dumps(events).encode(), headers=BATCHED)
    assert (answer.status, "message 1" in answer.body["detail"]) == (400, True), answer
    assert entries(valkey) == []


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({**EVENT, "specversion": "0.3"}, "specversion"),
        ({**EVENT, "partitionkey": ""}, "partitionkey"),
        ({**EVENT, "partitionkey": 3}, "partitionkey"),
        ({**EVENT, "data_base64": "AA=="}, "data_base64"),
        ({"specversion": "1.0"}, "attribute id"),
        ([EVENT], "must be a JSON object"),
    ],
)
def test_an_event_without_what_it_needs_is_refused(port: Port, event: object, said: str) -> None:
    answer = port.post("/api/messages", raw=json.dumps(event).encode(), headers=STRUCTURED)
    assert (answer.status, said in answer.body["detail"]) == (400, True), answer


def test_while_redis_is_away_a_push_is_told_to_come_again(own_server: EmbeddedServer) -> None:
    app = app_of(own_server.url)
    with port_of(app) as port:
        assert port.post("/api/messages", {"ticket_id": "T"}).status == 201
        own_server.stop()
        answer = port.post("/api/messages", {"ticket_id": "T"})
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        own_server.start()
        assert port.post("/api/messages", {"ticket_id": "T"}).status == 201
    app.bridge.client.close()
