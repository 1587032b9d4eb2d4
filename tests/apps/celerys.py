"""Tasks that use Celery's features as its users do. What they did is in Redis, in lists ``seen:TICKET``."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.worker.request import Request

import bridge

URL = os.environ.get("CELERY_BROKER_URL")
app = Celery("celerys", broker=URL, backend=URL)
bridge.install(app)
app.conf.update(
    bridge_lease=2.0, bridge_leader_lease=2.0, bridge_backoff={"base": 0.05, "jitter": 0.0}, bridge_max_attempts=3,
    task_annotations={"annotated": {"max_retries": 1}},
)  # fmt: skip


def tell(ticket_id: str, *arguments: Any) -> None:
    """Records a line at once, independent of the message's outcome."""
    app.bridge.client.rpush(f"seen:{ticket_id}", " ".join(str(word) for word in arguments))


@app.task(name="adds")
def adds(x: int, y: int, z: int) -> int:
    """An ordinary task, as every app has."""
    return x + y + z


@app.task(bind=True, name="plain")
def plain(self: Any, ticket_id: str, payload: Any) -> str:
    """Records whether it has a ticket."""
    tell(ticket_id, "ticket" if self.ticket else "no ticket")
    return "done"


@app.task(name="behind", ignore_result=True)
def behind(ticket_id: str, payload: Any) -> None:
    """The task of the last message."""
    tell(ticket_id, "behind")


@app.task(bind=True, name="fails", throws=(KeyError,))
def fails(self: Any, ticket_id: str, payload: Any) -> None:
    """Raises an expected error, and records what its caller knows at that time."""
    tell(ticket_id, self.request.retries, self.AsyncResult(self.request.id).state)
    raise KeyError("expected")


@app.task(bind=True, name="expires", expires=4)
def expires(self: Any, ticket_id: str, payload: Any) -> str:
    """A task with an expiry."""
    tell(ticket_id, "ran")
    time.sleep(payload)
    return "in time"


@app.task(bind=True, name="retries", max_retries=1, default_retry_delay=0)
def retries(self: Any, ticket_id: str, payload: Any) -> None:
    """Asks for retries as long as it may."""
    tell(ticket_id, self.request.retries)
    self.retry(exc=ValueError("no"))


@app.task(bind=True, name="annotated")
def annotated(self: Any, ticket_id: str, payload: Any) -> None:
    """Gets its number of retries from ``task_annotations``."""
    tell(ticket_id, self.request.retries)
    raise ValueError("no")


@app.task(bind=True, name="retries_once", default_retry_delay=0)
def retries_once(self: Any, ticket_id: str, payload: Any) -> None:
    """Sets its number of retries with each retry."""
    tell(ticket_id, self.request.retries)
    raise self.retry(max_retries=1)


@app.task(bind=True, name="changes")
def changes(self: Any, ticket_id: str, payload: Any) -> None:
    """Asks for a retry with other arguments."""
    tell(ticket_id, self.request.retries)
    raise self.retry(**payload, countdown=0)


@app.task(bind=True, name="repeats")
def repeats(self: Any, ticket_id: str, payload: Any) -> None:
    """Asks for a retry with its own arguments, as in old code."""
    tell(ticket_id, self.request.retries)
    if self.request.retries == 0:
        raise self.retry(args=self.request.args, kwargs=self.request.kwargs, countdown=0)


@app.task(bind=True, name="replaces")
def replaces(self: Any, ticket_id: str, payload: Any) -> Any:
    """Replaces itself."""
    tell(ticket_id, self.request.retries)
    return self.replace(plain.s("elsewhere", 1))


@app.task(bind=True, name="auto", autoretry_for=(KeyError,), retry_backoff=False, retry_kwargs={"countdown": 0})
def auto(self: Any, ticket_id: str, payload: Any) -> None:
    """Celery's autoretry, once."""
    tell(ticket_id, self.request.retries)
    if self.request.retries == 0:
        raise KeyError("again")


@app.task(bind=True, name="dies", acks_late=True, reject_on_worker_lost=True, retry_on_worker_lost=True, priority=9)
def dies(self: Any, ticket_id: str, payload: Any) -> None:
    """Its process dies, once."""
    tell(ticket_id, self.ticket.attempt if self.ticket else "no ticket")
    if self.ticket.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, name="progress")
def progress(self: Any, ticket_id: str, payload: Any) -> str:
    """Stores its progress as a state."""
    self.update_state(state="PROGRESS", meta={"half": True})
    tell(ticket_id, self.AsyncResult(self.request.id).state)
    return "done"


@app.task(bind=True, name="limited", rate_limit="5/s", ignore_result=True)
def limited(self: Any, ticket_id: str, payload: Any) -> None:
    """Runs at most five times a second."""
    tell(ticket_id, time.time())


@app.task(name="quick", ignore_result=True)
def quick(ticket_id: str, payload: Any) -> None:
    """Does nothing, so it travels in bundles."""


@app.task(bind=True, name="ends", ignore_result=True)
def ends(self: Any, ticket_id: str, payload: Any) -> None:
    """Ends with Ignore or Reject."""
    tell(ticket_id, self.request.retries)
    if payload == "ignore":
        raise Ignore
    raise Reject("no", requeue=payload == "requeue" and self.request.retries == 0)


class TellingRequest(Request):
    """Records which of its methods Celery's worker called."""

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        super().on_accepted(pid, time_accepted)
        tell(self.args[0], "accepted")

    def on_timeout(self, soft: bool, timeout: float) -> None:
        super().on_timeout(soft, timeout)
        tell(self.args[0], "soft timeout" if soft else "hard timeout")

    def on_retry(self, exc_info: Any) -> None:
        super().on_retry(exc_info)
        tell(self.args[0], "retry")

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        tell(self.args[0], "failure")


class Requested(Task):
    """A task with a request class of its own."""

    Request = TellingRequest


@app.task(bind=True, name="requested", base=Requested, ignore_result=True)
def requested(self: Any, ticket_id: str, payload: Any) -> None:
    """Fails once if its payload says so."""
    if payload == "fails once" and self.request.retries == 0:
        raise ValueError("as told")


@app.task(bind=True, name="requested_late", base=Requested, ignore_result=True, soft_time_limit=1, time_limit=2)
def requested_late(self: Any, ticket_id: str, payload: Any) -> None:
    """Runs into its time limits, once."""
    if self.request.retries == 0:
        try:
            time.sleep(60)
        except SoftTimeLimitExceeded:
            time.sleep(60)


class Handled(Task):
    """Records which handlers were called."""

    def before_start(self, _task_id: str, args: Any, _kwargs: Any) -> None:
        tell(args[0], "before_start")
        if args[1] == "too soon" and self.request.retries == 0:
            raise ValueError("not yet")

    def on_success(self, _retval: Any, _task_id: str, args: Any, _kwargs: Any) -> None:
        tell(args[0], "on_success")

    def on_retry(self, exc: Any, _task_id: str, args: Any, *_: Any) -> None:
        tell(args[0], "on_retry", type(exc).__name__)

    def on_failure(self, exc: Any, _task_id: str, args: Any, *_: Any) -> None:
        tell(args[0], "on_failure", type(exc).__name__)

    def after_return(self, status: str, _retval: Any, _task_id: str, args: Any, *_: Any) -> None:
        tell(args[0], "after_return", status)


@app.task(bind=True, name="handled", base=Handled, ignore_result=True)
def handled(self: Any, ticket_id: str, payload: Any) -> None:
    """Fails if its payload says so."""
    tell(ticket_id, "ran")
    if payload == "fails" or (payload == "fails once" and self.request.retries == 0):
        raise ValueError("as told")
