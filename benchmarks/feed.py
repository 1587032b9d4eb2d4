"""Puts messages where the peers take them from."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any
from zlib import crc32

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


def enqueue(url: str, task: str, messages: Iterable[Item], *, queues: int = 0) -> None:
    """Calls ``apply_async`` for each message.

    ``queues``: of how many queues a hash of the ticket chooses one; 0: all go to Celery's own.
    """
    app = Celery("producer", broker=url)
    send = app.task(name=task, ignore_result=True)(_never)
    for item in messages:
        send.apply_async(item, queue=queue_of(item[0], queues))
    app.close()


def queue_of(ticket: str, queues: int) -> str:
    """The queue of a ticket, where there are so many; with 0 that of every Celery worker."""
    return f"q{crc32(ticket.encode()) % queues}" if queues else QUEUE


def reveal(url: str, hidden_db: int, *, queues: int = 0) -> None:
    """Moves Celery's queues from database ``hidden_db`` to database 0, each of them at once: the workers' start."""
    wire = Wire(url, timeout_s=10)
    wire.call("SELECT", hidden_db)
    for name in [f"q{i}" for i in range(queues)] or [QUEUE]:
        wire.call("MOVE", name, 0)
    wire.close()


def _never(ticket: str, payload: dict[str, int]) -> None:
    raise AssertionError(f"{ticket} {payload} was run by its producer")
