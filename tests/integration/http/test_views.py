"""The read-only views: they say what the commands say with ``--json``, a page at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from bridge.inspect import page
from bridge.routing import records
from bridge.routing.ids import member_of
from bridge.routing.keys import LaneKeys, follows_key
from bridge.routing.partitions import Layout
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import broker_environment
from tests.integration.http.http_port import STREAM, Port, app_of, client_of, port_of, secret_of, token_file
from tests.integration.servers import run_command

GROUP = "concurrency_stream_group"
APP = "tests.apps.counter"
#: A time that has not come.
FAR_MS = 2**50


@pytest.fixture
def valkey(flushed: EmbeddedServer) -> EmbeddedServer:
    return flushed


@pytest.fixture(scope="module")
def kept_port(module_server: EmbeddedServer) -> Iterator[Port]:
    app = app_of(module_server.url)
    with port_of(app) as found:
        yield found
    app.bridge.client.close()


@pytest.fixture
def port(kept_port: Port, valkey: EmbeddedServer) -> Port:
    """A port of an app that is not started: nobody leads, and nobody works."""
    del valkey  # nothing is in it
    return client_of(kept_port)


def letters(server: EmbeddedServer, count: int, keys: LaneKeys) -> None:
    with server.client() as client:
        for n in range(count):
            fields: dict[Any, Any] = {
                "message_id": f"{n}-1",
                "reason": "failed" if n % 2 else "unknown task",
                "ticket_id": f"T{n % 3}",
                "payload": json.dumps({"n": n}),
                "at_ms": n,
            }
            client.xadd(keys.dead, fields, id=f"{n + 1}-0")


def test_a_view_is_what_the_command_prints(port: Port, valkey: EmbeddedServer) -> None:
    port.post("/api/messages", [{"ticket_id": "a/b ü", "payload": n} for n in range(3)])
    with valkey.client() as client:
        client.xgroup_create(STREAM, GROUP, "0")
        client.xreadgroup(GROUP, "master", {STREAM: ">"}, 2)
    letters(valkey, 2, LaneKeys(STREAM, GROUP))
    for path, command in (
        ("/api/tickets/a%2Fb%20%C3%BC", ("ticket", "show", "a/b ü")),
        ("/api/pending?limit=100", ("pending", "--limit", "100")),
        ("/api/dead-letters/1-1", ("dead", "show", "1-1")),
    ):
        answer = port.get(path)
        done = run_command(broker_environment(valkey.url), *command, "--json", app=APP)
        shown = json.loads(done.stdout)
        for document in (answer.body, shown):
            # It names the app of the command. What a ticket keeps is not for callers.
            for name in ("why", "kept_state", "kept_state_error"):
                document.pop(name, None)
            for message in document.get("messages", ()):
                message.pop("idle_ms")
        assert (answer.status, answer.body) == (200, shown), path


def test_status_has_each_subscription(port: Port) -> None:
    port.post("/api/messages", {"ticket_id": "T"})
    answer = port.get("/api/status")
    assert [(one["name"], one["unread"]) for one in answer.body["subscriptions"]] == [(GROUP, 1)]
    # The port does not know how its callers name the app: no command names the default one.
    assert "-A APP " in json.dumps(answer.body)
    assert "-A tasks" not in json.dumps(answer.body)
    [one] = port.get(f"/api/status?subscription={GROUP}").body["subscriptions"]
    assert (one["name"], one["unread"], one["undone"]) == (GROUP, 1, 1)
    assert port.get("/api/status?subscription=other").status == 404


def test_the_commands_of_a_view_name_the_subscription_and_the_version(valkey: EmbeddedServer) -> None:
    subscriptions = {"billing": {"task": "shop.apply"}, "search": {"task": "shop.other"}}
    app = app_of(valkey.url, bridge_subscriptions=subscriptions, bridge_default_task=None, bridge_follows=["old"])
    parked = records.record(records.PARKED, records.tail("", "", 1, [], 1, "why"))
    with port_of(app) as port, valkey.client() as client:
        for stream in ("old", STREAM):
            client.xgroup_create(stream, "search", "0", mkstream=True)
            client.hset(LaneKeys(stream, "search").tickets, "A", parked)
        found = port.get("/api/status").body["problems"]
        assert any("`bridge -A APP ticket list --parked -s search`" in problem for problem in found), found
        assert any("`bridge -A APP ticket list --parked -s search --stream old`" in problem for problem in found), found
        why = port.get("/api/tickets/A?subscription=search").body["why"]
        assert "`bridge -A APP ticket release -s search A`" in why
    app.bridge.client.close()


def test_the_status_names_an_older_version_that_the_app_does_not_name_any_more(valkey: EmbeddedServer) -> None:
    app = app_of(valkey.url)
    with port_of(app) as port, valkey.client() as client:
        client.set(follows_key(STREAM), '["old"]')
        client.xadd("old", {"ticket_id": "A"})
        client.xgroup_create("old", GROUP, "0")
        found = port.get("/api/status").body["problems"]
        assert any(problem.startswith("'old', an older version of") for problem in found), found
    app.bridge.client.close()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/tickets/nobody", 404),
        ("/api/tickets/", 400),
        ("/api/tickets/" + quote("ü" * 300), 400),
        ("/api/dead-letters/1-1", 404),
        ("/api/dead-letters/what", 400),
        ("/api/dead-letters/1-1@p7", 404),
        ("/api/dead-letters?limit=0", 400),
        ("/api/dead-letters?limit=1001", 400),
        ("/api/dead-letters?before=x", 400),
        ("/api/dead-letters?before=0-0", 200),
        ("/api/pending?after=0-0", 200),
        ("/api/pending?after=99999999999999999999999-0", 400),
        ("/api/pending?after=" + "0" * 200, 400),
        (f"/api/pending?after={2**64}-0", 400),
        (f"/api/pending?after={2**64 - 1}-{2**64 - 1}", 200),
        (f"/api/dead-letters?before=0-{2**64}", 400),
        (f"/api/dead-letters?before={2**64 - 1}-0", 200),
        ("/api/pending?idle=nan", 400),
        ("/api/pending?idle=-1", 400),
        ("/api/pending?state=lost", 400),
        ("/api/pending?subscription=other", 404),
        ("/api/pending?ticket=%00%c3%bf", 200),
    ],
)
def test_what_cannot_be_read_is_said(port: Port, path: str, status: int) -> None:
    assert port.get(path).status == status


def test_delayed_messages_are_listed_by_when_they_are_due(port: Port, valkey: EmbeddedServer) -> None:
    keys = LaneKeys(STREAM, GROUP)
    ids = []
    for delay in (300, 100, 200):
        pushed = port.post("/api/messages", {"ticket_id": f"T{delay}", "delay": delay}).body["message_ids"]
        ids += pushed
    with valkey.client() as client:
        client.xgroup_create(STREAM, GROUP, "0")
        for number, id_ in enumerate(ids):
            # As the leader puts it there when it reads the entry.
            client.zadd(keys.delayed, {member_of(id_): number})
    found = port.get("/api/delayed?limit=2").body
    assert [message["ticket_id"] for message in found["messages"]] == ["T300", "T100"]
    assert (found["total"], found["next"]) == (3, f"1:{ids[1]}")
    assert [m["ticket_id"] for m in port.get("/api/delayed?ticket=T200").body["messages"]] == ["T200"]
    assert port.get("/api/delayed?after_ms=2&mode=overtake").body["next"] is None
    assert port.get("/api/delayed?mode=never").status == 400


@pytest.mark.parametrize("generation", [0, 1, 12])
@pytest.mark.parametrize("stream_id", ["1-0", "1763695023117000-3", f"{2**64 - 1}-{2**64 - 1}"])
def test_the_views_take_the_ids_of_all_layouts(port: Port, stream_id: str, generation: int) -> None:
    id_ = stream_id + Layout(4, generation=generation).suffix(3)
    for path in (f"/api/dead-letters/{id_}", f"/api/pending?after={id_}", f"/api/dead-letters?before={id_}"):
        # There is no such partition here, or no such message.
        assert port.get(path).status == 404, path
    assert port.get(f"/api/delayed?after={quote(f'1:{id_}')}").status == 200


@pytest.mark.parametrize(
    "query", ["limit=2", "limit=3&ticket=last", "limit=1&mode=hold", f"limit=2&after_ms={FAR_MS + 7}"]
)
def test_delayed_messages_come_by_page_until_all_were_there_also_those_due_at_one_time(
    port: Port, valkey: EmbeddedServer, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "LOOKED_AT", 4)
    keys = LaneKeys(STREAM, GROUP)
    with valkey.client(decode_responses=True) as client:
        client.xgroup_create(STREAM, GROUP, "0", mkstream=True)
        for number in range(40):
            id_ = client.xadd(STREAM, {"ticket_id": "last" if number > 37 else f"T{number}", "payload": "1"})
            due = FAR_MS + (7 if 3 < number < 30 else number)
            client.zadd(keys.holding if number % 3 == 0 else keys.delayed, {member_of(id_): due})
        expected = set(range(40))
    if "ticket" in query:
        expected = {38, 39}
    elif "hold" in query:
        expected = set(range(0, 40, 3))
    elif "after" in query:
        expected = set(range(4, 40))
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        answer = port.get(f"/api/delayed?{query}{after and f'&after={quote(after)}'}").body
        found += [message["message_id"] for message in answer["messages"]]
        after = answer["next"]
    assert len(found) == len(set(found)) == len(expected)
    dues = [message["due_ms"] for message in port.get("/api/delayed?limit=1000").body["messages"]]
    assert dues == sorted(dues)


def test_dead_letters_come_by_page_until_all_were_there(port: Port, valkey: EmbeddedServer) -> None:
    letters(valkey, 25, LaneKeys(STREAM, GROUP))
    found, path = [], "/api/dead-letters?limit=10&reason=failed"
    after = ""
    for _ in range(10):
        page = port.get(path + after).body
        found += [letter["letter_id"] for letter in page["letters"]]
        if page["next"] is None:
            break
        after = f"&before={page['next']}"
    assert found == [f"{n + 1}-0" for n in range(24, -1, -1) if n % 2]


def test_a_page_over_several_partitions_has_each_letter_once(valkey: EmbeddedServer) -> None:
    app = app_of(valkey.url, bridge_partitions=3)
    for number in range(3):
        # Equal ids in all partitions.
        letters(valkey, 4, LaneKeys(f"{STREAM}:p{number}", GROUP))
    with port_of(app) as port:
        found: list[str] = []
        after = ""
        while True:
            page = port.get(f"/api/dead-letters?limit=5{after}").body
            found += [letter["letter_id"] for letter in page["letters"]]
            if page["next"] is None:
                break
            after = f"&before={page['next']}"
    assert found == [f"{n}-0@p{number}" for n in (4, 3, 2, 1) for number in range(3)]


def test_a_token_sees_its_own_subscriptions_only(valkey: EmbeddedServer, tmp_path: Path) -> None:
    subscriptions = {"billing": {"task": "shop.apply"}, "stock": {"task": "shop.other"}}
    app = app_of(valkey.url, bridge_default_task=None, bridge_subscriptions=subscriptions)
    tokens = token_file(tmp_path, {"name": "r", "verbs": ["read"], "subscriptions": ["billing"]})
    with port_of(app, tokens=tokens) as port:
        assert port.get("/api/status").status == 401
        port.token = secret_of("r")
        assert [one["name"] for one in port.get("/api/status").body["subscriptions"]] == ["billing"]
        assert port.get("/api/pending?subscription=billing").status == 200
        # It does not learn which others there are.
        for name in ("stock", "nothing"):
            assert port.get(f"/api/pending?subscription={name}").status == 403
            assert port.get(f"/api/status?subscription={name}").status == 403
        assert port.get("/api/pending").status == 400
