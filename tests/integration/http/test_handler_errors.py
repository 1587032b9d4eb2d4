"""What handlers of `HttpConsumer` raise, of whatever kind and size, beside good messages: a real master."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bridge.consumer import GiveUp, HttpConsumer, Message, Refuse
from bridge.stack.ports import HOST
from bridge.testing.waiting import wait_until
from tests.integration.http.http_consumers import HttpLane

#: By default in this lane.
ATTEMPTS = 3
GOOD, EACH = 8, 3


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _raise(kind: Callable[..., BaseException], *arguments: object, **options: object) -> Callable[[], None]:
    def handle() -> None:
        raise kind(*arguments, **options)

    return handle


#: Kind -> what its handler does. Each was an error that stopped the acknowledgements, or a handler's thread.
KINDS: dict[str, Callable[[], object]] = {
    "a long error": _raise(ValueError, "x" * 300_000),
    "half a pair": _raise(ValueError, "a\ud800b"),
    "NUL": _raise(ValueError, "a\0b"),
    "a negative delay": _raise(Refuse, "no", delay=-1),
    "a delay that is no number": _raise(Refuse, "no", delay=float("nan")),
    "a delay of ages": _raise(Refuse, "no", delay=1e12),
    "a delay of another kind": _raise(Refuse, "no", delay="soon"),
    "sys.exit": lambda: sys.exit(3),
    "an error of no kind": _raise(BaseException, "b"),
    "the end of a generator": _raise(GeneratorExit),
    "an interrupt": _raise(KeyboardInterrupt),
    "no text": _raise(Mute),
}
DEAD_AT_ONCE: dict[str, Callable[[], object]] = {"gives up at length": _raise(GiveUp, "\ud800" * 300_000)}


@contextmanager
def consuming(lane: HttpLane, handle: Callable[[Message], object], concurrency: int) -> Iterator[None]:
    consumer = HttpConsumer(f"http://{HOST}:{lane.ports['m1']}", "h1", handle, concurrency=concurrency, wait_s=5)
    thread = threading.Thread(target=consumer.run, daemon=True)
    thread.start()
    lane.wait_consumers(1)
    try:
        yield
    finally:
        consumer.stop()
        thread.join(30)
    assert not thread.is_alive()


# Of four threads, each kind of error would end more than there are.
@pytest.mark.parametrize("concurrency", [pytest.param(1, marks=pytest.mark.long), 4])
def test_whatever_a_handler_raises_is_its_messages_failure_alone(lane: HttpLane, concurrency: int) -> None:
    bad = KINDS | DEAD_AT_ONCE
    runs: Counter[tuple[str, int]] = Counter()

    def handle(message: Message) -> None:
        runs[message.ticket_id, message.payload["n"]] += 1
        if message.ticket_id in bad:
            bad[message.ticket_id]()

    with consuming(lane, handle, concurrency):
        for n in range(EACH):
            for ticket in (*bad, *(f"T{t}" for t in range(GOOD))):
                lane.push(ticket, {"n": n})
        wait_until(lambda: lane.count("done") == GOOD * EACH, description="the good messages")
        wait_until(lambda: lane.count("dead") == len(bad) * EACH, description="the bad messages")
    attempts = {**dict.fromkeys(KINDS, ATTEMPTS), **dict.fromkeys(DEAD_AT_ONCE, 1)}
    assert runs == {
        (ticket, n): attempts.get(ticket, 1) for ticket in (*bad, *(f"T{t}" for t in range(GOOD))) for n in range(EACH)
    }
    lane.assert_at_rest()
