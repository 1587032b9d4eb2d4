"""How many messages a second the peers handle, end to end, with everything waiting from the start.

Each run: a fresh server, the workers up, the queue or stream filled out of their sight, then revealed in one step
(Celery's queue is moved from another database; for the bridge the master is started). The clock runs from the moment
at which a tenth is done (everybody is awake and measured by then) to the end.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import psutil

from benchmarks.feed import enqueue, items, push, reveal
from benchmarks.peers.node import fill, work
from benchmarks.results import DISTURBANCE, Metrics
from benchmarks.stack import HISTORY, KEYS, URL, Stack

#: Database in which Celery's queue is filled.
HIDDEN_DB = 1
#: Share of the messages before the clock starts.
WARM_UP = 0.1
#: Seconds without any progress after which a run has failed.
STALL_S = 60.0

#: What GroupMQ may do at once in each process.
CONCURRENCIES = (2, 8, 32)
#: Case -> the best of these.
_best: dict[str, int] = {}

#: What the variants are.
PEERS = {
    "plain": "plain Celery, no order",
    "lock": "Celery, a Redis lock per ticket",
    "bundles": "the bridge",
    "singles": "the bridge, bundles off",
}
#: The same where the price of the history is asked for.
PRICED = {
    **PEERS,
    "events": "the bridge, task events on",
    "heard": "the same, and a client that gets the events",
    "results": "the bridge, results kept in Redis",
    "bare": "the bridge, history off",
    "bare_singles": "the bridge, bundles and history off",
    "audited": "the bridge, and an audit that follows",
}
#: Those whose tasks read the state of their ticket, and write it back.
STATEFUL = {
    "plain": "plain Celery: HGETALL and HSET, no order",
    "bundles": "the bridge: HGETALL, effects",
    "keyed": "the bridge: bridge_state",
}
#: More peers, for `benchmarks.goals`.
OTHERS = {
    "queues": "Celery, a queue and a one-process worker for each hash of the ticket",
    "groupmq": "GroupMQ (Node), at its best concurrency",
}
#: Variants of the bridge -> bundles on, history on.
BRIDGED: dict[str, tuple[bool, bool]] = {
    "bundles": (True, True),
    "singles": (False, True),
    "bare": (True, False),
    "bare_singles": (False, False),
    "audited": (True, True),
    "events": (True, True),
    "heard": (True, True),
    "results": (True, True),
    "keyed": (True, True),
}


@dataclass(frozen=True)
class Load:
    """What one case asks for. ``messages``: of each variant, so that each runs for some seconds."""

    task: str
    tickets: int
    workers: int
    concurrency: int
    messages: dict[str, int]
    #: Messages a second if all processes did nothing but the tasks' own work; 0: there is no such bound.
    ideal: float = 0.0
    #: Seconds that the way to the server takes, there and back.
    round_trip_s: float = 0.0
    #: Variant -> its task, where it is another one.
    tasks: Mapping[str, str] = field(default_factory=dict)


LOADS = {
    "tickets": Load(
        "noop", 1000, 1, 2,
        {
            "plain": 8_000, "lock": 5_000, "bundles": 80_000, "singles": 8_000, "events": 80_000,
            "bare": 80_000, "bare_singles": 8_000, "audited": 80_000, "queues": 8_000, "groupmq": 40_000,
            "heard": 80_000, "results": 40_000,
        },
        tasks={"results": "noop_with_result"},
    ),
    "eight": Load(
        "nap", 8, 2, 4, {"plain": 4_000, "lock": 800, "bundles": 4_000, "singles": 4_000}, ideal=800.0
    ),
    "hot": Load(
        "noop", 1, 1, 2, {"plain": 8_000, "lock": 3_000, "bundles": 30_000, "singles": 4_000, "groupmq": 10_000}
    ),
    "far": Load("noop", 1000, 1, 2, {"plain": 2_000, "bundles": 40_000}, round_trip_s=0.002),
    "eight_long": Load("long_nap", 8, 2, 4, {"bundles": 600}, ideal=80.0),
    "state": Load(
        "fold", 1000, 1, 2, {"plain": 6_000, "bundles": 20_000, "keyed": 60_000, "groupmq": 30_000},
        tasks={"bundles": "fold_by_effects"},
    ),
}  # fmt: skip


def run(case: str, variant: str, scale: float) -> Metrics:
    """One run of one variant; ``scale`` shrinks it."""
    load = LOADS[case]
    count = max(400, int(load.messages[variant] * scale))
    if variant == "groupmq":
        return _groupmq(case, count)
    metrics = _bridge(load, variant, count) if variant in BRIDGED else _celery(load, variant, count)
    if load.ideal:
        metrics["of_ideal"] = 100.0 * metrics["rate"] / load.ideal
    return metrics


def _bridge(load: Load, variant: str, count: int) -> Metrics:
    bundled, historical = BRIDGED[variant]
    with Stack("bridged", bundle_ms=10.0 if bundled else 0.0) as stack:
        _put_far_away(stack, load)
        if not historical:
            stack.environment_more[HISTORY] = "0"
        if variant == "heard":
            stack.start("listener", "-m", "benchmarks.listener", stack.server.url)
        if variant in ("events", "heard"):
            stack.environment_more["BENCHMARK_CONF"] = json.dumps({"worker_send_task_events": True})
        if variant == "results":
            stack.environment_more["BENCHMARK_CONF"] = json.dumps({"result_backend": stack.server.url})
        stack.start_workers(load.workers, load.concurrency)
        push(stack.server.url, load.tasks.get(variant, load.task), items(count, load.tickets))
        stack.start_master()
        if variant == "audited":
            stack.start("audit", "-m", "bridge", "-A", "benchmarks.apps.bridged", "audit", "--follow")
        return _clocked_in_order(stack, settled(stack), count)


def _celery(load: Load, variant: str, count: int) -> Metrics:
    """Plain Celery, with locks, or with a queue for each one-process worker: as many processes in all."""
    queues = load.workers * load.concurrency if variant == "queues" else 0
    with Stack("locked" if variant == "lock" else "plain") as stack:
        _put_far_away(stack, load)
        if queues:
            stack.start_workers(queues, 1, queues=True)
        else:
            stack.start_workers(load.workers, load.concurrency)
        hidden = stack.server.url.removesuffix("/0") + f"/{HIDDEN_DB}"
        enqueue(hidden, load.task, items(count, load.tickets), queues=queues)
        reveal(stack.server.url, HIDDEN_DB, queues=queues)
        return _clocked_in_order(stack, stack.tally.done, count)


def _groupmq(case: str, count: int) -> Metrics:
    """At the concurrency that was the best one in this process."""
    if case not in _best:
        tried = {number: _groupmq_at(case, count // 4, number)["rate"] for number in CONCURRENCIES}
        _best[case] = max(tried, key=tried.__getitem__)
    return {**_groupmq_at(case, count, _best[case]), "concurrency": float(_best[case])}


def _groupmq_at(case: str, count: int, concurrency: int) -> Metrics:
    load = LOADS[case]
    with Stack("plain") as stack:
        fill(stack, "groupmq", items(count, load.tickets))
        work(stack, "groupmq", load.workers * load.concurrency, load.task, str(concurrency))
        return clocked(stack, stack.tally.done, count)


def _put_far_away(stack: Stack, load: Load) -> None:
    """What is started from now on has the server behind a proxy that delays."""
    if load.round_trip_s:
        command = [sys.executable, "-m", "benchmarks.far", str(stack.server.port), f"{load.round_trip_s / 2}"]
        said = stack.talk(command).stdout
        assert said is not None
        stack.environment_more[URL] = f"redis://127.0.0.1:{int(said.readline())}/0"


def _clocked_in_order(stack: Stack, progress: Callable[[], int], count: int) -> Metrics:
    metrics = clocked(stack, progress, count)
    metrics["misplaced"] = 100.0 * stack.tally.misplaced() / count
    return metrics


def settled(stack: Stack) -> Callable[[], int]:
    """What counts as done on the bridge: recorded, acknowledged and released, by the lane's own counter."""
    return lambda: int(stack.redis.hget(KEYS.counts, "done") or 0)


def clocked(stack: Stack, progress: Callable[[], int], count: int, *, before: int = 0) -> Metrics:
    """The rate at which ``progress`` goes from ``before`` to ``before + count``, without the first tenth."""
    _reach(stack, progress, before + int(count * WARM_UP))
    used, others = stack.cpu(), busy()
    started, first = time.monotonic(), progress()
    _reach(stack, progress, before + count)
    seconds = time.monotonic() - started
    done = progress() - first
    metrics = {"rate": done / seconds, "seconds": seconds}
    others = busy() - others
    for role, cpu in stack.cpu().items():
        own = cpu - used.get(role, 0.0)
        metrics[f"{role}_us"] = 1e6 * own / done
        others -= own
    metrics[DISTURBANCE] = 100.0 * max(0.0, others) / seconds
    return metrics


def busy() -> float:
    """Seconds of CPU that all processes of the machine used so far: what is not this run's own disturbed it."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice


def _reach(stack: Stack, progress: Callable[[], int], target: int) -> None:
    """Waits for ``target``, for as long as anything moves at all."""
    while True:
        last = progress()
        if last >= target:
            return

        def moved(last: int = last) -> bool:
            return progress() > last

        stack.wait(moved, f"message {last + 1} of {target}", STALL_S, interval_s=0.003)
