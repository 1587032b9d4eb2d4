"""A small app without ``tasks/``, as an existing app looks with the bridge. Most integration tests run it. Every
execution is written to a file of its process in ``COUNTER_LEDGER``, so that the record survives the process.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from celery import Celery, Task, signals
from celery.exceptions import Ignore, Reject
from celery.worker.control import control_command

import bridge

app = Celery("counter", broker=os.environ.get("CELERY_BROKER_URL"), backend=os.environ.get("CELERY_RESULT_BACKEND"))
bridge.install(app)
app.conf.update(
    bridge_default_task="counter.append",
    bridge_lease=float(os.environ.get("COUNTER_LEASE", "2")),
    bridge_leader_lease=float(os.environ.get("COUNTER_LEADER_LEASE", "2")),
    bridge_bundle_ms=float(os.environ.get("COUNTER_BUNDLE_MS", "10")),
    bridge_backoff={"base": 0.05, "factor": 2.0, "limit": 1.0},
    bridge_on_dead=os.environ.get("COUNTER_ON_DEAD", "skip"),
    bridge_window=int(os.environ.get("COUNTER_WINDOW", "50000")),
    bridge_policy=os.environ.get("COUNTER_POLICY", "least_loaded"),
    bridge_history=int(os.environ.get("COUNTER_HISTORY", "100000")),
    bridge_max_attempts=int(os.environ.get("COUNTER_MAX_ATTEMPTS", "3")),
    bridge_unknown_after=float(os.environ.get("COUNTER_UNKNOWN_AFTER", "600")),
    bridge_retention=json.loads(os.environ.get("COUNTER_RETENTION", "0")),
)


app.conf.update(json.loads(os.environ.get("COUNTER_CONF", "{}")))


@contextmanager
def ledger(task: Any, ticket_id: str, payload: Any) -> Iterator[None]:
    """Records the start of an execution and, without an error, its end."""

    def note(kind: str) -> None:
        ticket = task.ticket
        line = [kind, ticket_id, payload.get("n"), ticket.fence, ticket.attempt, time.monotonic_ns(), os.getpid()]
        path = Path(os.environ["COUNTER_LEDGER"]) / f"{os.getpid()}.jsonl"
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    if "COUNTER_LEDGER" not in os.environ:
        yield
        return
    note("start")
    yield
    note("end")


def fixed() -> bool:
    """Whether the cause of the failures was fixed: the key ``log:fixed`` exists."""
    with app.connection_for_read() as link, link.channel() as channel:
        return bool(channel.client.exists("log:fixed"))


@app.task(bind=True, ignore_result=True, name="counter.append")
def append(self: Any, ticket_id: str, payload: Any) -> None:
    """Appends its number to the ticket's list, with the success or not at all.

    It takes ``ms`` milliseconds; with ``attempts``, only in so many first attempts.
    """
    with ledger(self, ticket_id, payload):
        if payload.get("ms") and self.ticket.attempt <= payload.get("attempts", self.ticket.attempt):
            time.sleep(payload["ms"] / 1000)
        self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])


@app.task(bind=True, name="counter.add")
def add(self: Any, ticket_id: str, payload: Any) -> dict[str, Any]:
    """Returns a result."""
    self.ticket.effects.incrby(f"sum:{ticket_id}", payload["n"])
    return {"n": payload["n"], "attempt": self.ticket.attempt}


@app.task(bind=True, name="counter.context")
def context(self: Any, ticket_id: str, payload: Any) -> dict[str, Any]:
    """Returns what a task knows about its message."""
    del ticket_id, payload
    ticket = self.ticket
    return {
        "id": ticket.id,
        "message_id": ticket.message_id,
        "attempt": ticket.attempt,
        "fence": ticket.fence,
        "task_id": self.request.id,
        "retries": self.request.retries,
    }


@app.task(bind=True, name="counter.flaky")
def flaky(self: Any, ticket_id: str, payload: Any) -> str:
    """Raises until attempt ``payload['until']``, or until the key ``log:fixed`` is there."""
    with ledger(self, ticket_id, payload):
        self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])
        if self.ticket.attempt < payload["until"] and not fixed():
            raise ValueError(f"attempt {self.ticket.attempt} fails")
    return "done"


@app.task(bind=True, name="counter.folds", ignore_result=True, bridge_state=True)
def folds(self: Any, ticket_id: str, payload: Any) -> None:
    """Keeps the numbers of its ticket in its state. It may change that and fail, or die, until an attempt."""
    state = self.ticket.state
    with ledger(self, ticket_id, payload):
        state.setdefault("numbers", []).append(payload["n"])
        state["last"] = {"n": payload["n"], "attempt": self.ticket.attempt}
        if self.ticket.attempt < payload.get("until", 1):
            if payload.get("dies"):
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("fails after it changed the state")
        self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])


@app.task(bind=True, name="counter.expires", ignore_result=True, expires=30)
def expires(self: Any, ticket_id: str, payload: Any) -> None:
    """Appends its number, if it does so soon enough."""
    self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])


@app.task(bind=True, name="counter.asks_again", ignore_result=True)
def asks_again(self: Any, ticket_id: str, payload: Any) -> None:
    """Asks for a retry after a countdown, once."""
    if self.ticket.attempt == 1:
        raise self.retry(countdown=payload["countdown"])
    self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])


@app.task(bind=True, name="counter.auto", autoretry_for=(KeyError,), retry_backoff=False, default_retry_delay=0)
def auto(self: Any, ticket_id: str, payload: Any) -> None:
    """Celery's own autoretry."""
    if self.ticket.attempt < payload["until"]:
        raise KeyError("not yet")
    self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])


@app.task(bind=True, name="counter.hard", time_limit=2, ignore_result=True)
def hard(self: Any, ticket_id: str, payload: Any) -> None:
    """Runs into the hard time limit until attempt ``payload['until']``."""
    if self.ticket.attempt < payload["until"]:
        time.sleep(60)
    self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])


@app.task(bind=True, name="counter.soft", soft_time_limit=2, ignore_result=True)
def soft(self: Any, ticket_id: str, payload: Any) -> None:
    """Runs into the soft time limit until attempt ``payload['until']``."""
    if self.ticket.attempt < payload["until"]:
        time.sleep(60)
    self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])


def note(kind: str, id_: str) -> None:
    """Records the calls of handlers and receivers of signals in a file."""
    if "COUNTER_LEDGER" in os.environ:
        with (Path(os.environ["COUNTER_LEDGER"]) / f"noted-{id_}").open("a") as file:
            file.write(f"{kind}\n")


class Telling(Task):
    """Records the handlers that Celery calls."""

    def on_failure(self, _exc: Any, task_id: str, *_: Any) -> None:
        note("on_failure", task_id)

    def on_retry(self, _exc: Any, task_id: str, *_: Any) -> None:
        note("on_retry", task_id)


@signals.task_failure.connect
def on_task_failure(task_id: str, **_: Any) -> None:
    note("task_failure", task_id)


@signals.task_retry.connect
def on_task_retry(request: Any, **_: Any) -> None:
    note("task_retry", request.id)


@signals.task_revoked.connect
def on_task_revoked(request: Any, expired: bool, **_: Any) -> None:
    note("task_revoked expired" if expired else "task_revoked", request.id)


@signals.task_received.connect
def on_task_received(request: Any, **_: Any) -> None:
    if os.environ.get("COUNTER_RECEIVED"):
        note(
            json.dumps(["task_received", request.name, request.args, request.task.name, request.correlation_id]),
            request.id,
        )


def cut_off(self: Any, ticket_id: str, payload: Any) -> int:
    """Kills its own process, or exceeds its time limit, until attempt ``payload['until']``."""
    with ledger(self, ticket_id, payload):
        if self.ticket.attempt < payload.get("until", 1):
            if not self.time_limit:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])
        return int(self.ticket.attempt)


@app.task(bind=True, base=Telling, name="counter.killed")
def killed(self: Any, ticket_id: str, payload: Any) -> int:
    """Kills its process until attempt ``payload['until']``. Then returns its attempt."""
    return cut_off(self, ticket_id, payload)


@app.task(bind=True, base=Telling, name="counter.overdue", time_limit=1)
def overdue(self: Any, ticket_id: str, payload: Any) -> int:
    """Exceeds its time limit until attempt ``payload['until']``. Then returns its attempt."""
    return cut_off(self, ticket_id, payload)


def hold(self: Any, ticket_id: str, payload: Any) -> dict[str, Any]:
    """With ``gate``, waits until the ledger's folder has a file of that name. It writes into a file whether it came in
    a bundle, since its process may be killed.
    """
    with ledger(self, ticket_id, payload):
        if "gate" in payload:
            folder = Path(os.environ["COUNTER_LEDGER"])
            way = "alone" if self.request.get("bridge_runs") else "bundle"
            (folder / f"held-{ticket_id}-{payload['n']}-{os.getpid()}.{way}").touch()
            while not (folder / payload["gate"]).exists():
                time.sleep(0.01)
        self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])
        return {"n": payload["n"], "attempt": self.ticket.attempt}


@app.task(bind=True, name="counter.held", ignore_result=True)
def held(self: Any, ticket_id: str, payload: Any) -> None:
    """Waits at its gate, if it has one, and appends its number."""
    hold(self, ticket_id, payload)


@app.task(bind=True, name="counter.held_result")
def held_result(self: Any, ticket_id: str, payload: Any) -> dict[str, Any]:
    """The same with a result."""
    return hold(self, ticket_id, payload)


@app.task(bind=True, name="counter.held_late", ignore_result=True, acks_late=True)
def held_late(self: Any, ticket_id: str, payload: Any) -> None:
    """The same with acks_late."""
    hold(self, ticket_id, payload)


@app.task(bind=True, name="counter.dies", ignore_result=True)
def dies(self: Any, ticket_id: str, payload: Any) -> None:
    """Kills its own pool process until attempt ``payload['until']``."""
    if self.ticket.attempt < payload["until"]:
        os.kill(os.getpid(), signal.SIGKILL)
    self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])


@app.task(bind=True, name="counter.kills_worker", ignore_result=True)
def kills_worker(self: Any, ticket_id: str, payload: Any) -> None:
    """Kills its whole worker. With ``payload['unnoticed']`` it kills the watcher first, so that there is no death
    notice.
    """
    with ledger(self, ticket_id, payload):
        if payload.get("unnoticed"):
            # Imported here: the image that containers are made from has no psutil.
            import psutil

            for process in psutil.Process(os.getppid()).children():
                if "bridge.worker.guard.watcher" in process.cmdline():
                    process.kill()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)


@app.task(bind=True, name="counter.rejects", ignore_result=True)
def rejects(self: Any, ticket_id: str, payload: Any) -> None:
    """Rejects its message."""
    del ticket_id
    raise Reject("do not want", requeue=payload.get("requeue", False))


@app.task(bind=True, name="counter.ignores", ignore_result=True)
def ignores(self: Any, ticket_id: str, payload: Any) -> None:
    """Raises Ignore: done, without a result."""
    del ticket_id, payload
    raise Ignore


@app.task(bind=True, name="counter.wrong_effect")
def wrong_effect(self: Any, ticket_id: str, payload: Any) -> None:
    """Records effects, the last of which cannot be applied. So none is."""
    self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])
    self.ticket.effects.rpush(f"a-string:{ticket_id}", 1)


@app.task(bind=True, name="counter.wrong_effect_ignored", ignore_result=True)
def wrong_effect_ignored(self: Any, ticket_id: str, payload: Any) -> None:
    """The same without a result: the effects are applied with the outcomes of its bundle."""
    self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])
    self.ticket.effects.rpush(f"a-string:{ticket_id}", 1)


if os.environ.get("COUNTER_EXTRA"):

    @app.task(bind=True, name="counter.extra", ignore_result=True)
    def extra(self: Any, ticket_id: str, payload: Any) -> None:
        """A task that only some processes have, as during a deploy."""


@signals.worker_process_init.connect(weak=False)
def _hang_at_start(**_: Any) -> None:
    """Keeps a pool process from starting while the file ``hang`` is in the ledger."""
    while Path(os.environ.get("COUNTER_LEDGER", "."), "hang").exists():
        time.sleep(0.01)


@control_command(args=[("gate", str)])
def hang(_state: Any, gate: str) -> None:
    """Blocks only the worker's loop until the file ``gate`` exists. Creates ``gate``.held when it begins."""
    Path(f"{gate}.held").touch()
    while not Path(gate).exists():
        time.sleep(0.01)


def _survive() -> None:
    """Removes Celery's setting that ends a pool process with the main process."""
    ctypes.CDLL(None).prctl(1, 0)  # PR_SET_PDEATHSIG


@app.task(bind=True, name="counter.survives", ignore_result=True)
def survives(self: Any, ticket_id: str, payload: Any) -> None:
    """Runs on when the main process dies."""
    _survive()
    with ledger(self, ticket_id, payload):
        time.sleep(payload["ms"] / 1000)


@app.task(bind=True, name="counter.survives_hidden", ignore_result=True)
def survives_hidden(self: Any, ticket_id: str, payload: Any) -> None:
    """The same, and closes every file that this process has, as careless daemons do."""
    _survive()
    os.closerange(3, 1 << 16)
    with ledger(self, ticket_id, payload):
        time.sleep(payload["ms"] / 1000)


@app.task(bind=True, name="counter.leaves_behind", ignore_result=True)
def leaves_behind(self: Any, ticket_id: str, payload: Any) -> None:
    """Forks a process that runs on, with copies of all open files."""
    if os.fork() == 0:
        _survive()
        time.sleep(payload["ms"] / 1000)
        os._exit(0)
    with ledger(self, ticket_id, payload):
        time.sleep(payload["ms"] / 1000)


@app.task(bind=True, name="counter.holds_the_lock", ignore_result=True)
def holds_the_lock(self: Any, ticket_id: str, payload: Any) -> None:
    """Keeps every other thread of its process from running, as a careless extension does."""
    with ledger(self, ticket_id, payload):
        ctypes.PyDLL(None).usleep(int(payload["ms"] * 1000))


def undo(self: Any, lost: Any, ticket_id: str, payload: Any) -> None:
    """Records what it has to undo. Raises as often as the payload says."""
    self.app.bridge.client.rpush(
        f"undone:{ticket_id}", json.dumps([lost.attempt, lost.fence, lost.consumer, lost.cause])
    )
    if self.ticket.attempt <= payload.get("undo_fails_until", 0):
        raise KeyError("cannot undo yet")
    self.ticket.effects.rpush(f"log:{ticket_id}", -1)
    if self.bridge_state:
        self.ticket.effects.rpush(f"state undone:{ticket_id}", json.dumps(dict(self.ticket.state)))


@app.task(
    bind=True, name="counter.undoes", ignore_result=True, bridge_rollback=undo, bridge_max_attempts=5, bridge_state=True
)
def undoes(self: Any, ticket_id: str, payload: Any) -> None:
    """Changes its ticket's state, and is cut off half way until attempt ``payload['until']``: by SIGKILL, or while it
    sleeps.
    """
    with ledger(self, ticket_id, payload):
        self.ticket.state["n"] = payload["n"]
        if self.ticket.attempt < payload["until"]:
            if payload.get("raises"):
                raise ValueError("fails, but was not cut off")
            if payload.get("ms"):
                time.sleep(payload["ms"] / 1000)
            os.kill(os.getpid(), signal.SIGKILL)
        self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])


@app.task(bind=True, name="counter.undoes_late", ignore_result=True, bridge_rollback=undo, time_limit=1)
def undoes_late(self: Any, ticket_id: str, payload: Any) -> None:
    """Runs into the hard time limit until attempt ``payload['until']``, and ignores SIGTERM. It writes into a file how
    long it ran, since its process is killed.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    beat = Path(os.environ["COUNTER_LEDGER"]) / f"beat-{self.ticket.attempt}"
    with ledger(self, ticket_id, payload):
        deadline = time.monotonic() + 60
        while self.ticket.attempt < payload["until"] and time.monotonic() < deadline:
            with suppress(BaseException):
                with beat.open("a") as file:
                    file.write(f"{time.monotonic_ns()}\n")
                time.sleep(0.001)
        self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])
