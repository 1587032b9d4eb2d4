"""Puts messages where the peers take them from."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from celery import Celery

from benchmarks.stack import KEYS
from bridge.link.connections import Wire, client

#: Commands that go to the server in one piece.
PIECE = 1000
#: The queue that a Celery worker takes from by default.
QUEUE = "celery"

#: (ticket, payload)
Item = tuple[str, dict[str, int]]


def items(count: int, tickets: int, *, numbered_from: dict[int, int] | None = None) -> Iterator[Item]:
    """``count`` messages over ``tickets`` tickets, in an order that is random and the same each time.

    They are dealt like cards, every ticket once before any comes again: with tickets of different length, a run would
    end in a tail of the longest one alone, which is the dice's doing and not a peer's.
    """
    dice = random.Random(count * 7919 + tickets)
    numbers = {} if numbered_from is None else numbered_from
    deal: list[int] = []
    for _ in range(count):
        if not deal:
            deal = dice.sample(range(tickets), tickets)
        ticket = deal.pop()
        numbers[ticket] = number = numbers.get(ticket, 0) + 1
        yield f"T{ticket}", {"t": ticket, "n": number}


def push(url: str, task: str, messages: Iterable[Item]) -> None:
    """Adds messages to the stream, as fast as one connection takes them."""
    connection: Any = client(url, timeout_s=60).connection_pool.make_connection()
    connection.connect()
    rest = iter(messages)
    try:
        while piece := list(islice(rest, PIECE)):
            commands = [
                ("XADD", KEYS.stream, "*", "ticket_id", ticket, "task", task, "payload", json.dumps(payload))
                for ticket, payload in piece
            ]
            connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            for _ in piece:
                connection.read_response()
    finally:
        connection.disconnect()


def enqueue(url: str, task: str, messages: Iterable[Item]) -> None:
    """Calls ``apply_async`` for each message."""
    app = Celery("producer", broker=url)
    send = app.task(name=task, ignore_result=True)(_never)
    for item in messages:
        send.apply_async(item)
    app.close()


def reveal(url: str, hidden_db: int) -> None:
    """Moves Celery's queue from database ``hidden_db`` to database 0, all of it at once: the workers' start signal."""
    wire = Wire(url, timeout_s=10)
    wire.call("SELECT", hidden_db)
    wire.call("MOVE", QUEUE, 0)
    wire.close()


def _never(ticket: str, payload: dict[str, int]) -> None:
    raise AssertionError(f"{ticket} {payload} was run by its producer")
