"""HTTP consumers through one master: how many messages a second, and how soon an idle one gets a message.

Server and master are real. The consumers are one process of threads, each with a connection of its own, that handle
nothing: they receive up to ``--max`` messages in one call, and acknowledge them in one call. All share the machine's
processors with server and master. ``python -m benchmarks.http --help``.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.request import urlopen

import click
import orjson

from benchmarks.figures import percentile
from benchmarks.stack import KEYS, Stack
from bridge.stack.ports import HOST, free_port

PIECE = 1000
TICKETS = 1000
#: Seconds between two pushes to an idle consumer.
APART_S = 0.05


class Caller:
    """One consumer."""

    def __init__(self, port: int, name: str, concurrency: int) -> None:
        self._connection = HTTPConnection(HOST, port, timeout=60)
        self._name = name
        found = self._call("POST", "/api/consumers/register", {"name": name, "concurrency": concurrency})
        self._incarnation = found["incarnation"]
        self._beat_s = found["lease_ms"] / 3000
        self._beat_at = time.monotonic() + self._beat_s

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        text = None if body is None else orjson.dumps(body)
        self._connection.request(method, path, text, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        answer = orjson.loads(response.read())
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {answer}")
        return answer

    def receive(self, most: int, wait_s: float) -> list[dict[str, Any]]:
        """Messages, and a heartbeat when it is due."""
        if time.monotonic() > self._beat_at:
            self._call("POST", f"/api/consumers/{self._name}/heartbeat", {"incarnation": self._incarnation})
            self._beat_at = time.monotonic() + self._beat_s
        path = f"/api/messages/next?consumer={self._name}&incarnation={self._incarnation}&max={most}&wait={wait_s}"
        found: list[dict[str, Any]] = self._call("GET", path)["messages"]
        return found

    def leave(self) -> None:
        """Ends its lease."""
        self._call("POST", f"/api/consumers/{self._name}/leave", {"incarnation": self._incarnation})

    def acknowledge(self, messages: list[dict[str, Any]]) -> None:
        said = {"consumer": self._name, "incarnation": self._incarnation, "outcome": "done"}
        some = [{**said, "message_id": one["message_id"], "fence": one["fence"]} for one in messages]
        results = self._call("POST", "/api/messages/acknowledge", some)["results"]
        if any(result["status"] != 200 for result in results):
            raise RuntimeError(f"refused: {results}")


@dataclass(frozen=True)
class Figures:
    """What a run came to. Times in µs for each message, and in ms from a push to its receipt."""

    rate: float
    master_us: float
    port_us: float
    server_us: float
    consumers_us: float
    idle_p50_ms: float
    idle_p99_ms: float


def run(consumers: int, most: int, messages: int, samples: int) -> Figures:
    """One run: first a full stream, then single messages."""
    with Stack("bridged") as stack:
        port = free_port()
        stack.environment_more["BENCHMARK_CONF"] = json.dumps({"bridge_window": 2 * messages})
        arguments = ("-A", "benchmarks.apps.bridged", "run", "-l", "WARNING", "--http", f"{HOST}:{port}")
        stack.start("master", "-m", "bridge", *arguments)
        stack.wait(lambda: bool(stack.redis.exists(KEYS.leader)), "a leader", 30.0)
        _push(stack, messages)
        wait_for_port(stack, port)
        stack.count_children("port", "master")

        def done() -> int:
            return int(stack.redis.hget(KEYS.counts, "done") or 0)

        callers = [Caller(port, f"h{n}", most) for n in range(consumers)]
        over = threading.Event()
        threads = [threading.Thread(target=_consume, args=(caller, most, over), daemon=True) for caller in callers]
        warm = messages // 10
        for thread in threads:
            thread.start()
        stack.wait(lambda: done() >= warm, "the first messages", 60.0)
        used, own, began, first = stack.cpu(), time.process_time(), time.perf_counter(), done()
        stack.wait(lambda: done() >= messages, "all messages", 600.0, interval_s=0.05)
        took, last = time.perf_counter() - began, done()
        after, own_after = stack.cpu(), time.process_time()
        over.set()
        for thread in threads:
            thread.join()
        for caller in callers[1:]:
            caller.leave()
        waits = [_wait_ms(stack, callers[0]) for _ in range(samples)]
        count = last - first
        return Figures(
            rate=count / took,
            master_us=(after["master"] - used["master"]) / count * 1e6,
            port_us=(after["port"] - used["port"]) / count * 1e6,
            server_us=(after["server"] - used["server"]) / count * 1e6,
            consumers_us=(own_after - own) / count * 1e6,
            idle_p50_ms=percentile(waits, 50),
            idle_p99_ms=percentile(waits, 99),
        )


def wait_for_port(stack: Stack, port: int) -> None:
    """Returns when a master answers at ``port``."""

    def answers() -> bool:
        try:
            with urlopen(f"http://{HOST}:{port}/api/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    stack.wait(answers, "the port", 30.0)


def _push(stack: Stack, messages: int) -> None:
    for first in range(0, messages, PIECE):
        with stack.redis.pipeline(transaction=False) as pipe:
            for n in range(first, min(first + PIECE, messages)):
                fields = {"ticket_id": f"T{n % TICKETS}", "task": "noop", "payload": json.dumps({"n": n // TICKETS})}
                pipe.xadd(KEYS.stream, fields)  # type: ignore[arg-type]
            pipe.execute()


def _consume(caller: Caller, most: int, over: threading.Event) -> None:
    while not over.is_set():
        messages = caller.receive(most, 0.5)
        if messages:
            caller.acknowledge(messages)


def _wait_ms(stack: Stack, caller: Caller) -> float:
    """Ms from the push of a message to an idle lane until the consumer, which waits, has it."""
    pushed = [0.0]

    def push() -> None:
        time.sleep(APART_S)
        pushed[0] = time.perf_counter()
        stack.redis.xadd(KEYS.stream, {"ticket_id": "T-idle", "task": "noop", "payload": "{}"})

    thread = threading.Thread(target=push)
    thread.start()
    messages: list[dict[str, Any]] = []
    while not messages:
        messages = caller.receive(1, 5)
    came = time.perf_counter()
    thread.join()
    caller.acknowledge(messages)
    return (came - pushed[0]) * 1000


@click.command(help=__doc__)
@click.option("--consumers", default=16, show_default=True)
@click.option("--max", "most", default=32, show_default=True, help="Messages in one call; also the concurrency.")
@click.option("--messages", default=40_000, show_default=True)
@click.option("--samples", default=200, show_default=True, help="Single messages to an idle consumer.")
def main(consumers: int, most: int, messages: int, samples: int) -> None:
    """Runs it once, and says whether the goals are reached."""
    figures = run(consumers, most, messages, samples)
    click.echo(f"{figures.rate:,.0f} messages/s by {consumers} consumers with max={most} (goal: 2,000)")
    click.echo(
        f"processor time per message: master {figures.master_us:.0f} µs, port "
        f"{figures.port_us:.0f} µs, server {figures.server_us:.0f} µs, "
        f"all consumers {figures.consumers_us:.0f} µs"
    )
    click.echo(
        f"from push to receipt, idle: p50 {figures.idle_p50_ms:.1f} ms (goal: 10), p99 {figures.idle_p99_ms:.1f} ms"
    )
    sys.exit(0 if figures.rate >= 2000 and figures.idle_p50_ms < 10 else 1)


if __name__ == "__main__":
    main()
