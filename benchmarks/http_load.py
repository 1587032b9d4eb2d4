"""What a port costs the leader: how fast it dispatches, and its processor time, without the port and under load on it.

The consumers of the lane's messages are simulated. The load is on the port of the master that leads (``here``), or on
that of one that stands by (``beside``): both cost the machine alike. So ``here`` against ``beside`` is what the port
costs the leader beyond the processors that it uses. Ratios within one run say more than figures, and the processor time
of the leader's thread more than the clock. ``python -m benchmarks.http_load --help``.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.dispatch import CONSUMERS, SLOTS, TICKETS
from benchmarks.feed import items, push
from benchmarks.http import wait_for_port
from benchmarks.http_callers import READY
from benchmarks.results import Metrics
from benchmarks.stack import KEYS, Stack
from benchmarks.throughput import settled
from bridge.stack.ports import HOST, free_port

#: Nobody renews: the leases outlast a run.
LEASE_S = 3600
APP = "benchmarks.apps.threads"
#: Load -> kind and number of its callers; see `benchmarks.http_callers`.
LOADS = {
    "busy": ("busy", 16),
    "polls": ("polls", 1000),
    "polls10k": ("polls", 10_000),
    "slow": ("slow", 200),
}
WITHOUT, IDLE, HERE, BESIDE = "no port", "idle port", "here", "beside"
#: Share of the messages that are settled before the measuring begins, and when it ends.
FROM, TO = 0.1, 0.95


@dataclass(frozen=True)
class Case:
    """Where the port is, and the load on it; without one: none."""

    port: str
    load: str = ""

    def __str__(self) -> str:
        return f"{self.port}, {self.load}" if self.load else self.port


def run(case: Case, messages: int) -> Metrics:
    """One run: messages a second, and µs of the leader's thread for each; seconds until the load was there."""
    with Stack("threads", bundle_ms=0.0) as stack:
        stack.environment_more["BENCHMARK_CONF"] = json.dumps({"bridge_lease": LEASE_S, "bridge_window": 50_000})
        port = free_port()
        with_port = ("--http", f"{HOST}:{port}")

        def start(more: tuple[str, ...]) -> int:
            return stack.start("master", "-m", "bridge", "-A", APP, "run", "-l", "WARNING", *more).pid

        leader = start(with_port if case.port in (IDLE, HERE) else ())
        stack.wait(lambda: bool(stack.redis.exists(KEYS.leader)), "a leader", 30.0)
        if case.port == BESIDE:
            start(with_port)
        stack.start("simulated", "-m", "benchmarks.simulated", stack.server.url, str(CONSUMERS), str(SLOTS))
        stack.wait(lambda: stack.redis.hlen(KEYS.consumers) >= CONSUMERS, "the simulated consumers", 30.0)
        began = time.monotonic()
        if case.load:
            kind, count = LOADS[case.load]
            wait_for_port(stack, port)
            stack.start("load", "-m", "benchmarks.http_callers", stack.server.url, str(port), kind, str(count))
            stack.wait(lambda: bool(stack.redis.exists(READY)), "the load", 900.0)
        ready_s = time.monotonic() - began
        push(stack.server.url, "noop", items(messages, TICKETS))
        thread = _leaders_thread(stack, leader)
        done = settled(stack)
        stack.wait(lambda: done() >= messages * FROM, "the first messages", 120.0)
        started, first, used, cpu = time.perf_counter(), done(), _used_s(leader, thread), stack.cpu()
        stack.wait(lambda: done() >= messages * TO, "the messages", 600.0)
        seconds, count = time.perf_counter() - started, done() - first
        used, after = _used_s(leader, thread) - used, stack.cpu()
        return {
            "rate": count / seconds,
            "leader_us": used / count * 1e6,
            "masters_us": (after["master"] - cpu["master"]) / count * 1e6,
            "ready_s": ready_s,
        }


def _leaders_thread(stack: Stack, pid: int) -> int:
    file = stack.folder / f"threads.{pid}"
    os.kill(pid, signal.SIGUSR1)
    stack.wait(file.exists, "the leader's threads", 10.0)
    [found] = [thread for name, thread in json.loads(file.read_text()).items() if name.startswith("bridge-lane-")]
    return int(found)


def _used_s(pid: int, thread: int) -> float:
    """Seconds of processor time of one thread."""
    return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0]) / 1e9


@click.command(help=__doc__)
@click.option("--load", "loads", multiple=True, type=click.Choice(list(LOADS)), help="By default all but polls10k.")
@click.option("--messages", default=40_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(loads: tuple[str, ...], messages: int, rounds: int) -> None:
    """Runs all cases in turn, several times."""
    chosen = loads or tuple(name for name in LOADS if name != "polls10k")
    cases = [Case(WITHOUT), Case(IDLE), *(Case(port, load) for load in chosen for port in (BESIDE, HERE))]
    found: dict[str, list[Metrics]] = defaultdict(list)
    for number in range(rounds):
        # Each case comes first once, so a machine that grows slower hurts all of them.
        for case in cases[number % len(cases) :] + cases[: number % len(cases)]:
            found[str(case)].append(run(case, messages))
            one = found[str(case)][-1]
            click.echo(f"  {case}: {one['rate']:,.0f}/s, leader {one['leader_us']:.0f} µs", err=True)
    middle = {case: {name: statistics.median(o[name] for o in of) for name in of[0]} for case, of in found.items()}
    without = middle[WITHOUT]
    for name, one in middle.items():
        click.echo(
            f"{name:18} {one['rate']:8,.0f} messages/s ({one['rate'] / without['rate']:.2f})   "
            f"leader {one['leader_us']:4.0f} µs ({one['leader_us'] / without['leader_us']:.2f})   "
            f"masters {one['masters_us']:4.0f} µs   load there after {one['ready_s']:.1f} s"
        )
    sys.exit(0)


if __name__ == "__main__":
    main()
