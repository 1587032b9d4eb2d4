"""`push_many` against `push` in a loop, in the same run: how many times faster a message gets into the stream.

python -m benchmarks.push [ROUNDS]
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import click
from celery import Celery

import bridge
from bridge.stack.embedded import EmbeddedServer

#: Messages of one round.
SINGLE, MANY = 3_000, 50_000


@click.command()
@click.argument("rounds", type=click.IntRange(1), default=5)
def main(rounds: int) -> None:
    """Prints the medians of ROUNDS rounds (5 unless given)."""
    with EmbeddedServer(append_only=False) as server:
        task = _task(server.url)
        messages = [(f"T{n % 1000}", {"amount": n}) for n in range(MANY)]
        ways: dict[str, Callable[[int], None]] = {
            "push_many": lambda _: task.push_many(messages),
            "push_many, with a key": lambda n: task.push_many(messages, idempotency_key=f"round-{n}"),
            "apush_many": lambda _: asyncio.run(_apush_many(task, messages)),
        }
        ratios: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds):
            one_s = _seconds(lambda: [task.push(*message) for message in messages[:SINGLE]]) / SINGLE
            for name, way in ways.items():
                took_s = _seconds(partial(way, number)) / MANY
                ratios[name].append(one_s / took_s)
                print(f"{name}: {took_s * 1e6:.2f} us a message, push in a loop {one_s * 1e6:.1f} us")
        for name, found in ratios.items():
            print(f"{name}: {statistics.median(found):.1f} times push in a loop ({min(found):.1f} to {max(found):.1f})")


def _seconds(what: Callable[[], Any]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


async def _apush_many(task: Any, messages: list[tuple[str, Any]]) -> None:
    await task.apush_many(messages)
    await task.app.bridge.aclose()


def _task(url: str) -> Any:
    app = Celery("push", broker=url, set_as_current=False)
    bridge.install(app)

    def pushed(self: Any, ticket_id: str, payload: Any) -> None:
        del self, ticket_id, payload

    return app.task(bind=True, name="benchmarks.pushed", lazy=False, shared=False)(pushed)


if __name__ == "__main__":
    main()
