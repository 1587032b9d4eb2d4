"""What the calls of HTTP consumers ask of Redis, and who may make them. The port runs without a master."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bridge.http import serving
from bridge.http.wakes import Wakes
from bridge.routing.keys import LaneKeys
from bridge.routing.records import record, tail
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import wait_until
from tests.integration.http.http_port import app_of, port_of, secret_of, token_file

KEYS = LaneKeys("ticket_stream", "concurrency_stream_group")
FENCE = 1_700_000_000_000_000


def dispatch(redis: Any, incarnation: str, count: int) -> None:
    """Puts messages into the queue of ``h1``, as a leader does."""
    for n in range(count):
        id_ = f"{n + 1}-0"
        headers = {
            "bridge_fence": FENCE + n,
            "bridge_runs": [[f"T{n}", 0, 1, 1, 0]],
            "bridge_incarnation": incarnation,
            "id": id_,
            "task": "shop.apply",
        }
        body = json.dumps([[f"T{n}", {"n": n}], {}, {"chain": None}], separators=(",", ":"))
        redis.lpush(KEYS.queue("h1"), json.dumps({"headers": headers, "body": body}))
        redis.hset(KEYS.tickets, f"T{n}", record(FENCE + n, tail("h1", incarnation, 1, [id_], 0)))


def test_a_receive_and_an_acknowledgement_of_32_messages_are_one_call_each(
    valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def follow_nothing(_app: Any) -> None:
        await asyncio.Event().wait()

    # Beside its calls the port reads the layout each second.
    monkeypatch.setattr(serving, "follow_layout", follow_nothing)
    redis: Any = valkey.client()
    with port_of(app_of(valkey.url)) as port:
        life = port.post("/api/consumers/register", {"name": "h1", "concurrency": 32}).body["incarnation"]
        said = {"consumer": "h1", "incarnation": life}
        path = f"/api/messages/next?consumer=h1&incarnation={life}&max=32"
        # Both scripts are known to the server after this.
        assert port.get(path).body["messages"] == []
        assert port.post(
            "/api/messages/acknowledge", {**said, "message_id": "1-1", "fence": 1, "outcome": "done"}
        ).status
        dispatch(redis, life, 32)

        def calls() -> dict[str, int]:
            found: Any = redis.info("commandstats")
            return {name: found[name]["calls"] for name in found if name in ("cmdstat_evalsha", "cmdstat_get")}

        before = calls()
        messages = port.get(path).body["messages"]
        received = calls()
        assert [message["payload"] for message in messages] == [{"n": n} for n in range(32)]
        assert received["cmdstat_evalsha"] - before["cmdstat_evalsha"] == 1
        items = [
            {**said, "message_id": one["message_id"], "fence": one["fence"], "outcome": "done"} for one in messages
        ]
        results = port.post("/api/messages/acknowledge", items).body["results"]
        assert [result["status"] for result in results] == [200] * 32
        assert calls()["cmdstat_evalsha"] - received["cmdstat_evalsha"] == 1
        assert calls().get("cmdstat_get", 0) == before.get("cmdstat_get", 0)
        [(_, fields)] = [entry for entry in redis.xrange(KEYS.outcomes) if b"o" in entry[1]]
        assert len(json.loads(fields[b"o"])) == 32


def test_a_receive_that_a_later_one_ends_says_what_is_left_of_the_lease_by_then(
    valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It looks at the lease when it begins to wait, and when it ends
    monkeypatch.setattr(Wakes, "look_again_s", lambda *_: 60.0)
    redis: Any = valkey.client()
    with port_of(app_of(valkey.url)) as port, ThreadPoolExecutor(1) as pool:
        life = port.post("/api/consumers/register", {"name": "h1", "concurrency": 1}).body["incarnation"]
        path = f"/api/messages/next?consumer=h1&incarnation={life}"
        assert port.get(path).body["messages"] == []

        def looks() -> int:
            return int(redis.info("commandstats")["cmdstat_evalsha"]["calls"])

        before = looks()
        earlier = pool.submit(port.get, f"{path}&wait=60")
        wait_until(lambda: looks() == before + 2, description="the first receive to wait")
        redis.pexpire(KEYS.lease(life), 1500)
        assert port.get(f"{path}&wait=0.01").status == 200
        answer = earlier.result(20)
        assert (answer.status, answer.body["messages"]) == (200, [])
        assert 0 < answer.body["lease_ms"] <= 1500


def test_a_token_is_for_the_consumers_of_its_subscription(valkey: EmbeddedServer, tmp_path: Path) -> None:
    file = token_file(
        tmp_path,
        {"name": "one", "verbs": ["consume"], "subscriptions": ["one"]},
        {"name": "two", "verbs": ["consume"], "subscriptions": ["two"]},
        {"name": "reader", "verbs": ["read"]},
    )
    conf = {"bridge_subscriptions": {"one": {"task": "shop.apply"}, "two": {"task": "shop.other"}}}
    app = app_of(valkey.url, bridge_default_task=None, **conf)
    with port_of(app, tokens=file) as port:
        body = {"name": "h1", "concurrency": 1, "subscription": "one"}
        assert port.post("/api/consumers/register", body).status == 401
        for name in ("two", "reader"):
            port.token = secret_of(name)
            assert port.post("/api/consumers/register", body).status == 403
        port.token = secret_of("one")
        life = port.post("/api/consumers/register", body).body["incarnation"]
        item = {"consumer": "h1", "incarnation": life, "message_id": "1-1", "fence": 1, "outcome": "done"}
        calls: list[tuple[str, str, Any]] = [
            ("GET", f"/api/messages/next?consumer=h1&incarnation={life}", None),
            ("POST", "/api/consumers/h1/heartbeat", {"incarnation": life}),
            ("POST", "/api/messages/acknowledge", item),
            ("POST", "/api/consumers/h1/leave", {"incarnation": life}),
        ]
        port.token = secret_of("two")
        assert [port.call(method, path, body).status for method, path, body in calls] == [403] * 4
        assert [one["status"] for one in port.post("/api/messages/acknowledge", [item]).body["results"]] == [403]
        port.token = secret_of("one")
        assert [port.call(method, path, body).status for method, path, body in calls] == [200, 200, 404, 200]
