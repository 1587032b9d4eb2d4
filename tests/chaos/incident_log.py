"""An incident log as the messages of a soak: each ticket's events by their number, tickets interleaved by time.

A log that is too short is repeated with renamed tickets: the second round's are ``INC0000045~2`` and so on. The state
of an incident does not depend on its name, so what Spark says of a ticket holds for its namesakes.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridge.spark.incidents import COLUMNS
from tests.chaos.feeder import Planned, Source

#: Between a ticket and the number of its round.
ROUND = "~"


class LogError(Exception):
    """The log cannot be used, in words."""


def read_log(path: Path, messages: int) -> list[tuple[str, str]]:
    """(ticket, payload) of every event, in the order in which they are pushed. Raises `LogError`.

    Of a log that is longer than ``messages``, only the first tickets, whole, that have at least so many.
    """
    events: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
        if missing:
            raise LogError(f"{path} is no incident log: it has no column {', '.join(missing)}")
        for row in rows:
            payload = json.dumps({name: row[name] for name in COLUMNS if name != "ticket_id"}, separators=(",", ":"))
            events[row["ticket_id"]].append((int(row["seq"]), row["timestamp"], payload))
    placed: list[tuple[str, int, str, str]] = []
    for ticket, found in events.items():
        if len(placed) >= messages:
            break
        found.sort()
        clock = ""
        for place, (seq, timestamp, payload) in enumerate(found, start=1):
            if seq != place:
                raise LogError(f"{path}: event {place} of {ticket} is missing; the next one is number {seq}")
            # The clock never goes back within a ticket, so the numbers decide there.
            clock = max(clock, timestamp)
            placed.append((clock, seq, ticket, payload))
    placed.sort()
    return [(ticket, payload) for _, _, ticket, payload in placed]


def rounds(log: list[tuple[str, str]], messages: int) -> Source:
    """At least ``messages`` messages, every round whole: a state can be compared only when all its events are there."""

    def all_messages() -> Iterator[Planned]:
        for number in range(1, count_rounds(log, messages) + 1):
            suffix = f"{ROUND}{number}" if number > 1 else ""
            for ticket, payload in log:
                yield ticket + suffix, "", payload, False

    planned = all_messages()
    return lambda _counts: next(planned, None)


def count_rounds(log: list[tuple[str, str]], messages: int) -> int:
    """How many rounds make at least ``messages`` messages."""
    return max(1, -(-messages // len(log)))


def original(ticket: str) -> str:
    """The name in the log of a ticket of any round."""
    return ticket.partition(ROUND)[0]
