"""What every peer's tasks do, so that only what is around them differs. Runs in worker processes."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery, signals

from benchmarks.tally import FOLDER, Tally

#: Environment variable with the server's URL.
URL = "BENCHMARK_URL"

_folder = Path(os.environ[FOLDER])
_tally = Tally(_folder)

#: A message: ``t`` number of its ticket, ``n`` its own number within the ticket (1, 2, …).
Payload = dict[str, Any]


def noop(ticket: str, payload: Payload) -> None:
    """Does nothing but to be counted."""
    del ticket
    _tally.count(payload["t"], payload["n"])


def counted(*, late: bool) -> None:
    """The same, for messages that know by themselves whether they came out of order."""
    _tally.ran(late=late)


def nap(ticket: str, payload: Payload) -> None:
    """Sleeps 10 ms: waiting for some other system, as most tasks do."""
    time.sleep(0.010)
    noop(ticket, payload)


def long_nap(ticket: str, payload: Payload) -> None:
    """Sleeps 100 ms."""
    time.sleep(0.100)
    noop(ticket, payload)


def up_to_5_ms(ticket: str, payload: Payload) -> None:
    """Sleeps 0 to 5 ms, by chance."""
    time.sleep(random.uniform(0.0, 0.005))
    noop(ticket, payload)


def stamp(ticket: str, payload: Payload) -> None:
    """Notes when it was started."""
    at_ns = time.monotonic_ns()
    _tally.started(payload["n"], at_ns)
    noop(ticket, payload)


def sometimes_slow(ticket: str, payload: Payload) -> None:
    """Notes when it was started; takes 1 s where its payload says so."""
    stamp(ticket, payload)
    if payload.get("slow"):
        time.sleep(1.0)


def folded(state: Mapping[str, Any], payload: Payload) -> dict[str, Any]:
    """What a message changes in the state of its ticket."""
    return {
        "count": int(state.get("count", 0)) + 1,
        "total": int(state.get("total", 0)) + payload["n"],
        "last": f"message {payload['n']} of ticket {payload['t']}",
    }


def stuck(ticket: str, payload: Payload) -> None:
    """Does not finish while the benchmark runs."""
    del ticket, payload
    time.sleep(3600)


TASKS = (noop, nap, long_nap, up_to_5_ms, stamp, sometimes_slow, stuck)


def configure(app: Celery) -> Celery:
    """The server, and word of a worker that is ready. All else stays as Celery has it."""
    app.conf.broker_url = os.environ[URL]
    # Only silences a warning that every start would print.
    app.conf.broker_connection_retry_on_startup = True

    @signals.worker_ready.connect(weak=False)
    def ready(sender: Any, **_: Any) -> None:
        (_folder / f"ready.{sender.hostname}").touch()

    return app
