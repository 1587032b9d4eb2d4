"""What still uses a stream or a partition is named whole, whatever characters the name has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bridge.operate import repartitioning
from bridge.operate.deleting import LanesOfStream, StillUsed
from bridge.routing.keys import LaneKeys
from bridge.routing.layouts import claim_layout
from bridge.stack.embedded import EmbeddedServer

NAMES = ["billing", "vm:29616:94028e03", "a: b: c", "{x}", "{}", "{", "100%s", ":"]


@pytest.fixture
def redis(valkey: EmbeddedServer) -> Iterator[Any]:
    with valkey.client() as connected:
        yield connected


@pytest.mark.parametrize("group", NAMES)
def test_the_master_of_a_partition_that_is_left_is_named_whole(redis: Any, group: str) -> None:
    redis.xgroup_create("orders", group, "0", mkstream=True)
    repartitioning.begin(redis, "orders", claim_layout(redis, "orders", 1), 2)
    assert repartitioning.leave(redis, "orders", claim_layout(redis, "orders", 1)) == ""
    layout = claim_layout(redis, "orders", 1)
    for master in NAMES:
        redis.set(LaneKeys("orders", group).leader, f"7 {master}")
        assert repartitioning.clear(redis, "orders", layout) == (
            f"masters and workers have not left orders yet: group {group} is led by the master {master}"
        )


@pytest.mark.parametrize("group", NAMES)
def test_a_stream_that_is_led_names_the_master_and_what_to_do(redis: Any, group: str) -> None:
    redis.xgroup_create("orders", group, "0", mkstream=True)
    for master in NAMES:
        redis.set(LaneKeys("orders", group).leader, f"7 {master}")
        with pytest.raises(StillUsed) as caught:
            LanesOfStream(redis, "orders", letters=False).delete()
        assert caught.value.why == (
            f"group {group} is led by the master {master}: stop it, or take the stream out of its app"
        )
