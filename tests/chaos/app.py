"""What the workers of a chaos run execute. Every execution is written to the ledger, every success leaves an effect.

A message's payload says what befalls it::

    {"n": place in its ticket, "ms": how long it works, "until": attempts that go wrong before one goes well,
     "how": "raise" | "effect" | "exit" | "kill" | "hang" | "worker" | "machine" | "nack" | "dead" | "drop",
     "nacks": whether some deliveries refuse it without a charge; "keep": whether it changes its ticket's state;
     "priority", "expires", "timeout", "delay", "hold": options of the message}

With ``effect`` the task comes to its end, and one of its effects cannot be applied. The last two end the whole worker:
its main process, or everything of it with its watcher first, so that nobody is left to say what ran. In an app with
subscriptions, ``"in"`` says what is different in each.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from celery import Celery
from redis import Redis

import bridge
import bridge.leader.step.steps
import bridge.leader.stream.reading
import bridge.leader.takeover.acknowledged
from tests.chaos.draw import EITHER
from tests.chaos.ledger import LedgerWriter
from tests.chaos.recording import EFFECTS, WATCHER, folded, id_of, keeps, name_of, place_of, recorded
from tests.chaos.subscriptions import LIMITED_IN, NEWER, OLDER, PARTITIONS, STATES, STREAMS, SUBSCRIPTIONS
from tests.chaos.ticks import SCHEDULE
from tests.chaos.versions import FOLLOWS, OLDER_TASK

#: Seconds between two signs of life of a task at work.
STEP_S = 0.01
#: A key that cannot be counted up. Who records the effect cannot know that; only the server does, as it applies them.
TEXT = "effects that fail"

app = Celery("chaos", broker=os.environ.get("CELERY_BROKER_URL"), set_as_current=False)
bridge.install(app)
app.conf.update(
    # After a reply that was lost the feeder looks in the stream for what it pushed.
    bridge_retention=float(os.environ.get("CHAOS_RETENTION", "60")),
    bridge_lease=float(os.environ.get("CHAOS_LEASE", "2")),
    bridge_leader_lease=float(os.environ.get("CHAOS_LEADER_LEASE", "2")),
    bridge_bundle_ms=float(os.environ.get("CHAOS_BUNDLE_MS", "10")),
    bridge_max_attempts=int(os.environ.get("CHAOS_MAX_ATTEMPTS", "5")),
    bridge_backoff={"base": 0.05, "factor": 2.0, "limit": 0.5},
    broker_connection_retry_on_startup=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
)
if PARTITIONS in os.environ:
    app.conf.bridge_partitions = int(os.environ[PARTITIONS])
if SUBSCRIPTIONS in os.environ:
    app.conf.bridge_subscriptions = json.loads(os.environ[SUBSCRIPTIONS])
else:
    app.conf.bridge_default_task = "chaos.work"
if SCHEDULE in os.environ:
    app.conf.bridge_schedule = json.loads(os.environ[SCHEDULE])
if FOLLOWS in os.environ:
    app.conf.bridge_stream, app.conf.bridge_follows = STREAMS[NEWER], json.loads(os.environ[FOLLOWS])
# So few that a new leader takes in what waits over many turns of its loop, and that faults fall between them.
bridge.leader.stream.reading.READ_COUNT = bridge.leader.step.steps.READ_COUNT = (
    bridge.leader.takeover.acknowledged.PAGE
) = 20
#: Whether the tasks keep a state.
_STATE = {"bridge_state": True} if os.environ.get(STATES, "1") == "1" else {}
_LIMITED = {"bridge_subscription": os.environ[LIMITED_IN]} if LIMITED_IN in os.environ else {}
_ledger = LedgerWriter(Path(os.environ["CHAOS_LEDGER"])) if "CHAOS_LEDGER" in os.environ else None


@app.task(bind=True, ignore_result=True, name="chaos.work", shared=False, **_STATE)
def work(self: Any, ticket_id: str, payload: Any) -> None:
    """Works for a while and may go wrong after it."""
    _do(self, ticket_id, payload)


@app.task(bind=True, ignore_result=True, name="chaos.limited", time_limit=1, shared=False, **_LIMITED)
def limited(self: Any, ticket_id: str, payload: Any) -> None:
    """The same under a hard time limit, for what hangs."""
    _do(self, ticket_id, payload)


@app.task(bind=True, ignore_result=True, name=EITHER, shared=False, **_STATE, **_LIMITED)
def either(self: Any, ticket_id: str, payload: Any) -> None:
    """The same for messages that HTTP consumers can handle, too (`tests.chaos.http_program`)."""
    _do(self, ticket_id, payload)


if FOLLOWS in os.environ:

    @app.task(bind=True, ignore_result=True, name=OLDER_TASK, shared=False, **_STATE)
    def older(self: Any, ticket_id: str, payload: Any) -> None:
        """The same for the older version of the stream alone."""
        if payload["v"] != OLDER:
            raise ValueError(f"a message of {payload['v']} came to the task of {OLDER}")
        _do(self, ticket_id, payload)


def _do(task: Any, ticket_id: str, payload: Any) -> None:
    with recorded(_ledger, task, payload) if _ledger is not None else nullcontext():
        _recorded(task, ticket_id, payload)


def _recorded(task: Any, ticket_id: str, payload: Any) -> None:
    payload = {**payload, **payload.get("in", {}).get(task.ticket.subscription, {})}
    if keeps(task, payload):
        # Before anything goes wrong: an attempt that fails saves nothing.
        folded(task.ticket.state, id_of(task.ticket.message_id, payload), task.ticket.fence)
    _work(task, payload["ms"] / 1000)
    attempt = task.ticket.attempt
    if payload.get("nacks") and task.ticket.fence % 3:
        raise bridge.Nack("not now", delay=0.02, charge=False)
    if payload.get("how") == "drop":
        _leave_a_trace(task, payload)
        raise bridge.Drop("not wanted")
    if attempt < payload.get("until", 1):
        if payload["how"] == "exit":
            os._exit(1)
        if payload["how"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if payload["how"] in ("worker", "machine"):
            _end_worker(watcher_first=payload["how"] == "machine")
        if payload["how"] == "hang":
            _work(task, 60)
        if payload["how"] == "nack":
            raise bridge.Nack("not yet", delay=0.02)
        if payload["how"] == "dead":
            raise bridge.Dead("it can never succeed")
        if payload["how"] == "effect":
            with Redis.from_url(os.environ["CELERY_BROKER_URL"]) as server:
                server.set(TEXT, "no number", ex=3600)
            task.ticket.effects.incr(TEXT)
            return
        raise ValueError(f"attempt {attempt} of ticket {ticket_id} goes wrong")


#: Adds a trace (id, place, fence), unless there is one of the same message with a newer fence.
_TRACE = """
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
  local found = {}
  for i = 1, #entry[2], 2 do
    found[entry[2][i]] = entry[2][i + 1]
  end
  if found['id'] == ARGV[1] and tonumber(found['fence']) > tonumber(ARGV[3]) then
    return
  end
end
redis.call('XADD', KEYS[1], '*', 'id', ARGV[1], 'n', ARGV[2], 'fence', ARGV[3], 'stored', 1)
"""


def _leave_a_trace(task: Any, payload: Any) -> None:
    """What the success of a message would leave, for one that is dropped: its effects are not applied. An attempt that
    was cut off after this comes again: the later trace counts, as with what an HTTP consumer stores. An earlier attempt
    may come after it, in a pool that cannot end its tasks. The fence refuses its effects, and so its trace.
    """
    id_ = id_of(task.ticket.message_id, payload)
    with Redis.from_url(os.environ["CELERY_BROKER_URL"]) as server:
        arguments = (EFFECTS + name_of(task.ticket), id_, place_of(payload), task.ticket.fence)
        server.eval(_TRACE, 1, *arguments)


def _end_worker(*, watcher_first: bool) -> None:
    import psutil

    own = psutil.Process()
    parent = own.parent()
    # A pool that does not fork runs tasks in the worker's main process, whose parent is the test.
    main = parent if parent is not None and os.environ.get("CHAOS_POOL") == "prefork" else own
    if watcher_first:
        for process in main.children():
            if WATCHER in " ".join(process.cmdline()):
                process.kill()
    main.kill()
    own.kill()


def _work(task: Any, seconds: float) -> None:
    """Sleeps, with a sign of life for each step."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(STEP_S, left))
        if _ledger is not None and left > STEP_S:
            _ledger.step(name_of(task.ticket), task.ticket.fence)
