"""Old versions of a stream are retired: their keys go, and producers are refused."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from celery import Celery

import bridge
from bridge.routing.errors import StreamRetired
from bridge.routing.keys import follows_key, layout_key
from bridge.testing.waiting import wait_until
from tests.integration.versions import GROUP, ONLY_V1, THREE, Versions


def test_the_oldest_of_three_versions_is_retired_while_everything_runs(chain: Versions) -> None:
    chain.conf.update(THREE)
    worker, masters = chain.worker("w1"), [chain.master("m1"), chain.master("m2")]
    pushed = 0

    def push(*versions: str) -> None:
        nonlocal pushed
        pushed += 1
        for version in versions:
            chain.push(version, f"T{pushed % 3}", ms=5)

    for _ in range(6):
        push("v3", "v2", "v1")
    chain.wait_all()
    new = {"bridge_follows": THREE["bridge_follows"][1:]}
    push("v3", "v2")
    chain.worker("w2", **new)
    push("v3", "v2")
    worker.terminate()
    for n, master in enumerate(masters):
        chain.master(f"m{n + 3}", **new)
        push("v3", "v2")
        master.terminate()
        push("v3", "v2")
        chain.wait_all()
    assert "retired orders" in chain.operate("stream", "retire", "orders", "--yes", **new)
    for _ in range(3):
        push("v3", "v2")
    for version in ("v2", "v3"):
        chain.wait_ended(version, sum(len(found) for (_, of), found in chain.pushed.items() if of == version))
    chain.check_one_at_a_time()
    chain.check_older_first()
    chain.check_each_version_in_order()
    assert left_of("orders", chain) == []
    assert chain.redis.get(follows_key("orders:v3")) == '["orders:v2"]'


def test_an_old_version_is_retired_when_nothing_of_it_is_undone_or_in_use(chain: Versions) -> None:
    worker, master = chain.worker("w1"), chain.master("m1")
    chain.push("v1", "T")
    chain.push("v1", "dead", fail=9)
    chain.push("v2", "T")
    chain.wait_all()

    def refused() -> str:
        error = chain.operate("stream", "retire", "orders", "--yes", code=1)
        assert chain.redis.exists("orders", chain.keys["v1"].counts, chain.keys["v1"].fence) == 3
        return error

    assert "is led by the master" in refused()
    master.terminate()
    assert "the worker w1@" in refused()
    worker.terminate()
    chain.push("v1", "late")
    assert "has not read all its messages" in refused()
    assert "has not read all its messages" in chain.operate("stream", "retire", "orders", "--dry-run", code=1)
    worker, master = chain.worker("w2"), chain.master("m2")
    chain.wait_ended("v1", 3)
    master.terminate()
    worker.terminate()
    assert "has dead letters" in refused()
    assert "has dead letters" in chain.operate("stream", "retire", "orders", "--dry-run", code=1)
    looked = chain.operate("stream", "retire", "orders", "--dry-run", "--drop-dead")
    assert "would delete orders with" in looked
    assert ", 1 group, 1 dead letter; " in looked
    keys = looked.rpartition("; ")[2].strip()
    assert "is the stream of this app" in chain.operate("stream", "retire", "orders:v2", "--yes", code=1)
    retired = chain.operate("stream", "retire", "orders", "--drop-dead", "--yes", bridge_follows=[])
    assert "\nretired orders with" in retired
    assert retired.endswith(f"; {keys} deleted\n")
    assert left_of("orders", chain) == []
    assert chain.redis.get(follows_key("orders:v2")) == "[]"
    assert "was retired on" in chain.operate("stream", "retire", "orders", "--yes", code=1)
    chain.worker("w3", bridge_follows=[])
    chain.master("m3", bridge_follows=[])
    chain.push("v2", "T")
    chain.wait_ended("v2", 2)


def left_of(stream: str, chain: Versions) -> list[str]:
    """The keys of a retired stream, without the note that it was retired."""
    found = [key for key in chain.redis.scan_iter() if key == stream or key.startswith(f"{{{stream}}}")]
    assert layout_key(stream) in found
    return [key for key in found if key != layout_key(stream)]


def test_a_stream_that_was_deleted_by_hand_is_retired_with_all_keys(chain: Versions) -> None:
    worker, master = chain.worker("w1", **ONLY_V1), chain.master("m1", **ONLY_V1)
    chain.push("v1", "T")
    chain.push("v1", "dead", fail=9)
    chain.wait_ended("v1", 2)
    chain.operate("ticket", "park", "P", **ONLY_V1)
    worker.terminate()
    master.terminate()
    chain.redis.delete("orders")
    refused = chain.operate("stream", "retire", "orders", "--yes", code=1, bridge_follows=[])
    assert "has dead letters" in refused
    retired = chain.operate("stream", "retire", "orders", "--yes", "--drop-dead", bridge_follows=[])
    assert "retired orders with 0 done messages, 1 group, 1 dead letter" in retired
    assert left_of("orders", chain) == []


def test_a_producer_that_names_a_retired_stream_is_refused(chain: Versions) -> None:
    chain.push("v1", "T")
    worker, master = chain.worker("w1"), chain.master("m1")
    chain.wait_ended("v1", 1)
    worker.terminate()
    master.terminate()
    producer = Celery("versions", broker=chain.url, set_as_current=False)
    bridge.install(producer)
    producer.conf.bridge_stream = "orders"

    @producer.task(name="versions.v1", bind=True, shared=False)
    def task(self: Any, ticket_id: str, payload: Any) -> None:
        """Only pushed here."""

    task.push("T", {"n": 1})
    chain.redis.xtrim("orders", maxlen=0)
    chain.redis.xgroup_setid("orders", GROUP, "$")
    chain.operate("stream", "retire", "orders", "--yes")
    again: Any = task
    with pytest.raises(StreamRetired, match=r"stream orders was retired on .*; push to orders:v2"):
        again.push("T", {"n": 2})
    with pytest.raises(StreamRetired, match="push to orders:v2"):
        again.push_many([("T", {"n": 2})], idempotency_key="k")
    assert not chain.redis.exists("orders")
    assert "orders     retired  20" in chain.operate("stream", "list")
    # An app that still names it leaves it out. An app whose stream it is does not start.
    late = chain.master("m2", wait=False, **ONLY_V1)
    assert late.wait() == 2
    assert "stream orders was retired on" in late.logs()
    worker, master = chain.worker("w2"), chain.master("m3")
    assert "bridge_follows names 'orders': stream orders was retired on" in master.logs()
    assert "bridge_follows names 'orders': stream orders was retired on" in worker.logs()
    chain.push("v2", "T")
    chain.wait_ended("v2", 1)
    assert left_of("orders", chain) == []
    # Foreign programs are not refused.
    chain.push("v1", "T")
    assert "orders was retired, and 1 message came since then, by XADD" in chain.operate("status")
    assert "1 message came since then" in chain.operate("stream", "retire", "orders", "--yes", code=1)
    chain.redis.delete("orders")
    chain.operate("stream", "retire", "orders", "--undo")
    assert task.push("T", {"n": 3})


@pytest.mark.parametrize("led", [True, False], ids=["led", "never led"])
def test_states_of_tickets_stay_over_two_retirements_although_no_message_came_meanwhile(
    led: bool, chain: Versions
) -> None:
    """``led``: whether a leader of the newer version began its term before the older one was retired."""
    v2: dict[str, Any] = {"bridge_stream": "orders:v2", "bridge_follows": ["orders"]}
    v3: dict[str, Any] = {"bridge_stream": "orders:v3", "bridge_follows": ["orders:v2"]}
    chain.redis.hset(chain.keys["v1"].state("T"), "total", "7")
    chain.redis.xadd("orders", {"ticket_id": "T"})
    chain.redis.xtrim("orders", maxlen=0)
    for version, conf in (("v2", v2), ("v3", v3)):
        if led:
            master = chain.master(version, **conf)
            begun = partial(chain.redis.exists, follows_key(conf["bridge_stream"]))
            wait_until(begun, description="its term to begin")
            master.terminate()
        else:
            chain.redis.xgroup_create(conf["bridge_stream"], GROUP, "0", mkstream=True)
        # An app that is led needs not name it any more.
        named = {**conf, "bridge_follows": []} if led else conf
        chain.operate("stream", "retire", conf["bridge_follows"][0], "--yes", **named)
        after = {**conf, "bridge_follows": []}
        assert json.loads(chain.operate("ticket", "show", "T", "--json", **after))["kept_state"] == {"total": 7}
    assert left_of("orders:v2", chain) == []
