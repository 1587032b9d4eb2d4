"""Several logical consumers of one stream: each gets each message that it wants, once, in order, by its own tasks."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

import pytest

from bridge.routing.history import What, read_entry
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard, broker_environment
from bridge.testing.waiting import wait_until
from tests.integration.subscriptions import NAMES, Subscriptions


@pytest.fixture
def lanes(nodes: NodeYard, own_server: EmbeddedServer) -> Subscriptions:
    return Subscriptions(nodes, own_server)


def test_each_subscription_gets_each_message_that_it_wants_by_its_own_task(lanes: Subscriptions) -> None:
    lanes.worker("w1")
    master = lanes.master("m1")
    kinds = ("created", "read", "changed")
    for n in range(30):
        lanes.push(f"T{n % 3}", n, task="billing.refund" if n % 10 == 9 else "", kind=kinds[n % 5 % 3])
    lanes.push("T0", 30, task="trail.note", kind="read")

    wanted = [n for n in range(30) if kinds[n % 5 % 3] != "read"]
    lanes.wait(billing=31, search=len(wanted), trail=1)

    for t in range(3):
        mine = [n for n in range(31) if n % 3 == t]
        assert lanes.log("billing", f"T{t}") == [-n if n % 10 == 9 else n for n in mine]
        assert lanes.log("search", f"T{t}") == [n for n in mine if n in wanted]
    assert lanes.log("trail", "T0") == [30]
    # The last two are left out, and no later message says that they were read.
    wait_until(lambda: lanes.count("search", "left_out") == 31 - len(wanted), description="what search leaves out")
    wait_until(lambda: lanes.count("trail", "left_out") == 30, description="what trail leaves out")
    for name in NAMES:
        assert f"bridge.leader.takeover.rebuild] [{name} on ticket_stream] read the lane" in master.logs()


def test_a_filter_sees_the_fields_of_a_message_with_large_ones_beside_them(lanes: Subscriptions) -> None:
    large = {"ticket_id": "T", "payload": json.dumps({"n": 1}), "kind": "changed", "image": "x" * (3 * 1024 * 1024)}
    lanes.redis.xadd("ticket_stream", large)
    lanes.worker("w1")
    lanes.master("m1")
    lanes.wait(billing=1, search=1)
    assert lanes.log("search", "T") == [1]


def test_the_printed_permissions_are_those_for_all_subscriptions(
    lanes: Subscriptions, own_server: EmbeddedServer
) -> None:
    urls = {}
    for role, more in (("master", ()), ("worker", tuple(f"--own-keys={name}:*" for name in NAMES))):
        printed = lanes.bridge("acl", role, *more).stdout.split()
        lanes.redis.execute_command(*printed, ">secret")
        urls[role] = own_server.url.replace("redis://", f"redis://bridge-{role}:secret@")
    lanes.worker("w1", **broker_environment(urls["worker"]))
    lanes.master("m1", **broker_environment(urls["master"]))
    for n in range(10):
        lanes.push("T", n, kind="created")
    lanes.wait(billing=10, search=10)
    assert lanes.log("billing", "T") == lanes.log("search", "T") == list(range(10))


def test_a_failing_subscription_holds_no_other_back(lanes: Subscriptions) -> None:
    lanes.worker("w1")
    lanes.master("m1")
    lanes.push("T", 1, kind="created", billing={"fail": 9})
    lanes.push("T", 2, kind="created")
    lanes.wait(billing=1, search=2)
    assert lanes.log("billing", "T") == [2]
    assert lanes.log("search", "T") == [1, 2]
    assert lanes.redis.xlen(lanes.keys["billing"].dead) == 1
    assert lanes.redis.xlen(lanes.keys["search"].dead) == 0


def test_fleets_apart_and_nothing_is_missed_while_one_is_away(lanes: Subscriptions) -> None:
    lanes.worker("w1", BRIDGE_SERVE="billing")
    lanes.master("m1")
    for n in range(5):
        lanes.push("T", n, kind="created")
    lanes.wait(billing=5)
    assert lanes.log("search", "T") == []
    assert lanes.redis.xlen("ticket_stream") == 5
    lanes.worker("w2", BRIDGE_SERVE="search,trail")
    lanes.wait(search=5)
    assert lanes.log("search", "T") == list(range(5))


def test_a_result_is_that_of_the_first_subscription_with_results_and_others_are_reached_by_name(
    lanes: Subscriptions, own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes.worker("w1", CELERY_RESULT_BACKEND=own_server.url)
    lanes.master("m1")
    id_ = lanes.push("T", 7, kind="created")
    lanes.wait(billing=1, search=1)
    monkeypatch.setitem(os.environ, "SUBSCRIBERS_CONF", "{}")
    from bridge.app.results import result_of
    from tests.apps.subscribers import app

    app.conf.update(broker_url=own_server.url, result_backend=own_server.url)
    assert app.AsyncResult(id_).get(timeout=60) == "billed 7"
    assert result_of(app, id_, "search").get(timeout=60) == "indexed 7"


def test_a_master_makes_the_groups_of_all_its_lanes_before_it_leads_one(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bridge.master.process import Master
    from tests.apps.subscribers import app

    monkeypatch.setitem(app.conf, "broker_url", own_server.url)
    monkeypatch.delitem(app.bridge.__dict__, "settings", raising=False)
    Master(app, lambda _line: None)
    monkeypatch.delitem(app.bridge.__dict__, "settings", raising=False)
    with own_server.client(decode_responses=True) as redis:
        groups = {one["name"]: one["last-delivered-id"] for one in redis.xinfo_groups("ticket_stream")}
        assert groups == dict.fromkeys(NAMES, "0-0")


def test_the_threads_of_several_lanes_do_not_keep_the_interpreter_from_each_other(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bridge.master.process import SWITCH_S, Master
    from tests.apps.subscribers import app

    monkeypatch.setitem(app.conf, "broker_url", own_server.url)
    monkeypatch.delitem(app.bridge.__dict__, "settings", raising=False)
    before = sys.getswitchinterval()
    # Another test of this process may have had a master, or a port.
    sys.setswitchinterval(0.005)
    try:
        master = Master(app, lambda _line: None)
        master.stop()
        # Not in the main thread, whose signals are the test's
        thread = threading.Thread(target=master.run)
        thread.start()
        thread.join(10)
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    finally:
        sys.setswitchinterval(before)
        monkeypatch.delitem(app.bridge.__dict__, "settings", raising=False)


def limited(**limit: Any) -> str:
    """`SUBSCRIBERS_CONF` with a limit for the lag of search."""
    names = {"billing": {"task": "billing.apply"}, "search": {"task": "search.index", "max_lag": limit}, "trail": {}}
    return json.dumps({"bridge_subscriptions": names})


# A limit in bytes is also in `test_of_a_flood_little_is_read_ahead`.
@pytest.mark.parametrize("limit", [{"count": 40}, pytest.param({"bytes": 200_000}, marks=pytest.mark.long)], ids=str)
def test_a_subscription_beyond_its_lag_skips_its_oldest_unread_and_hurts_no_other(
    lanes: Subscriptions, limit: dict[str, Any]
) -> None:
    conf = limited(**limit)
    lanes.worker("w1", BRIDGE_SERVE="billing,trail", SUBSCRIBERS_CONF=conf)
    master = lanes.master("m1", SUBSCRIBERS_CONF=conf)
    for n in range(200):
        lanes.push(f"T{n % 5}", n, pad="x" * 4000)
    wait_until(lambda: lanes.count("billing") == 200, timeout_s=180, description="billing")
    # Nobody serves search. It keeps the first that its leader has read ahead, and the newest
    wait_until(lambda: lanes.count("search", "skipped") >= 130, timeout_s=90, description="a gap")
    wait_until(
        lambda: "count" not in limit or lanes.count("search", "skipped") == 160,
        timeout_s=90,
        description="the whole gap",
    )
    if "count" in limit:
        # The last line about it has them all.
        wait_until(lambda: "skipped 160 messages in this term" in master.logs(), timeout_s=180, description="the line")
    lanes.worker("w2", BRIDGE_SERVE="search", SUBSCRIBERS_CONF=conf)
    # The bytes of an entry are estimated, so more may be skipped later
    wait_until(
        lambda: lanes.count("search") + lanes.count("search", "skipped") == 200, timeout_s=180, description="the end"
    )
    if "count" in limit:
        assert lanes.count("search") == 40
    # Each ticket in its order, and the newest message of all is kept
    for t in range(5):
        done = lanes.log("search", f"T{t}")
        assert done == sorted(done)
        assert lanes.log("billing", f"T{t}") == [n for n in range(200) if n % 5 == t]
    assert lanes.log("search", "T4")[-1] == 199
    # The history has a row for each
    history = lanes.redis.xrange(lanes.keys["search"].history)
    rows = [one.what for id_, fields in history for one in read_entry(id_, fields["d"])]
    assert rows.count(What.SKIPPED) == lanes.count("search", "skipped")
    audit = lanes.bridge("audit", "-s", "search", "--json", SUBSCRIBERS_CONF=conf)
    assert audit.returncode == 0, audit.stdout
    wait_until(lambda: lanes.redis.xlen("ticket_stream") == 0, timeout_s=180, description="an empty stream")


def test_messages_that_were_trimmed_unread_do_not_count(lanes: Subscriptions) -> None:
    """If they did, messages within the limit were skipped in their place."""
    conf = limited(count=40, bytes=1_000_000)
    # Given a lane that has read some messages before, and has neither masters nor workers now
    nodes = [lanes.worker("w1", SUBSCRIBERS_CONF=conf), lanes.master("m1", SUBSCRIBERS_CONF=conf)]
    lanes.push("S", 0)
    lanes.wait(billing=1, search=1)
    for node in nodes:
        node.terminate()
    for n in range(60):
        lanes.push("T", n)
    lanes.redis.xtrim("ticket_stream", 30, approximate=False)
    # When a leader has read what it may read ahead, and compares the lane with its limit
    lanes.master("m2", SUBSCRIBERS_CONF=conf)
    wait_until(lambda: lanes.redis.xpending("ticket_stream", "search")["pending"] == 20, description="a read")
    looks = lanes.looks() + 2
    wait_until(lambda: lanes.looks() >= looks, description="looks")
    lanes.worker("w2", SUBSCRIBERS_CONF=conf)
    # Then it skips nothing
    wait_until(
        lambda: lanes.count("search") + lanes.count("search", "skipped") == 31, timeout_s=90, description="the end"
    )
    assert lanes.log("search", "T") == list(range(30, 60))


def test_messages_that_became_too_old_unread_are_skipped(lanes: Subscriptions) -> None:
    conf = limited(age=2)
    lanes.worker("w1", BRIDGE_SERVE="billing,trail", SUBSCRIBERS_CONF=conf)
    lanes.master("m1", SUBSCRIBERS_CONF=conf)
    lanes.push("T", 0)
    # Half of the age is enough for the leader to read nothing more. It looks once a second, or later where it is slow.
    wait_until(lambda: lanes.oldest_s("search") > 4, description="an old message that was read")
    for n in range(1, 30):
        lanes.push("T", n)
    wait_until(lambda: lanes.count("search", "skipped") == 29, description="a gap")
    lanes.wait(billing=30)
    lanes.worker("w2", BRIDGE_SERVE="search", SUBSCRIBERS_CONF=conf)
    lanes.wait(search=1)
    # Until its next look the leader reads nothing. If that is late, the message is too old by then: another one.
    newest = 29
    while lanes.count("search") == 1 and newest < 40:
        newest += 1
        lanes.push("T", newest)
        ended = newest + 1
        wait_until(
            lambda ended=ended: lanes.count("search") + lanes.count("search", "skipped") == ended,  # type: ignore[misc]
            description="a message that is read again",
        )
    assert lanes.log("search", "T") == [0, newest]


@pytest.mark.parametrize("stands", ["retried", "parked"])
@pytest.mark.parametrize("limit", [{"count": 40}, {"count": 40, "then": "park"}, {"age": 2}], ids=str)
def test_a_ticket_that_stands_still_keeps_no_other_from_being_read(
    lanes: Subscriptions, limit: dict[str, Any], stands: str
) -> None:
    conf = limited(**limit)
    lanes.worker("w1", SUBSCRIBERS_CONF=conf)
    lanes.master("m1", SUBSCRIBERS_CONF=conf)
    # Given a ticket that stands still, with more messages than may be read ahead, or with older ones
    if stands == "parked":
        parked = lanes.bridge("ticket", "park", "S", "-s", "search", SUBSCRIBERS_CONF=conf)
        assert parked.returncode == 0, parked.stderr
    for n in range(31):
        lanes.push("S", n, kind="created", search={"fail": 9})
    wait_until(
        lambda: lanes.redis.xpending("ticket_stream", "search")["pending"] == 31, description="what stands still"
    )
    wait_until(lambda: "age" not in limit or lanes.oldest_s("search") > 4, description="its age")
    # Then all others are handled
    for n in range(30):
        lanes.push(f"T{n}", n, kind="created")
    lanes.wait(search=30)
    assert lanes.count("search", "skipped") == 0
    assert lanes.log("search", "S") == []


@pytest.mark.parametrize(("limit", "skipped"), [({"bytes": 200_000}, 900), ({"age": 2}, 400)], ids=str)
def test_of_a_flood_little_is_read_ahead(lanes: Subscriptions, limit: dict[str, Any], skipped: int) -> None:
    conf = limited(**limit)
    lanes.master("m1", SUBSCRIBERS_CONF=conf)
    # The leader is idle when the flood comes, and knows neither how large messages are nor how fast they end.
    wait_until(lambda: bool(lanes.redis.exists(lanes.keys["search"].leader)), description="a leader")
    with lanes.redis.pipeline() as pipe:
        for n in range(1000):
            payload = json.dumps({"n": n, "kind": "created", "pad": "x" * 4000})
            pipe.xadd("ticket_stream", {"ticket_id": f"T{n}", "payload": payload})
        pipe.execute()
    wait_until(lambda: lanes.count("search", "skipped") >= skipped, timeout_s=90, description="a gap")


def test_a_parked_subscription_reads_nothing_until_its_limit_is_raised(lanes: Subscriptions) -> None:
    conf = limited(count=50, then="park")
    lanes.worker("w1", SUBSCRIBERS_CONF=conf)
    for n in range(100):
        lanes.push("T", n)
    master = lanes.master("m1", SUBSCRIBERS_CONF=conf)
    lanes.wait(billing=100)
    wait_until(lambda: "nothing new is read until" in master.logs(), description="a line about it")
    lanes.push("T", 100)
    lanes.wait(billing=101)
    assert (lanes.count("search"), lanes.count("search", "skipped"), lanes.oldest_s("search")) == (0, 0, 0)
    master.terminate()
    lanes.master("m2", SUBSCRIBERS_CONF=limited(count=1000, then="park"))
    lanes.wait(search=101)
    assert lanes.log("search", "T") == list(range(101))


def test_a_subscription_that_parks_under_a_flood_handles_what_it_read_and_stays_parked(lanes: Subscriptions) -> None:
    conf = limited(count=10, then="park")
    master = lanes.master("m1", SUBSCRIBERS_CONF=conf)
    wait_until(lambda: bool(lanes.redis.exists(lanes.keys["search"].leader)), description="an idle leader")
    for n in range(60):
        lanes.push("T", n)
    wait_until(lambda: "nothing new is read until" in master.logs(), description="a line about it")
    lanes.worker("w1", SUBSCRIBERS_CONF=conf)
    lanes.wait(billing=60)
    # At most half of the limit had been read; nothing by a leader that came after the flood.
    wait_until(lambda: lanes.redis.xpending("ticket_stream", "search")["pending"] == 0, description="nothing read left")
    read = lanes.count("search")
    assert read <= 5
    lanes.push("T", 60)
    lanes.wait(billing=61)
    assert lanes.count("search") == read
    master.terminate()
    lanes.master("m2", SUBSCRIBERS_CONF=limited(count=1000, then="park"))
    lanes.wait(search=61)
    assert lanes.log("search", "T") == list(range(61))


def test_what_somebody_acknowledges_by_hand_stays_for_the_subscription_that_is_not_done(lanes: Subscriptions) -> None:
    # Given a subscription that nobody serves, beside others that are done with all
    lanes.worker("w1", BRIDGE_SERVE="search,trail")
    master = lanes.master("m1")
    ids = [lanes.push(f"T{n % 5}", n, kind="created") for n in range(30)]
    wait_until(lambda: lanes.redis.xpending("ticket_stream", "billing")["pending"] == 30, description="all to be read")
    stop = threading.Event()

    def acknowledge() -> None:
        while not stop.wait(0.01):
            lanes.redis.xack("ticket_stream", "billing", *ids)

    # When somebody acknowledges its entries all the time, and its leader makes them pending again
    by_hand = threading.Thread(target=acknowledge)
    by_hand.start()
    try:
        lanes.wait(search=30)
        for _ in range(3):
            seen = lanes.count("billing", "tampered")
            wait_until(lambda seen=seen: lanes.count("billing", "tampered") > seen, description="a repair")  # type: ignore[misc]
    finally:
        stop.set()
        by_hand.join()
    # Then no other leader has removed them, and the next one still has them
    wait_until(lambda: lanes.redis.xpending("ticket_stream", "billing")["pending"] == 30, description="the last repair")
    assert lanes.redis.xlen("ticket_stream") == 30
    master.kill()
    lanes.master("m2")
    lanes.worker("w2", BRIDGE_SERVE="billing")
    lanes.wait(billing=30)
    assert [lanes.log("billing", f"T{t}") for t in range(5)] == [list(range(t, 30, 5)) for t in range(5)]
    wait_until(lambda: lanes.redis.xlen("ticket_stream") == 0, description="the stream to be empty")
