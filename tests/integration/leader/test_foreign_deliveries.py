"""Messages that other programs take again and again become dead letters; nothing else does for its deliveries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.operate.test_operators import APP, Shop

MOST = 5


class TakenShop(Shop):
    """A lane whose only worker is busy, and in which another program takes messages."""

    def __init__(self, nodes: NodeYard, server: EmbeddedServer, folder: Path) -> None:
        super().__init__(nodes, server, folder)
        (folder / "shop.py").write_text(APP.replace("bridge_max_attempts=1", f"bridge_max_deliveries={MOST}"))
        self.gate = folder / "gate"

    def busy(self, tickets: int) -> list[str]:
        """Pushes a message of each ticket, of which the first ones wait at a gate. Returns those that wait behind."""
        self.worker("w1", 1)
        ids = [self.push(f"T{n}", n, gate=str(self.gate)) for n in range(tickets)]
        wait_until(lambda: len(self.rows()) == tickets, description="all to be read")
        wait_until(lambda: self.under(ids[0]) != "master", description="the first to be in flight")
        # What else is in flight follows at once.
        wait_until(lambda: self.redis.llen(self.keys.queue("w1")) == 0, description="the queue to be read")
        return [id_ for id_ in ids if self.under(id_) == "master"]

    def rows(self) -> list[dict[str, Any]]:
        found: Any = self.redis.xpending_range(self.keys.stream, self.keys.group, "-", "+", 1000)
        return list(found)

    def row(self, id_: str) -> dict[str, Any] | None:
        return next((row for row in self.rows() if row["message_id"] == id_), None)

    def under(self, id_: str) -> str:
        row = self.row(id_)
        return "" if row is None else str(row["consumer"])

    def take(self, *ids: str) -> None:
        self.redis.xclaim(self.keys.stream, self.keys.group, "theirs", 0, list(ids))

    def dead(self) -> list[dict[str, str]]:
        found: Any = self.redis.xrange(self.keys.dead)
        return [fields for _, fields in found]


@pytest.fixture
def shop(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> Iterator[TakenShop]:
    made = TakenShop(nodes, own_server, tmp_path)
    yield made
    made.redis.close()


def test_a_message_that_others_take_again_and_again_becomes_a_dead_letter(shop: TakenShop) -> None:
    shop.master("m1")
    waiting = shop.busy(30)
    victim, neighbour = waiting[-1], waiting[-2]
    number = int(shop.redis.xrange(shop.keys.stream, victim, victim)[0][1]["ticket_id"][1:])  # type: ignore[index]
    shop.push(f"T{number}", 100)
    for _ in range(MOST - 1):
        shop.take(victim)
        wait_until(lambda: shop.under(victim) == "master", description="it to be claimed back")
    row = shop.row(victim)
    assert row is not None
    assert row["times_delivered"] == MOST, "the claims of the bridge do not count"
    assert shop.dead() == []
    [shown] = shop.json("pending", "--ticket", f"T{number}", "--limit", "1")["messages"]
    assert (shown["message_id"], shown["deliveries"], shown["state"]) == (victim, MOST, "waiting")
    shop.take(neighbour, victim)
    wait_until(shop.dead, description="the dead letter")
    [letter] = shop.dead()
    assert (letter["message_id"], letter["ticket_id"]) == (victim, f"T{number}")
    assert letter["reason"] == "delivered too often by other means"
    assert letter["error"] == (
        f"delivered {MOST + 1} times by other means than the bridge (bridge_max_deliveries is {MOST})"
    )
    shop.gate.touch()
    wait_until(lambda: shop.log(f"T{number}") == [100], description="its ticket to go on", timeout_s=90)
    wait_until(lambda: shop.rows() == [], description="all others to be done", timeout_s=90)
    assert len(shop.dead()) == 1
    # A person decides.
    shop.bridge("dead", "replay", victim, "--yes")
    wait_until(lambda: shop.log(f"T{number}") == [100, number], description="the replayed message", timeout_s=90)


def test_changes_of_leader_and_reads_of_what_is_in_flight_are_no_reason(shop: TakenShop) -> None:
    master = shop.master("m1")
    waiting = shop.busy(10)
    running = next(row for row in shop.rows() if row["consumer"] != "master")
    # A consumer that reads what it has, as programs without the bridge do.
    for _ in range(3 * MOST):
        shop.redis.xreadgroup(shop.keys.group, running["consumer"], {shop.keys.stream: "0"})
    for _ in range(2):
        master.kill()
        master.wait()
        master.start()
        shop.wait_leading()
    found = {row["message_id"]: row["times_delivered"] for row in shop.rows()}
    assert found[running["message_id"]] > MOST
    assert all(found[id_] <= 3 for id_ in waiting), "a new leader reads each once more"
    shop.gate.touch()
    wait_until(lambda: shop.rows() == [], description="all to be done", timeout_s=90)
    assert shop.dead() == []
