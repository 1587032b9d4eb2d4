"""Orders of every kind to a busy lane, drawn by a seed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge.operate.orders import give
from bridge.protocol.orders import ORDERS, Park
from bridge.routing.errors import OrderFailed
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import MasterNode, NodeYard, WorkerNode
from bridge.testing.waiting import wait_until
from tests.integration.lanes import WITH_AND_WITHOUT_BUNDLES, LaneUnderTest

TICKETS = 40
EACH = 20
#: Refusals that are no errors: the lane has changed since the order was drawn.
FINE = (
    "is parked already",
    "is not parked",
    "can take them now",
    "takes no tickets now",
    # It lost its lease for a moment.
    "there is no consumer",
)
#: Times that the leader is killed.
KILLS = 2
#: Orders of every kind.
EVERY_KIND = {"park", "release", "transfer", "drain", "resume"}


class Operator:
    """Gives orders to a lane, and keeps which tickets it has parked."""

    def __init__(
        self,
        server: EmbeddedServer,
        lane: LaneUnderTest,
        workers: list[WorkerNode],
        masters: list[MasterNode],
        dice: random.Random,
    ) -> None:
        self.masters = masters
        self.redis = server.client(protocol=2)
        self.lane = lane
        self.workers = [worker.hostname() for worker in workers]
        self.dice = dice
        self.parked: set[str] = set()
        self.given: dict[str, int] = {}
        self.kills = 0

    def order(self, do: str, **fields: Any) -> dict[str, Any]:
        try:
            answer = give(self.redis, self.lane.keys, ORDERS[do](**fields), timeout_s=20)
        except OrderFailed as exc:
            if any(text in str(exc) for text in FINE):
                return {}
            raise
        self.given[do] = self.given.get(do, 0) + 1
        return answer

    def park(self) -> None:
        ticket = f"T{self.dice.randrange(TICKETS)}"
        self.order(do="park", ticket=ticket, reason="for a while")
        self.parked.add(ticket)

    def release(self) -> None:
        if self.parked:
            ticket = self.dice.choice(sorted(self.parked))
            self.order(do="release", ticket=ticket)
            self.parked.discard(ticket)

    def transfer(self) -> None:
        of, to = self.dice.sample(self.workers, 2)
        tickets = [f"T{n}" for n in self.dice.sample(range(TICKETS), 5)] if self.dice.random() < 0.5 else None
        self.order(do="transfer", consumer=of, to=self.dice.choice([to, None]), tickets=tickets)

    def drain_and_resume(self) -> None:
        name = self.dice.choice(self.workers)
        self.order(do="drain", consumer=name)
        if self.dice.random() < 0.5:
            wait_until(lambda: self.in_flight(name) == 0, description=f"{name} to be empty")
        self.order(do="resume", consumer=name)

    def kill_a_master(self) -> None:
        """Mostly the leader. The other master must finish its orders."""
        if self.kills < KILLS:
            self.kills += 1
            # One master always lives: an order does not wait for a master to start.
            self.masters[-1].wait_ready()
            master = self.masters.pop(0)
            master.kill_main()
            self.masters.append(self.lane.master(f"m{2 + self.kills}", wait=False))

    def in_flight(self, name: str) -> int:
        pending: Any = self.redis.xpending(self.lane.keys.stream, self.lane.keys.group)
        return sum(one["pending"] for one in pending["consumers"] if one["name"] == name.encode())


@pytest.mark.slow
@pytest.mark.parametrize("bundle_ms", WITH_AND_WITHOUT_BUNDLES)
def test_orders_of_every_kind_under_load_lose_reorder_and_repeat_nothing(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path, bundle_ms: str
) -> None:
    seed = int(os.environ.get("ORDERS_SEED", random.randrange(10**6)))
    print(f"ORDERS_SEED={seed}")
    dice = random.Random(seed)
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_BUNDLE_MS=bundle_ms)
    workers = [lane.worker(f"w{n}", "--concurrency=1") for n in range(3)]
    masters = [lane.master("m1"), lane.master("m2")]
    lane.wait_consumers(3)
    operator = Operator(own_server, lane, workers, masters, dice)
    kinds: list[Callable[[], None]] = [
        *[operator.park] * 6,
        *[operator.release] * 6,
        *[operator.transfer] * 3,
        *[operator.drain_and_resume] * 3,
        operator.kill_a_master,
    ]
    each = EACH
    lane.push_many(TICKETS, each, ms=16)
    ended = 0
    while True:
        complete = set(operator.given) >= EVERY_KIND
        if complete and (ended >= 0.8 * TICKETS * each or sum(operator.given.values()) >= 100):
            break
        if ended >= 0.8 * TICKETS * each:
            # On a slow machine a load has an end after a few orders. The other kinds get another load.
            lane.push_many(TICKETS, EACH, ms=16, first=each)
            each += EACH
        dice.choice(kinds)()
        ended = lane.count("done")
    for ticket in sorted(operator.parked):
        operator.order(do="release", ticket=ticket)
    print("orders given while messages flowed:", operator.given, "masters killed:", operator.kills)
    lane.wait_done(TICKETS * each)
    lane.assert_at_rest()
    lane.assert_logs(TICKETS, each)
    lane.assert_no_overlap()
    assert lane.count("done") == TICKETS * each, "and nothing was done twice"


def test_an_order_that_was_withdrawn_is_not_done_by_a_leader_that_had_read_it(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_LEADER_LEASE="60")
    master = lane.master("m1")
    redis = own_server.client(protocol=2)

    def stopped_while_it_waits() -> bool:
        master.pause()
        reads = [c for c in redis.client_list() if c["cmd"] == "xread" and "b" in c["flags"]]
        if len(reads) < 2:
            master.resume()
        return len(reads) == 2

    # Given a leader that is frozen for longer than the command waits, after the server has sent it the order
    wait_until(stopped_while_it_waits, description="the leader to wait for entries and for outcomes")
    with pytest.raises(OrderFailed, match="was withdrawn"):
        give(redis, lane.keys, Park("A"), timeout_s=0.5)

    # When it goes on, it does not carry out the order
    master.resume()
    wait_until(lambda: "an order was withdrawn" in master.logs(), description="the leader to find that out")
    assert (lane.count("parked"), lane.redis.hgetall(lane.keys.tickets)) == (0, {})
    # And carries out the next one
    assert give(redis, lane.keys, Park("B"))["ok"]
    assert lane.redis.hkeys(lane.keys.tickets) == ["B"]
