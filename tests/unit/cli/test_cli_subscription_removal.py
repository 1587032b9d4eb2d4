"""`bridge subscription remove`: what goes with a subscription, what stays, and what stops it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from bridge.routing.ids import member_of
from bridge.routing.keys import LaneKeys, layout_key, newer_key
from bridge.routing.layouts import claim_layout
from bridge.routing.subscribing import unsubscribe
from bridge.stack.embedded import EmbeddedServer
from tests.commands import MASTER, CommandLine, command_line
from tests.unit.cli.subscriptions import SUBSCRIPTIONS, full_lane, pushed, raw, shell_of


@pytest.fixture
def shell(valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with shell_of(valkey, tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def redis(valkey: EmbeddedServer) -> Iterator[Any]:
    with valkey.client(decode_responses=True) as connected:
        yield connected


def test_a_served_subscription_is_not_removed(shell: CommandLine, redis: Any, valkey: EmbeddedServer) -> None:
    lane = full_lane(valkey, redis)
    before = raw(valkey)
    said = shell("subscription", "remove", "billing", "--yes")
    assert said.exit_code == 1
    assert "billing on ticket_stream is led by the master host:1:abc" in said.stderr
    lane.depose()
    said = shell("subscription", "remove", "billing", "--yes")
    assert said.exit_code == 1
    assert "billing on ticket_stream is served by the worker w1@here" in said.stderr
    assert raw(valkey).keys() == before.keys() - {lane.keys.leader.encode()}
    lane.redis.close()


def test_a_removal_says_what_it_drops_and_leaves_no_key(shell: CommandLine, redis: Any, valkey: EmbeddedServer) -> None:
    lane = full_lane(valkey, redis)
    redis.xgroup_create("ticket_stream", "search", "0")
    lane.depose()
    lane.end_lease("w1@here")
    before = raw(valkey)
    said = shell("subscription", "remove", "billing", "--dry-run")
    dropped = "billing on ticket_stream with 3 undone messages (1 unread, 1 in flight, 1 retrying) and 1 dead letter"
    assert said.stdout.strip() == f"would remove {dropped}"
    assert raw(valkey) == before
    said = shell("subscription", "remove", "billing", "--yes")
    assert said.stdout.startswith(f"removed {dropped}; ")
    assert "this app still declares it" in said.stdout
    assert set(redis.scan_iter()) == {"ticket_stream"}
    assert redis.xlen("ticket_stream") == 3
    assert [one["name"] for one in redis.xinfo_groups("ticket_stream")] == ["search"]
    lane.redis.close()


def test_a_removal_says_how_many_delayed_messages_it_drops(
    shell: CommandLine, redis: Any, valkey: EmbeddedServer
) -> None:
    lane = full_lane(valkey, redis)
    lane.depose()
    lane.end_lease("w1@here")
    [overtaken, held] = pushed(redis, 2)
    lane.read()
    far_ms = int(overtaken.partition("-")[0]) + 3_600_000
    lane.redis.xclaim("ticket_stream", "billing", lane.keys.delayed_consumer(MASTER), 0, list[Any]([overtaken]))
    redis.zadd(lane.keys.delayed, {member_of(overtaken): far_ms})
    redis.zadd(lane.keys.holding, {member_of(held): far_ms})
    said = shell("subscription", "remove", "billing", "--dry-run").stdout
    assert "with 4 undone messages (1 waiting, 1 in flight, 1 retrying, 1 delayed), 1 delayed message that" in said
    lane.redis.close()


def test_keys_that_are_left_of_a_group_are_removed_too(shell: CommandLine, redis: Any) -> None:
    redis.set(LaneKeys("ticket_stream", "billing").fence, 7)
    assert shell("subscription", "remove", "billing", "--yes").exit_code == 0
    assert list(redis.scan_iter()) == []


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_removal_deletes_the_states_of_tickets_of_this_subscription_alone(
    valkey: EmbeddedServer, redis: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    monkeypatch.setattr("bridge.operate.subscriptions.PAGE", 3)
    billing, search = LaneKeys("orders", "billing"), LaneKeys("orders", "search")
    versions = {"bridge_stream": "orders:v2", "bridge_follows": ["orders"], "bridge_partitions": partitions}
    settings = {"bridge_subscriptions": SUBSCRIPTIONS, "bridge_app": "shop", "bridge_default_task": None, **versions}
    for n in range(10):
        redis.hset(billing.state(f"T{n}"), "total", "1")
        redis.hset(search.state(f"T{n}"), "total", "1")
    for stream in ("orders", "orders:v2"):
        for one in claim_layout(redis, stream, partitions).streams(stream):
            redis.xgroup_create(one, "billing", "0", mkstream=True)
    redis.set(LaneKeys("orders:v2", "billing").state_home, "orders")
    kept = {search.state(f"T{n}") for n in range(10)}

    def left() -> set[str]:
        return {key for key in redis.scan_iter() if ":state" in key}

    with command_line(tmp_path, monkeypatch, valkey.url, **settings) as shell:
        # As long as a version that was added later has the subscription, its tasks need them
        redis.sadd(newer_key(claim_layout(redis, "orders:v2", 1).stream("orders:v2", 0)), "orders:v3")
        redis.xgroup_create("orders:v3", "billing", "0", mkstream=True)
        before = left()
        said = shell("subscription", "remove", "billing", "--yes")
        assert "states of its tickets stay, if it has any: orders:v3 has this subscription, too" in said.stdout
        assert left() >= before - {LaneKeys("orders:v2", "billing").state_home}
        # And with the last lane they go, also when an earlier removal was ended before it
        redis.delete("orders:v3")
        dry = shell("subscription", "remove", "billing", "--dry-run")
        assert dry.stdout.endswith("and the 10 states of its tickets\n"), dry.stderr
        assert left() >= kept | {billing.state("T0")}
        found = shell.json("subscription", "remove", "billing", "--yes")
        assert found["states"] == 10
        assert left() == kept
        assert shell("subscription", "remove", "billing", "--yes").exit_code == 1


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_removal_that_is_cut_off_anywhere_is_finished_by_the_next_one(
    valkey: EmbeddedServer, redis: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    original: Any = Redis.execute_command
    calls = last = 0

    def cut_off(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == last:
            raise RedisConnectionError("cut off")
        return original(*arguments, **options)

    settings = {"bridge_subscriptions": SUBSCRIPTIONS, "bridge_default_task": None, "bridge_stream": "orders:v2"}
    with command_line(tmp_path, monkeypatch, valkey.url, **settings) as shell:
        while calls >= last:
            redis.flushdb()
            for stream in claim_layout(redis, "orders:v2", partitions).streams("orders:v2"):
                redis.xgroup_create(stream, "billing", "0", mkstream=True)
                redis.set(LaneKeys(stream, "billing").fence, 7)
            # The states are those of a version that was retired
            redis.set(LaneKeys("orders:v2", "billing").state_home, "orders")
            redis.hset(LaneKeys("orders", "billing").state("T"), "total", "1")
            calls, last = 0, last + 1
            with monkeypatch.context() as patched:
                patched.setattr(Redis, "execute_command", cut_off)
                shell("subscription", "remove", "billing", "--yes")
            shell("subscription", "remove", "billing", "--yes")
            assert [key for key in redis.scan_iter() if "billing" in key] == [], last
    assert last > 10


@pytest.mark.parametrize("name", ["depot", None])
def test_only_the_app_that_has_a_subscription_removes_it(
    valkey: EmbeddedServer, redis: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    pushed(redis, 1)
    redis.xgroup_create("ticket_stream", "billing", "0")
    redis.hset(LaneKeys("ticket_stream", "billing").about, mapping={"format": 1, "app": "bakery"})
    before = raw(valkey)
    settings = {"bridge_subscriptions": SUBSCRIPTIONS, "bridge_default_task": None, "bridge_app": name}
    with command_line(tmp_path, monkeypatch, valkey.url, **settings) as shell:
        text = (tmp_path / f"{shell.app}.py").read_text()
        shell.write_app(text.replace('Celery("shop", ', "Celery("))
        said = shell("subscription", "remove", "billing", "--yes")
    assert said.exit_code == 2
    assert f"belongs to the app 'bakery', and this {f'is {name!r}' if name else 'has no name'}: " in said.stderr
    assert raw(valkey) == before


def test_a_removal_that_stops_in_between_says_so(
    shell: CommandLine, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis.set(layout_key("ticket_stream"), '{"partitions":2,"generation":0,"since_ms":1}')
    first, second = (LaneKeys(f"ticket_stream:p{n}", "billing") for n in range(2))
    for keys in (first, second):
        redis.xgroup_create(keys.stream, "billing", "0", mkstream=True)

    def led_meanwhile(*arguments: Any) -> Any:
        if arguments[1].stream == second.stream:
            redis.set(second.leader, "7 m1")
        return unsubscribe(*arguments)

    monkeypatch.setattr("bridge.operate.subscriptions.unsubscribe", led_meanwhile)
    said = shell("subscription", "remove", "billing", "--yes")
    assert said.exit_code == 1
    assert "is led by the master m1" in said.stderr
    assert said.stderr.endswith("; what other lanes have is deleted (1 key): run this again to finish\n")
