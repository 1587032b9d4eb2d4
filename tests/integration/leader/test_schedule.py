"""Recurring messages with real masters: each tick once, whichever master leads, and whatever dies."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

import bridge
from bridge.master.schedule import Schedule
from bridge.routing.keys import LaneKeys, schedule_key
from bridge.routing.ticks import LastTick, field_of, read_ticks
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import MasterNode, NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.operate.test_operators import Shop

APP = """
import os
from celery import Celery
import bridge

app = Celery("shop", broker=os.environ["CELERY_BROKER_URL"])
bridge.install(app)
app.conf.update(
    bridge_default_task="shop.work", bridge_leader_lease=1, bridge_lease=2,
    bridge_schedule=eval(os.environ["SHOP_SCHEDULE"]),
)
app.conf.update(eval(os.environ.get("SHOP_MORE", "{}")))

@app.task(bind=True, name="shop.work", ignore_result=True)
def work(self, ticket_id, payload):
    self.ticket.effects.rpush(f"log:{ticket_id}", payload["at"])

@app.task(bind=True, name="shop.other", ignore_result=True)
def other(self, ticket_id, payload):
    pass
"""
SECOND = {"task": "shop.work", "ticket": ["T1", "T2"], "tick": "at", "every": 1}


class ScheduleShop(Shop):
    """A lane whose app has a schedule."""

    def __init__(self, nodes: NodeYard, server: EmbeddedServer, folder: Path) -> None:
        super().__init__(nodes, server, folder)
        (folder / "shop.py").write_text(APP)

    def led_by(self, name: str, entries: dict[str, Any], **more: Any) -> MasterNode:
        return self.master(name, SHOP_SCHEDULE=repr(entries), SHOP_MORE=repr(more))

    def ticks(self, stream: str = "ticket_stream") -> list[tuple[str, int]]:
        """(ticket, time of the tick) of each message in the stream."""
        found: Any = self.redis.xrange(stream)
        return [(fields["ticket_id"], json.loads(fields["payload"])["at"]) for _, fields in found]

    def stored(self) -> dict[str, LastTick]:
        return read_ticks(self.redis, "ticket_stream", "shop")

    def wait_ticks(self, count: int) -> None:
        wait_until(lambda: len(self.ticks()) >= count, description=f"{count} ticks", timeout_s=90)


def between_ticks(shop: ScheduleShop) -> tuple[int, int]:
    """The server's time in seconds, and an interval: its last tick is late, and its next one comes after the test."""
    time_: Any = shop.redis.time()
    now = int(time_[0])
    return now, next(every for every in range(3600, 7200, 60) if 120 < now % every < every - 600)


@pytest.fixture
def shop(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> Iterator[ScheduleShop]:
    made = ScheduleShop(nodes, own_server, tmp_path)
    yield made
    made.redis.close()


def test_each_tick_is_pushed_once_while_leaders_are_killed(shop: ScheduleShop) -> None:
    seed = int(os.environ.get("SCHEDULE_SEED", random.randrange(1 << 32)))
    print(f"SCHEDULE_SEED={seed}", file=sys.stderr)
    draw = random.Random(seed)
    masters = {f"m{n}": shop.led_by(f"m{n}", {"beat": SECOND}) for n in range(3)}
    shop.wait_ticks(2)
    for _ in range(6):
        # A moment around a tick.
        now = time.time()
        time.sleep(max(0.0, int(now) + 1 - now + draw.uniform(-0.15, 0.15)))
        holder = str(shop.redis.get(shop.keys.leader) or "")
        leading = [name for name, node in masters.items() if f":{node.pid}:" in holder]
        for name in leading:
            masters[name].kill()
            masters[name].wait()
        count = len(shop.ticks())
        shop.wait_ticks(count + 2)
        for name in leading:
            masters[name].start()
    found = Counter(shop.ticks())
    assert [tick for tick, number in found.items() if number > 1] == [], seed
    at = sorted({at for _, at in found})
    assert all(tick % 1000 == 0 for tick in at)
    # Both messages of a tick, or none.
    assert all((ticket, tick) in found for tick in at for ticket in ("T1", "T2")), seed
    # A tick may be missed while nobody leads: at most a leader lease and an election at a time.
    assert at[-1] // 1000 - at[0] // 1000 + 1 - len(at) <= 6 * 3, (seed, at)


def test_of_the_ticks_that_were_missed_the_newest_is_pushed_once(shop: ScheduleShop) -> None:
    now, every = between_ticks(shop)
    entries = {"late": SECOND, "never": {**SECOND, "ticket": "N", "catch_up": False, "every": every}}
    # As a master left it that stopped before the last two ticks.
    before = now // every * every - every
    shop.redis.hset(schedule_key("ticket_stream"), "shop/late", f"{before * 1000} every 1 s")
    shop.redis.hset(schedule_key("ticket_stream"), "shop/never", f"{before * 1000} every {every} s")
    shop.led_by("m1", entries)
    shop.wait_ticks(6)
    found = shop.ticks()
    assert {ticket for ticket, _ in found} == {"T1", "T2"}
    first = min(at for _, at in found)
    assert first >= now * 1000
    assert len(found) == len(set(found))


def test_a_changed_entry_starts_again_and_one_that_is_gone_leaves_nothing(shop: ScheduleShop) -> None:
    key = schedule_key("ticket_stream")
    shop.redis.hset(key, "depot/beat", "5 every 1 s")
    yearly = {**SECOND, "crontab": "0 3 1 1 *", "timezone": "Europe/Berlin"}
    del yearly["every"]
    first = shop.led_by("m1", {"beat": SECOND, "yearly": yearly})
    shop.wait_ticks(2)
    assert set(shop.stored()) == {"beat", "yearly"}
    first.terminate()
    count = len(shop.ticks())
    _, every = between_ticks(shop)
    second = shop.led_by("m2", {"beat": {**SECOND, "every": every}, "damaged": SECOND})
    wait_until(lambda: set(shop.stored()) == {"beat", "damaged"}, description="the entries to be stored")
    wait_until(lambda: shop.stored()["beat"].times == f"every {every} s", description="the new times")
    assert [at for ticket, at in shop.ticks()[count:] if at % (every * 1000) == 0] == []
    second.terminate()
    shop.led_by("m3", {})
    wait_until(lambda: shop.stored() == {}, description="all entries to be forgotten")
    assert shop.redis.hgetall(key) == {"depot/beat": "5 every 1 s"}, "what another app has"


def test_what_is_stored_may_be_damaged_or_of_a_clock_that_was_wrong(shop: ScheduleShop) -> None:
    key = schedule_key("ticket_stream")
    shop.redis.hset(key, "shop/damaged", "what")
    ahead = (int(time.time()) + 86_400) * 1000
    shop.redis.hset(key, "shop/ahead", f"{ahead} every 1 s")
    master = shop.led_by("m1", {"damaged": SECOND, "ahead": {**SECOND, "ticket": "A"}})
    wait_until(lambda: {ticket for ticket, _ in shop.ticks()} == {"T1", "T2", "A"}, description="both to tick")
    assert all(last.at_ms < ahead for last in shop.stored().values())
    assert "the server's clock was set back far: the entry ahead" in master.logs()


def test_a_running_leader_starts_an_entry_again_when_the_clock_is_put_right(own_server: EmbeddedServer) -> None:
    # Given a leader that runs since the clock was a day ahead, when an entry ticked. The server makes another one wait
    app: Any = Celery("shop", broker=own_server.url, set_as_current=False)
    bridge.install(app)
    app.conf.bridge_schedule = dict.fromkeys(("beat", "new"), SECOND)

    @app.task(bind=True, name="shop.work")
    def work(self: Any, ticket_id: str, payload: Any) -> None:
        pass

    keys = LaneKeys("ticket_stream", "concurrency_stream_group")
    right_ms = int(time.time()) * 1000
    clock = SimpleNamespace(ms=right_ms + 86_400_000)
    redis = own_server.client(decode_responses=True)
    redis.set(keys.leader, "1 a")
    redis.hset(schedule_key("ticket_stream"), field_of("shop", "beat"), f"{clock.ms} every 1 s")
    lane: Any = SimpleNamespace(keys=keys, leading=True, clock=SimpleNamespace(server_ms=lambda: clock.ms))
    lane.election = SimpleNamespace(leads=lambda: True, token="1 a")
    schedule = Schedule(app, [lane], [keys.leader])
    schedule._turn(redis)
    assert schedule._places["new"].next_ms > clock.ms
    # When the clock is put right
    clock.ms = right_ms
    schedule._turn(redis)
    # Then both begin now
    stored = read_ticks(redis, "ticket_stream", "shop")
    assert [stored[name].at_ms for name in ("beat", "new")] == [right_ms] * 2
    clock.ms += 10
    assert 0 < schedule._turn(redis) <= 1
    # A step back that is shorter than the interval begins nothing again
    clock.ms -= 500
    schedule._turn(redis)
    assert read_ticks(redis, "ticket_stream", "shop") == stored
    redis.close()


#: What somebody may have written by hand, as the text of an entry.
DAMAGED = [
    *(b"\xff", b"1 \xff", b"1 every 1 s\xff", b"", b"x", b"1", b"01 every 1 s", b"1  every 1 s", b"-1 every 1 s"),
    *(b"99999999999999 every 1 s", b"999999999999999 every 1 s", b"99999999999999999 every 1 s", b"9" * 30),
    *(b"99999999999999 crontab 0 3 1 1 * UTC", b"999999999999999 crontab 0 3 1 1 * UTC"),
]


def test_whatever_is_stored_all_entries_of_an_app_begin(own_server: EmbeddedServer) -> None:
    app: Any = Celery("shop", broker=own_server.url, set_as_current=False)
    bridge.install(app)
    yearly = {"task": "shop.work", "ticket": "T", "crontab": "0 3 1 1 *", "timezone": "UTC"}
    names = [f"e{n}" for n in range(len(DAMAGED))]
    app.conf.bridge_schedule = {
        name: yearly if b"crontab" in stored else SECOND for name, stored in zip(names, DAMAGED, strict=True)
    }

    @app.task(bind=True, name="shop.work")
    def work(self: Any, ticket_id: str, payload: Any) -> None:
        pass

    keys = LaneKeys("ticket_stream", "concurrency_stream_group")
    redis = own_server.client()
    redis.set(keys.leader, "1 a")
    key, now_ms = schedule_key("ticket_stream"), int(time.time()) * 1000
    redis.hset(key, mapping=dict(zip((field_of("shop", name) for name in names), DAMAGED, strict=True)))
    # And fields that no app has
    redis.hset(key, mapping={b"\xff": b"1 every 1 s", b"shop/\xff": b"1 every 1 s", b"shop": b"1"})
    lane: Any = SimpleNamespace(keys=keys, leading=True, clock=SimpleNamespace(server_ms=lambda: now_ms))
    lane.election = SimpleNamespace(leads=lambda: True, token="1 a")
    schedule = Schedule(app, [lane], [keys.leader])
    turns = [schedule._turn(redis) for _ in range(4)]
    # Then each begins after a few turns, and nothing is asked without a pause
    assert turns[-1] > 0
    stored = read_ticks(redis, "ticket_stream", "shop")
    assert {name: stored[name].at_ms for name in names} == dict.fromkeys(names, now_ms)
    redis.close()


def test_one_of_several_leaders_pushes_and_the_next_takes_over(shop: ScheduleShop) -> None:
    subscriptions = {"a": {"task": "shop.work"}, "b": {"task": "shop.other"}}
    more = {"bridge_subscriptions": subscriptions, "bridge_partitions": 2, "bridge_default_task": None}
    masters = [shop.led_by(f"m{n}", {"beat": SECOND}, **more) for n in range(2)]

    def ticks() -> list[tuple[str, int]]:
        return [one for number in range(2) for one in shop.ticks(f"ticket_stream:p{number}")]

    wait_until(lambda: len(ticks()) >= 6, description="three ticks", timeout_s=90)
    masters[0].kill()
    masters[0].wait()
    count = len(ticks())
    wait_until(lambda: len(ticks()) >= count + 4, description="two more", timeout_s=90)
    assert [one for one, number in Counter(ticks()).items() if number > 1] == []


def test_a_master_without_entries_waits_until_it_may_forget_them(own_server: EmbeddedServer) -> None:
    # Given a master that leads the second lane, and one of before the deploy that leads the first one
    app = Celery("shop", broker=own_server.url, set_as_current=False)
    bridge.install(app)
    redis = own_server.client(decode_responses=True)
    first, second = LaneKeys("ticket_stream", "a"), LaneKeys("ticket_stream", "b")
    for keys, token in ((first, "5 old"), (second, "7 new")):
        redis.set(keys.leader, token)
    redis.hset(schedule_key("ticket_stream"), field_of("shop", "beat"), "5 every 1 s")
    lane: Any = SimpleNamespace(keys=second, leading=True, clock=SimpleNamespace(server_ms=lambda: 6))
    lane.election = SimpleNamespace(leads=lambda: True, token="7 new")
    schedule = Schedule(app, [lane], [first.leader, second.leader])
    redis.config_resetstat()
    schedule.start()
    wait_until(lambda: "cmdstat_evalsha" in redis.info("commandstats"), description="it to ask")
    assert read_ticks(redis, "ticket_stream", "shop")
    # When the other one ends
    redis.delete(first.leader)
    # Then nothing is left, and nobody looks any more
    schedule.join(30)
    assert read_ticks(redis, "ticket_stream", "shop") == {}
    redis.close()


def test_messages_of_a_tick_are_handled_like_others(shop: ScheduleShop) -> None:
    shop.led_by("m1", {"beat": SECOND})
    shop.worker("w1", SHOP_SCHEDULE=repr({"beat": SECOND}))
    wait_until(lambda: len(shop.log("T1")) >= 3, description="three ticks to be handled", timeout_s=90)
    log = shop.log("T1")
    assert log == sorted(set(log))


def test_the_list_and_bad_input(shop: ScheduleShop, monkeypatch: pytest.MonkeyPatch) -> None:
    hourly = {**SECOND, "every": 3600}
    monkeypatch.setenv("SHOP_SCHEDULE", repr({"beat": SECOND, "hourly": hourly}))
    before = shop.json("schedule", "list")["entries"]
    assert [(one["name"], one["last_ms"]) for one in before] == [("beat", None), ("hourly", None)]
    shop.led_by("m1", {"beat": SECOND, "hourly": hourly})
    shop.wait_ticks(2)
    beat, _ = shop.json("schedule", "list")["entries"]
    assert (beat["name"], beat["times"], beat["tickets"]) == ("beat", "every 1 s", 2)
    assert beat["last_ms"] % 1000 == 0
    assert beat["next_ms"] - beat["last_ms"] == 1000
    shown = shop.bridge("schedule", "list")
    assert "every 3600 s" in shown
    assert shop.json("status")["schedule"] == 2
    assert "2 recurring messages (`bridge -A shop schedule list`)" in shop.bridge("status")
    monkeypatch.setenv("SHOP_SCHEDULE", repr({"beat": {**SECOND, "task": "shop.wrok"}}))
    said = shop.bridge("run", code=2)
    assert said == "Error: bridge_schedule.beat: the app has no task 'shop.wrok'; did you mean shop.work?\n"
    monkeypatch.setenv("SHOP_SCHEDULE", repr({"beat": {**SECOND, "every": -1}}))
    assert "bridge_schedule.beat.every" in shop.bridge("run", code=2)
    monkeypatch.setenv("SHOP_SCHEDULE", "{}")
    assert shop.bridge("schedule", "list") == "the app has no bridge_schedule\n"


def test_between_two_ticks_nothing_is_asked(shop: ScheduleShop) -> None:
    shop.led_by("m1", {"hourly": {**SECOND, "every": 86_400 * 300}})
    wait_until(shop.stored, description="the entry to begin")
    # A look at the idle time is no use of the key.
    idle_s: Any = lambda: shop.redis.object("idletime", schedule_key("ticket_stream"))  # noqa: E731
    wait_until(lambda: idle_s() >= 4, description="nobody to ask for 4 s")
