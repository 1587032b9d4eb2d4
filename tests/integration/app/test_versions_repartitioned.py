"""A stream that was repartitioned gets a new version: that has partitions of the same generation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery

import bridge
from bridge.routing.keys import layout_key
from bridge.routing.partitions import Layout, partition_of
from bridge.testing.waiting import wait_until
from tests.integration.versions import ONLY_V1, STREAMS, Versions

TICKETS = [f"T{n}" for n in range(5)]
GHOST = {"stream": "ghost", "task": "versions.v1"}
OLD = {"stream": "orders", "task": "versions.v1"}


def stored(chain: Versions, stream: str) -> tuple[int, int] | None:
    """The partitions and the generation in the layout of ``stream``."""
    text: Any = chain.redis.get(layout_key(stream))
    found = json.loads(text or "{}")
    return (found["partitions"], found["generation"]) if "partitions" in found else None


@pytest.mark.parametrize(
    "steps", [pytest.param((4,), id="split", marks=pytest.mark.long), pytest.param((2, 1), id="split and joined")]
)
def test_a_stream_that_was_repartitioned_gets_a_new_version(chain: Versions, steps: tuple[int, ...]) -> None:
    partitions = steps[-1]
    layout = Layout(partitions, len(steps))
    shape = (layout.partitions, layout.generation)
    new: dict[str, Any] = {"bridge_partitions": partitions, "bridge_follows": [GHOST, OLD]}
    nodes: list[Any] = [chain.worker("w1", **ONLY_V1), chain.master("m1", **ONLY_V1)]
    for count in steps:
        chain.operate("stream", "repartition", str(count), **ONLY_V1)
    assert stored(chain, "orders") == shape

    def push(version: str) -> None:
        for ticket in TICKETS:
            number = partition_of(ticket, partitions)
            chain.push(version, ticket, layout.stream(STREAMS[version], number), ms=5)

    def wait_done() -> None:
        for ticket in TICKETS:
            count = sum(len(numbers) for (name, _), numbers in chain.pushed.items() if name == ticket)
            wait_until(lambda: len(chain.log(ticket)) == count, description=f"all of {ticket} to be done", timeout_s=60)  # noqa: B023

    push("v1")
    wait_done()
    # Given messages of both versions, of which the new ones are pushed first by the bridge
    for node in nodes:
        node.terminate()
    push("v1")
    producer = bridge.install(Celery("versions", broker=chain.url, set_as_current=False))
    producer.conf.update(bridge_stream="orders:v2", **new)

    def handle(self: Any, ticket_id: str, payload: Any) -> None:
        del self, ticket_id, payload

    pay: Any = producer.task(bind=True, name="versions.v2", lazy=False, shared=False)(handle)
    ids = pay.push_many([(ticket, {"n": 0}) for ticket in TICKETS])
    assert {id_.partition("@")[2] for id_ in ids} == {
        f"g{len(steps)}p{partition_of(one, partitions)}" for one in TICKETS
    }
    for ticket in TICKETS:
        chain.pushed[ticket, "v2"].append(0)
        chain.pushed_us[ticket, "v2", 0] = chain.pushed_us[ticket, "v1", 1] + 1
    # When an app starts that has both
    nodes = [chain.worker("w2", **new), chain.master("m2", **new)]
    push("v2")
    push("v1")
    wait_done()
    # Then all is done in order, and each version has the same layout, also one that nobody has made
    chain.check_one_at_a_time()
    chain.check_older_first()
    chain.check_each_version_in_order()
    assert stored(chain, "orders:v2") == stored(chain, "ghost") == shape
    # And the old one is retired, as any other
    alone: dict[str, Any] = {**new, "bridge_follows": []}
    for node in nodes:
        node.terminate()
    assert "retired orders with" in chain.operate("stream", "retire", "orders", "--yes", **alone)
    chain.operate("stream", "retire", "ghost", "--yes", **alone)
    assert [key for key in chain.redis.scan_iter("*orders*") if "orders:v2" not in key and "}/" not in key] == []
    chain.worker("w3", **alone)
    master = chain.master("m3", **alone)
    push("v2")
    wait_done()
    # And when its name is used again, it has the partitions that the new version has
    chain.operate("stream", "retire", "orders", "--undo", **alone)
    assert stored(chain, "orders") == shape
    master.terminate()
    chain.master("m4", **{**new, "bridge_follows": [OLD]})


def test_a_new_version_with_another_number_of_partitions_is_refused(chain: Versions) -> None:
    chain.redis.set(layout_key("orders"), '{"partitions":4,"generation":1,"since_ms":1}')
    for stream in Layout(4, 1).streams("orders"):
        chain.redis.xadd(stream, {"ticket_id": "T"})
    before = sorted(chain.redis.scan_iter())
    for partitions in (1, 2):
        node = chain.master("m1", wait=False, bridge_partitions=partitions)
        assert node.wait() != 0
        assert "stream orders has 4 partitions of generation 1, and orders:v2, which follows it, has " in node.logs()
        assert "set bridge_partitions = 4 while it follows" in node.logs()
    assert sorted(chain.redis.scan_iter()) == before
