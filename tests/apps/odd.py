"""Tasks that end in an unusual way: their exception cannot leave the process, or the process cannot go on."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import gevent
from celery import Celery
from celery.concurrency.asynpool import AsynPool
from celery.exceptions import Reject, Retry, WorkerShutdown

import bridge

URL = os.environ.get("CELERY_BROKER_URL")
app = Celery("odd", broker=URL, backend=URL)
bridge.install(app)
app.conf.update(
    bridge_lease=3.0,
    bridge_leader_lease=2.0,
    bridge_backoff={"base": 0.05, "jitter": 0.0},
    bridge_max_attempts=2,
    bridge_bundle_ms=float(os.environ.get("ODD_BUNDLE_MS", "10")),
    task_track_started=bool(os.environ.get("ODD_TRACK_STARTED")),
)
if os.environ.get("ODD_NO_TIMER"):
    # Celery's pool does not look at its processes unless something tells it to.
    AsynPool.timers = {}
#: Files that a pool process keeps open.
kept: list[Any] = []


#: None of these is an `Exception`. Celery, Python or a library treats each in its own way.
BASES = {
    "sys.exit": SystemExit,
    "interrupt": KeyboardInterrupt,
    "cancelled": asyncio.CancelledError,
    "shutdown": WorkerShutdown,
    "greenlet": gevent.GreenletExit,
    "timeout": gevent.Timeout,
}


class Exits(Exception):
    """Ends the process that unpickles it."""

    def __reduce__(self) -> Any:
        return (sys.exit, (3,))


def foreign(base: str = "Exception") -> Any:
    """An exception of a class in a module that no other process has imported."""
    module = sys.modules["only_here"] = ModuleType("only_here")
    exec(f"class OnlyHere({base}): pass\nOnlyHere.__module__ = 'only_here'", module.__dict__)
    return module.OnlyHere("of nobody's module")


def provoke(what: str) -> None:
    if what == "foreign":
        raise foreign()
    if what == "exits":
        raise Exits("three")
    if what == "memory":
        raise MemoryError("none left")
    if what == "retry":
        raise Retry(exc=foreign())
    if what == "reject":
        raise Reject(foreign(), requeue=False)
    if what == "base":
        raise foreign("BaseException")
    if what == "leaves":
        os._exit(3)
    if what in BASES:
        raise BASES[what](3)
    if what == "leaks":
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        try:
            while True:
                kept.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass


@app.task(bind=True, name="odd.ends")
def ends(self: Any, ticket_id: str, payload: Any) -> None:
    """Ends as its payload says."""
    provoke(payload)
    self.ticket.effects.rpush(f"log:{ticket_id}", payload)


@app.task(bind=True, name="odd.ends_quietly", ignore_result=True)
def ends_quietly(self: Any, ticket_id: str, payload: Any) -> None:
    """The same without a result."""
    provoke(payload)
    self.ticket.effects.rpush(f"log:{ticket_id}", payload)


@app.task(name="odd.breaks_the_clock")
def breaks_the_clock(ticket_id: str, payload: Any) -> None:
    """Leaves its process with a clock that raises, like a patch of a test that is never stopped."""
    del ticket_id, payload
    mock.patch("time.monotonic", side_effect=RuntimeError("no clock")).start()


@app.task(name="odd.awaits")
async def awaits(ticket_id: str, payload: Any) -> None:
    """Celery would create a coroutine, and not run it."""


@app.task(name="odd.yields")
def yields(ticket_id: str, payload: Any) -> Iterator[None]:
    """Celery would create a generator, and not run it."""
    yield
