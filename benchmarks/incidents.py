"""A real incident log end to end: the demo's fold by the bridge with its state, against plain Celery with locks."""

from __future__ import annotations

import csv
import gzip
import io
import os
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.apps.incidents_names import BRIDGED
from benchmarks.feed import enqueue, push, reveal
from benchmarks.peers.node import NotInstalled
from benchmarks.results import Metrics
from benchmarks.stack import Stack
from benchmarks.throughput import HIDDEN_DB, clocked, settled

#: Environment variable that names the log: a CSV, gzipped or not, with the columns that `tasks.incidents` reads.
LOG = "TICKET_BRIDGE_INCIDENT_LOG"
#: Events of each variant, from the beginning of the log.
EVENTS = {"keyed": 60_000, "lock": 6_000}


def events(path: Path, count: int) -> list[tuple[str, Any]]:
    """(ticket, event) of the first ``count`` events."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as raw:
        text = io.TextIOWrapper(raw, encoding="utf-8", newline="")
        return [(row["ticket_id"], row) for row in islice(csv.DictReader(text), count)]


def run(variant: str, scale: float) -> Metrics:
    """One run of one variant. Raises `NotInstalled` where there is no log."""
    named = os.environ.get(LOG, "")
    if not named or not Path(named).is_file():
        raise NotInstalled(f"no incident log: --log FILE or {LOG} names one ({named or 'not set'})")
    found = events(Path(named), max(400, int(EVENTS[variant] * scale)))
    with Stack("incidents") as stack:
        if variant == "keyed":
            stack.environment_more[BRIDGED] = "1"
        stack.start_workers(1, 2)
        if variant == "keyed":
            push(stack.server.url, "event", found)
            stack.start_master()
            return clocked(stack, settled(stack), len(found))
        enqueue(stack.server.url.removesuffix("/0") + f"/{HIDDEN_DB}", "event", found)
        reveal(stack.server.url, HIDDEN_DB)
        metrics = clocked(stack, stack.tally.done, len(found))
        return {**metrics, "misplaced": 100.0 * stack.tally.misplaced() / len(found)}
