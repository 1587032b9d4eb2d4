"""Entries of the outcome stream that this version did not write end no master, and the lane goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import LaneUnderTest

UNREADABLE: dict[str, list[bytes]] = {
    "two words": [b"foo", b"bar"],
    "no kind": [b"i", b"x"],
    "a name that is no text": [b"i", b"\xff", b"gone", b"w1@vm"],
    "outcomes that are none": [b"i", b"x", b"o", b"{"],
    "an outcome of a wrong form": [b"i", b"x", b"o", b'[["1-0"], 5, ["1-0", "x", "S", 0, 0]]'],
    "a notice without what ran": [b"i", b"x", b"died", b"w1@vm"],
    "a notice of wrong fences": [b"i", b"x", b"died", b"w1@vm", b"ran", b'[[1],"x"]'],
    "an order that is none": [b"i", b"order-1", b"order", b"\xff"],
    "an order of a wrong form": [b"i", b"order-2", b"order", b'{"do":["park"],"ticket":7}'],
    "an order of nobody": [b"i", b"order-3", b"order", b'{"do":"transfer","consumer":[1],"tickets":5}'],
    "an order for letters that are none": [b"i", b"order-4", b"order", b'{"do":"replay","letters":["x",{}]}'],
    "an order for no ticket": [b"i", b"order-5", b"order", b'{"do":"park","ticket":""}'],
}
#: Orders are answered. Those whose text cannot be read are counted as well.
ORDERS = sum(fields[2:3] == [b"order"] for fields in UNREADABLE.values())
UNREADABLE_ORDERS = 2


@pytest.mark.slow
def test_unreadable_entries_end_no_master_and_the_lane_goes_on(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path)
    raw: Any = own_server.client()
    for fields in UNREADABLE.values():
        raw.execute_command("XADD", lane.keys.outcomes, "*", *fields)
    lane.worker("w1")
    first = lane.master("m1")
    newer = [
        raw.execute_command("XADD", lane.keys.outcomes, "*", "i", "x", "of a newer version", "{}"),
        raw.execute_command("XADD", lane.keys.outcomes, "*", "i", "x", "o", b'[["1-0",1,"newer",0,0]]'),
    ]
    lane.push_many(3, 5)
    lane.wait_done(15)
    for fields in UNREADABLE.values():
        raw.execute_command("XADD", lane.keys.outcomes, "*", *fields)
    lane.push_many(3, 5, first=5)
    lane.wait_done(30)
    lane.assert_logs(3, 10)

    # All are counted. Only entries that another version may understand stay, for the next leader.
    unreadable = 2 * (len(UNREADABLE) - ORDERS + UNREADABLE_ORDERS) + len(newer)
    wait_until(lambda: lane.count("unknown") == unreadable, description=f"{unreadable} entries to be counted")
    wait_until(
        lambda: [id_ for id_, _ in raw.xrange(lane.keys.outcomes)] == newer,
        description="the outcome stream to have only what a newer version may understand",
    )
    assert first.running
    first.kill_main()
    second = lane.master("m2")
    lane.push_many(3, 5, first=10)
    lane.wait_done(45)
    lane.assert_logs(3, 15)
    assert second.running
    assert [id_ for id_, _ in raw.xrange(lane.keys.outcomes)] == newer
    # Once for each kind, in one line.
    said = [line for line in first.logs().splitlines() if "skipped entry" in line]
    assert len(said) == len({line.partition("stream: ")[2] for line in said}) > 5
    assert "Traceback" not in first.logs() + second.logs()
    for number in (1, 2, 3, 4, 5):
        answer: Any = raw.lrange(lane.keys.reply(f"order-{number}"), 0, -1)
        assert all("error" in json.loads(one) for one in answer), answer
        assert answer
