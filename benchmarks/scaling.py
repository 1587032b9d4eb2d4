"""What a message costs with few and with many tickets, waiting messages, workers: processor time of all processes."""

from __future__ import annotations

from benchmarks.backlog import stuck, wait_until_read
from benchmarks.feed import items, push
from benchmarks.results import Metrics
from benchmarks.stack import KEYS, Stack
from benchmarks.throughput import clocked, settled

#: Case -> (few, many by default, many in full).
SIZES = {
    "scale_tickets": (1_000, 50_000, 1_000_000),
    "scale_waiting": (10_000, 200_000, 5_000_000),
    "scale_workers": (1, 4, 16),
}
#: Messages that are measured at least, and the tickets where these are not what is scaled.
MESSAGES = 60_000
TICKETS = 1_000


def run(case: str, full: bool, variant: str, scale: float) -> Metrics:
    """One run, with ``few`` or ``many`` of what the case is about."""
    few, many, all_of_them = SIZES[case]
    size = few if variant == "few" else all_of_them if full else many
    if case == "scale_tickets":
        # As many messages with few tickets as with many.
        return _tickets(size, max(int(MESSAGES * scale), all_of_them if full else many))
    if case == "scale_waiting":
        return _waiting(size, int(MESSAGES * scale))
    return _workers(size, int(MESSAGES * scale))


def _tickets(tickets: int, messages: int) -> Metrics:
    with Stack("bridged") as stack:
        stack.start_workers(1, 2)
        push(stack.server.url, "noop", items(messages, tickets))
        stack.start_master()
        return _cost(clocked(stack, settled(stack), messages))


def _waiting(waiting: int, messages: int) -> Metrics:
    """Behind one ticket that does not finish; the others are measured."""
    with Stack("bridged") as stack:
        stack.start_workers(1, 3)
        stack.start_master()
        stack.wait(lambda: bool(stack.redis.exists(KEYS.stream)), "the group", 60.0)
        push(stack.server.url, "stuck", stuck(1, waiting + 1))
        wait_until_read(stack)
        push(stack.server.url, "noop", items(messages, TICKETS))
        return _cost(clocked(stack, settled(stack), messages))


def _workers(workers: int, messages: int) -> Metrics:
    with Stack("bridged") as stack:
        stack.start_workers(workers, 1)
        push(stack.server.url, "noop", items(messages, TICKETS))
        stack.start_master()
        return _cost(clocked(stack, settled(stack), messages))


def _cost(metrics: Metrics) -> Metrics:
    return {"cpu_us": sum(value for name, value in metrics.items() if name.endswith("_us")), **metrics}
