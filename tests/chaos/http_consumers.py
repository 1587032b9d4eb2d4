"""Chaos for HTTP consumers: programs that are killed, frozen and stopped, one that lies, and masters that are killed.

A run of its own: what such a consumer leaves is its own store's, and not an effect of the bridge, so the ledger of the
other runs does not fit. They share one lane with a Celery worker. A seed draws the faults and the lies. ``python -m
tests.chaos.http_consumers --help``.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST
from bridge.testing.nodes.node import Node, broker_environment
from bridge.testing.nodes.process import ROOT
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import WaitTimeout, wait_until
from tests.apps.http_handler import APPEND
from tests.chaos.http_program import LIES
from tests.integration.http.http_consumers import Answer, HttpConsumerUnderTest, HttpLane
from tests.integration.servers import run_command
from tests.keycheck import ownerless

LEASE_S = 2.0
TICKETS = 15
#: Messages that are pushed and not done, at most.
BACKLOG = 150
#: Seconds after the last fault until each lie was told, and had its answer.
TOLD_WITHIN_S = 90.0
#: Fault -> how often it is drawn, relative to the others.
FAULTS = {
    "kill a consumer": 4,
    "freeze a consumer": 2,
    "freeze a consumer past its lease": 4,
    "stop a consumer": 2,
    "kill a master": 2,
    "kill the worker": 1,
}


class Liar(threading.Thread):
    """An HTTP consumer that sends what no honest one does. What it is told is compared with what it must be told."""

    def __init__(self, lane: HttpLane, seed: int) -> None:
        super().__init__(daemon=True)
        self._lane = lane
        self._redis: Any = lane.server.client()
        self._draw = random.Random(f"liar {seed}")
        self._consumer = HttpConsumerUnderTest("liar", 2, 0)
        self._over = threading.Event()
        self.told = Counter[str]()
        self.violations: list[str] = []

    def stop(self) -> None:
        """Ends it."""
        self._over.set()
        self.join(60)
        self._redis.close()

    def run(self) -> None:
        while not self._over.is_set():
            self._consumer.port = self._draw.choice(list(self._lane.ports.values()))
            try:
                self._turn()
            except (OSError, HTTPException, AssertionError):
                # A master was killed, or Redis says 503: another one is asked.
                self._over.wait(0.1)

    def _turn(self) -> None:
        consumer = self._consumer
        if not consumer.incarnation or consumer.heartbeat().status in (404, 410):
            consumer.register()
        answer = consumer.ask(2, 0.3)
        if answer.status == 200:
            for message in answer.body["messages"]:
                if consumer.incarnation:
                    self._lie(message)

    def _lie(self, message: dict[str, Any]) -> None:
        consumer, draw = self._consumer, self._draw
        self._expect("wrong fence", consumer.acknowledge({**message, "fence": message["fence"] + 1}))
        self._expect("foreign id", consumer.acknowledge({**message, "message_id": "1-1"}))
        incarnation, consumer.incarnation = consumer.incarnation, "0" * 32
        self._expect("other incarnation", consumer.acknowledge(message))
        consumer.incarnation = incarnation
        if not self.told[f"late: {LIES['late']}"] or draw.random() < 0.1:
            time.sleep(LEASE_S * 1.3)
            self._expect("late", consumer.acknowledge(message))
            consumer.incarnation = ""
            return
        if consumer.extend(message).status != 200:
            return
        keys = (f"log:{message['ticket_id']}", f"log:fence:{message['ticket_id']}")
        self._redis.eval(APPEND, 2, *keys, message["fence"], message["payload"]["n"])
        outcome = draw.choice(("done", "done", "failed", "refused"))
        first = consumer.acknowledge(message, outcome, **({} if outcome == "done" else {"delay": 0}))
        if first.status == 200:
            # What it has said before: the same again, or something else.
            again = consumer.acknowledge(message, outcome, **({} if outcome == "done" else {"delay": 0}))
            self._expect("twice", again)
            self._expect("another outcome", consumer.acknowledge(message, "dead"))

    def untold(self) -> list[str]:
        """The lies of its kind that were never answered as they must be."""
        # "slow" needs a connection of its own: that of `tests.chaos.http_program` tells it.
        return [lie for lie, status in LIES.items() if lie != "slow" and not self.told[f"{lie}: {status}"]]

    def _expect(self, lie: str, answer: Answer) -> None:
        self.told[f"{lie}: {answer.status}"] += 1
        # Its lease may be over at any time; and a master may be without Redis.
        if answer.status not in (LIES[lie], 410, 503):
            self.violations.append(f"{lie}: {answer.status} instead of {LIES[lie]}: {answer.body}")


class HttpChaos:
    """One run: a context manager that ends all it has started."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None] = print) -> None:
        self._draw = random.Random(f"http {seed}")
        self._folder = folder
        self._seed = seed
        self._say = say
        self._cleanup = ExitStack()
        self._thaw_at: dict[int, float] = {}
        self._pushed = 0

    def __enter__(self) -> HttpChaos:
        server = self._cleanup.enter_context(EmbeddedServer(data_dir=self._folder / "data", fsync="always"))
        yard = self._cleanup.enter_context(closing(ProcessYard(self._folder, server.url)))
        # No message is given up: the lies use up attempts.
        self.lane = HttpLane(yard, server, self._folder, COUNTER_MAX_ATTEMPTS="1000", COUNTER_LEASE=str(LEASE_S))
        self.masters = [self.lane.master(name) for name in ("m1", "m2", "m3")]
        self.worker = self.lane.worker("w1")
        self.consumers = [self._program(f"h{n}") for n in range(3)]
        self.liar = Liar(self.lane, self._seed)
        self.liar.start()
        return self

    def __exit__(self, *_: object) -> None:
        for consumer in self.consumers:
            consumer.resume()
        self._cleanup.close()

    def _program(self, name: str) -> Node:
        urls = [f"http://{HOST}:{port}" for port in self.lane.ports.values()]
        self._draw.shuffle(urls)
        command = [sys.executable, "-m", "tests.apps.http_handler", name, "3", *urls]
        env = {**self.lane.env, "CELERY_BROKER_URL": self.lane.server.url}
        return self.lane.nodes.process(name, command, env=env, cwd=ROOT, ready_text="ready", wait=False)

    def go(self, faults: int, pace_s: float = 1.2) -> list[str]:
        """Does ``faults`` faults while messages flow. Returns what was violated."""
        names, weights = list(FAULTS), list(FAULTS.values())
        order = [*self._draw.sample(names, len(names)), *self._draw.choices(names, weights, k=faults)][:faults]
        for fault in order:
            until = time.monotonic() + pace_s * self._draw.uniform(0.5, 1.5)
            while time.monotonic() < until:
                self._tick()
            self._say(f"{fault}  {self.lane.count('done')} of {self._pushed} done")
            getattr(self, f"_{fault.replace(' ', '_')}")()
        # A slow machine may need longer until each lie was told.
        until = time.monotonic() + TOLD_WITHIN_S
        while self.liar.untold() and time.monotonic() < until:
            self._tick()
        return self._judge()

    def _tick(self) -> None:
        """Pushes, thaws what was frozen long enough, and starts what has ended."""
        lane = self.lane
        room = BACKLOG - (self._pushed - lane.count("done"))
        for _ in range(max(0, min(room, 20))):
            ticket, n = self._pushed % TICKETS, self._pushed // TICKETS
            lane.push(f"T{ticket}", {"n": n, "ms": self._draw.choice((0, 2, 10, 40))})
            self._pushed += 1
        for place, at in list(self._thaw_at.items()):
            if time.monotonic() >= at:
                del self._thaw_at[place]
                self.consumers[place].resume()
        for place, consumer in enumerate(self.consumers):
            if place not in self._thaw_at and not consumer.running:
                self.consumers[place] = self._program(f"h{place}")
        time.sleep(0.02)

    def _pick(self) -> int | None:
        places = [place for place in range(len(self.consumers)) if place not in self._thaw_at]
        return self._draw.choice(places) if places else None

    def _signal(self, name: str) -> None:
        place = self._pick()
        if place is not None and self.consumers[place].running:
            self.consumers[place].kill(name)

    def _kill_a_consumer(self) -> None:
        self._signal("SIGKILL")

    def _stop_a_consumer(self) -> None:
        self._signal("SIGTERM")

    def _freeze(self, for_s: float) -> None:
        place = self._pick()
        if place is not None and self.consumers[place].running:
            self.consumers[place].pause()
            self._thaw_at[place] = time.monotonic() + for_s

    def _freeze_a_consumer(self) -> None:
        self._freeze(self._draw.uniform(0.1, 0.4) * LEASE_S)

    def _freeze_a_consumer_past_its_lease(self) -> None:
        self._freeze(self._draw.uniform(1.2, 2.2) * LEASE_S)

    def _kill_a_master(self) -> None:
        master = self._draw.choice(self.masters)
        master.kill_main()
        master.wait()
        master.start()

    def _kill_the_worker(self) -> None:
        self.worker.kill_main()
        self.worker.wait()
        self.worker.start()

    def _judge(self) -> list[str]:
        lane = self.lane
        while self._thaw_at:
            self._tick()
        try:
            wait_until(
                lambda: self._tick_quietly() or lane.count("done") >= self._pushed,
                description="all to be done",
                timeout_s=90,
            )
        except WaitTimeout:
            left = (lane.redis.hgetall(lane.keys.tickets), lane.redis.hgetall(lane.keys.consumers))
            return [f"stuck at {lane.count('done')} of {self._pushed}: {left}", *self.liar.violations]
        self.liar.stop()
        found = list(self.liar.violations)
        for ticket in range(TICKETS):
            log = lane.log(f"T{ticket}")
            # A worker's effects may follow the store of a consumer that was killed before it acknowledged.
            once = [n for i, n in enumerate(log) if i == 0 or n != log[i - 1]]
            wanted = list(range(-(-(self._pushed - ticket) // TICKETS)))
            if once != wanted:
                wrong = next((pair for pair in pairwise(once) if pair[1] != pair[0] + 1), ())
                found.append(f"T{ticket}: {len(once)} of {len(wanted)}, out of order at {wrong}")
        if lane.count("done") != self._pushed or lane.count("dead"):
            found.append(f"{lane.count('done')} done and {lane.count('dead')} dead of {self._pushed}")
        lane.assert_at_rest()
        audit = run_command(broker_environment(lane.server.url), "audit")
        if audit.returncode:
            found.append(f"audit: {audit.stdout[-1000:]}{audit.stderr[-500:]}")
        raw: Any = lane.server.client()
        found += ownerless(raw, [lane.keys], ("_kombu.*", "log:*"))
        raw.close()
        return found

    def _tick_quietly(self) -> bool:
        """Starts what has ended, and pushes nothing more."""
        for place, consumer in enumerate(self.consumers):
            if not consumer.running:
                self.consumers[place] = self._program(f"h{place}")
        return False


@click.command(help=__doc__)
@click.option("--seed", type=int, default=None, help="Draws the same faults again.")
@click.option("--faults", default=20, show_default=True)
def main(seed: int | None, faults: int) -> None:
    """Runs it once."""
    seed = random.randrange(1_000_000) if seed is None else seed
    click.echo(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder, HttpChaos(Path(folder), seed, click.echo) as chaos:
        found = chaos.go(faults)
        click.echo("\n".join([*found, f"lies: {dict(chaos.liar.told)}"]))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
