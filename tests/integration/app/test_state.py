"""``self.ticket.state`` on real workers: it is exactly the fold of the messages that succeeded."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import WITH_AND_WITHOUT_BUNDLES, LaneUnderTest

FOLDS = "counter.folds"


@pytest.fixture(params=WITH_AND_WITHOUT_BUNDLES)
def lane(request: pytest.FixtureRequest, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path, COUNTER_BUNDLE_MS=request.param)


def state_of(lane: LaneUnderTest, ticket: str) -> Any:
    fields: Any = lane.redis.hgetall(lane.keys.state(ticket))
    return {name: json.loads(text) for name, text in fields.items()}


def test_a_state_is_the_fold_of_what_succeeded_also_over_kills(lane: LaneUnderTest) -> None:
    seed = int(os.environ.get("STATE_SEED", random.randrange(1 << 32)))
    print("STATE_SEED", seed)
    random_ = random.Random(seed)
    pushed: dict[str, list[int]] = {}
    for n in range(400):
        ticket = f"T{random_.randrange(12)}"
        payload: dict[str, Any] = {"n": n}
        if random_.random() < 0.05:
            payload |= {"until": random_.randint(2, 5), "dies": random_.random() < 0.4}
        lane.push(ticket, payload, FOLDS)
        if payload.get("until", 1) <= 3:
            pushed.setdefault(ticket, []).append(n)
    lane.master("m1", wait=False)
    lane.worker("w1", wait=False)
    w2 = lane.worker("w2", wait=False)
    wait_until(lambda: lane.count("done") > 50, description="the first messages", timeout_s=180)
    w2.kill()
    lane.worker("w3", wait=False)
    wait_until(lambda: lane.count("done") == sum(map(len, pushed.values())), description="all messages", timeout_s=300)
    for ticket, numbers in pushed.items():
        assert lane.log(ticket) == numbers
        assert state_of(lane, ticket)["numbers"] == numbers
        assert state_of(lane, ticket)["last"]["n"] == numbers[-1]


def test_a_damaged_state_fails_only_its_messages(lane: LaneUnderTest) -> None:
    lane.redis.hset(lane.keys.state("damaged"), "numbers", "[1,")
    lane.redis.rpush(lane.keys.state("no hash"), "x")
    for ticket in ("damaged", "no hash", "sound"):
        lane.push(ticket, {"n": 1}, FOLDS)
    lane.master("m1", wait=False)
    lane.worker("w1", wait=False)
    wait_until(lambda: lane.count("dead") == 2, description="two dead letters", timeout_s=180)
    wait_until(lambda: lane.count("done") == 1, description="the sound one")
    letters: Any = lane.redis.xrange(lane.keys.dead)
    errors = {letter["ticket_id"]: letter["error"] for _, letter in letters}
    assert "the field numbers of the state is not JSON" in errors["damaged"]
    assert "the state of ticket no hash cannot be read: WRONGTYPE" in errors["no hash"]
    assert state_of(lane, "sound")["numbers"] == [1]
