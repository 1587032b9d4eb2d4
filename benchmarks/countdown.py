"""Delayed messages beside Celery's ``countdown`` on Redis: memory, order, and what a kill does.

    python -m benchmarks.countdown --messages 100000
    python -m benchmarks.countdown --messages 20000 --messages 60000 --parts memory

Both have two pool processes and the same server. Three questions for each:

- **Memory.** So many messages are pushed that are due in half an hour or later. Measured when all are where they wait.
  Of several numbers of messages each is measured, and the slope from the first to the last one says what a further
  message costs.
- **Kill.** Then the worker gets SIGKILL, of the bridge also the leader, and new ones are started. A thousand messages
  are due some seconds later: how many of them came within a minute?
- **Order.** Messages of 50 tickets become due at one time. How many were executed out of the order of their ticket?
"""

from __future__ import annotations

import argparse
import base64
import json
import signal
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

import psutil
from celery import Celery

from benchmarks.feed import QUEUE, Item, items
from benchmarks.stack import KEYS, START_S, Stack
from bridge.link.connections import Wire
from bridge.routing.partitions import Layout
from bridge.routing.producing import LOADING, ids_in, places_of, push_many

#: When the messages of the memory part are due, in seconds. Celery's visibility timeout is an hour.
FAR_S = 1800
#: Messages that are due soon after the kill, and how many seconds after they are pushed.
SOON = 1000
SOON_S = 20
#: Seconds to wait for them after they are due.
PATIENCE_S = 60
#: Messages a second that are taken in at least. Celery takes them in one by one.
SLOWEST = 50
#: How the names of figures in bytes for each message end.
PER_MESSAGE = "_bytes_per_message"
#: The parts.
PARTS = ("memory", "kill", "order")
#: Messages and tickets of the order part, and when they are due.
ORDERED, TICKETS = 5000, 50
ORDERED_S = 8
PIECE = 500


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, action="append", help="messages that wait; may be repeated [100000]")
    parser.add_argument("--only", choices=("plain", "bridge"), help="one of the two")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="[default: all]")
    asked = parser.parse_args()
    for variant in ("plain", "bridge"):
        if asked.only not in (None, variant):
            continue
        rounds = []
        for count in asked.messages or [100_000]:
            rounds.append(measure(variant, count, asked.parts))
            print(json.dumps({"variant": variant, **rounds[-1]}), flush=True)
        if "memory" in asked.parts and len(rounds) > 1:
            print(json.dumps({"variant": variant, "slope": slope(rounds[0], rounds[-1])}), flush=True)


def measure(variant: str, count: int, parts: Sequence[str] = PARTS) -> dict[str, float]:
    """The figures of one variant. The order is measured on a stack of its own."""
    found = {"messages": float(count)}
    if "memory" in parts or "kill" in parts:
        with _started(variant) as stack:
            # Where messages wait, the kill finds them.
            found |= _memory(stack, variant, count)
            if "kill" in parts:
                found |= _kill(stack, variant)
    if "order" in parts:
        with _started(variant) as stack:
            found |= _order(stack, variant)
    return found


def slope(first: dict[str, float], last: dict[str, float]) -> dict[str, float]:
    """Bytes that each further message costs, by role."""
    more = last["messages"] - first["messages"]
    names = [name for name in first if name.endswith(PER_MESSAGE)]
    return {name: (last[name] * last["messages"] - first[name] * first["messages"]) / more for name in names}


def _started(variant: str) -> Stack:
    return _Started("bridged" if variant == "bridge" else "plain", with_master=variant == "bridge")


class _Started(Stack):
    """A stack with a worker, and with a master."""

    def __init__(self, app: str, *, with_master: bool) -> None:
        super().__init__(app)
        self._with_master = with_master

    def __enter__(self) -> _Started:
        super().__enter__()
        self.start_workers(1, 2)
        if self._with_master:
            self.start_master()
        return self


# -- the parts -----------------------------------------------------------------------------------------------------


def _memory(stack: Stack, variant: str, count: int) -> dict[str, float]:
    time.sleep(2.0)
    before = _sizes(stack)
    began = time.monotonic()
    _push(stack, variant, items(count, TICKETS), max(FAR_S, 2 * count / SLOWEST))
    pushed = time.monotonic()
    stack.wait(lambda: _waiting(stack, variant) >= count, "all messages to wait", 60 + count / SLOWEST, 0.25)
    taken = time.monotonic()
    after = _sizes(stack)
    found = {f"{role}{PER_MESSAGE}": (after[role] - before[role]) / count for role in after}
    return {"push_s": pushed - began, "taken_in_s": taken - began, **found}


def _kill(stack: Stack, variant: str) -> dict[str, float]:
    """Kills what holds the messages, or could, and counts which of the next thousand come in time."""
    there = _waiting(stack, variant)
    _push(stack, variant, ((f"T{n}", {"t": n, "n": 1}) for n in range(100, 100 + SOON)), SOON_S)
    due = time.monotonic() + SOON_S
    stack.wait(lambda: _waiting(stack, variant) >= there + SOON, "the next messages to wait", SOON_S / 2, 0.05)
    waiting = _waiting(stack, variant)
    roles = ["worker"] + (["master"] if variant == "bridge" else [])
    for role in roles:
        process = stack.process(role)
        stack.release(process)
        process.send_signal(signal.SIGKILL)
    done = stack.tally.done()
    arguments = ("-m", "celery", "-A", stack._app, "worker", "-n", "w9@bench", "-c", "2", "-l", "WARNING")
    stack.start("worker", *arguments)
    if variant == "bridge":
        stack.start_master()
    stack.wait(lambda: len(stack.tally.ready()) >= 2, "the new worker", START_S)
    end = max(due, time.monotonic()) + PATIENCE_S
    while time.monotonic() < end and stack.tally.done() - done < SOON:
        time.sleep(0.1)
    came = stack.tally.done() - done
    late_s = max(0.0, time.monotonic() - due) if came >= SOON else -1.0
    return {
        "waiting_at_kill": waiting,
        "due_after_kill": SOON,
        "came": came,
        "last_came_s_after_due": late_s,
        "still_waiting": _waiting(stack, variant),
    }


def _order(stack: Stack, variant: str) -> dict[str, float]:
    _push(stack, variant, items(ORDERED, TICKETS), ORDERED_S)
    due = time.monotonic() + ORDERED_S
    stack.wait(lambda: stack.tally.done() >= ORDERED, "the messages to be done", 120.0)
    return {
        "ordered_messages": ORDERED,
        "out_of_order": stack.tally.misplaced(),
        "all_done_s_after_due": time.monotonic() - due,
    }


def _sizes(stack: Stack) -> dict[str, int]:
    """Bytes of memory of each role."""
    info: Any = stack.redis.info("memory")
    found = {"server": int(info["used_memory"]), "worker": _rss(stack.process("worker"))}
    if "master" in stack.cpu():
        found["master"] = _rss(stack.process("master"))
    return found


def _rss(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _waiting(stack: Stack, variant: str) -> int:
    """Messages where they wait: held unacknowledged by the worker, or delayed in the lane."""
    found: Any = stack.redis.zcard(KEYS.delayed) if variant == "bridge" else stack.redis.hlen("unacked")
    return int(found)


# -- pushing -------------------------------------------------------------------------------------------------------


def _push(stack: Stack, variant: str, messages: Iterable[Item], delay_s: float) -> None:
    if variant == "bridge":
        _push_delayed(stack, messages, delay_s)
    else:
        _call_with_countdown(stack, messages, delay_s)


def _push_delayed(stack: Stack, messages: Iterable[Item], delay_s: float) -> None:
    places = places_of(KEYS.stream, Layout(), [0])
    wire = Wire(stack.server.url)
    for loading in LOADING:
        wire.call(*loading)
    for some in _pieces(messages):
        arguments = [
            part
            for ticket, payload in some
            for part in (ticket.encode(), json.dumps(payload).encode(), b"+%d" % (delay_s * 1000))
        ]
        packed = b"".join([b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments])
        wire.ask_packed(push_many(places, "noop", len(arguments), ("due",)) + packed)
        ids = ids_in(wire.answer(), "")
        assert len(ids) == len(some)
    wire.close()


def _call_with_countdown(stack: Stack, messages: Iterable[Item], delay_s: float) -> None:
    """As ``apply_async(…, countdown=…)``, which takes a third of a millisecond: one call is the others' pattern."""
    with closing(Celery("producer", broker=stack.server.url)) as app:
        task = app.task(name="noop", ignore_result=True)(_never)
        hidden = f"{QUEUE}.pattern"
        sent = task.apply_async(("TICKET", {"t": -1, "n": -1}), countdown=delay_s, queue=hidden)
    raw: Any = stack.redis.rpop(hidden)
    pattern = json.loads(raw)
    pattern["properties"]["delivery_info"]["routing_key"] = QUEUE
    for some in _pieces(messages):
        made = [_message(pattern, sent.id, item) for item in some]
        stack.redis.lpush(QUEUE, *made)


def _message(pattern: dict[str, Any], id_: str, item: Item) -> str:
    fresh = str(uuid.uuid4())
    body = json.dumps([list(item), {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
    made = {**pattern, "body": base64.b64encode(body.encode()).decode()}
    made["properties"] = {**pattern["properties"], "delivery_tag": str(uuid.uuid4())}
    return json.dumps(made).replace(id_, fresh)


def _pieces(messages: Iterable[Item]) -> Iterator[list[Item]]:
    rest = iter(messages)
    while some := list(islice(rest, PIECE)):
        yield some


def _never(ticket: str, payload: dict[str, int]) -> None:
    raise AssertionError(f"{ticket} {payload} was run by its producer")


if __name__ == "__main__":
    main()
