"""Runs a bundle in a pool process: in rounds, one message of each ticket per round.

Contract:

- A message starts after the outcome of the one before it, of its ticket, is written. So after a crash at most one
  message of a ticket runs again.
- Outcomes are written at the end of a round, in the middle of a long one with effects, and between two messages when
  the last write is `WRITE_AFTER_S` ago. While a write is under way, messages of other tickets run
  (`bridge.worker.pool.write_behind`).
- A message that fails ends its ticket's run in this bundle. The rest of the run was never started.
- The bundle stops, and gives back what it has not started, when the leader recalled its messages or when it takes far
  longer than planned (`bridge.protocol.bundle_times`: each message has the whole time limit of its task). It also
  stops when the lease ends. Then the outcomes not yet written are void.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bridge.protocol.bundle_times import last_start_s
from bridge.protocol.headers import first_fence, readable_runs
from bridge.protocol.names import HEADER_BASE, HEADER_INCARNATION
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.text import error_text
from bridge.worker.pool.delivery import (
    CUT_OFF,
    NEVER_STARTED,
    REVOKED,
    REVOKED_ERROR,
    Delivery,
    Traced,
    cut_off_outcome,
    event_of,
    failed,
    ignored,
)
from bridge.worker.pool.light_tracer import LightTracer
from bridge.worker.pool.states import LeaseOver
from bridge.worker.pool.write_behind import WriteBehind

if TYPE_CHECKING:
    from bridge.worker.pool.execute import Execution

#: An outcome waits at most this long, in seconds, for the other outcomes of its round.
WRITE_AFTER_S = 0.005

#: Tickets of a round from which on it is written in two parts, where there are effects. A write has a price of its own:
#: that of ten messages with effects, and more than what is won where there are none.
SPLIT_FROM = 32

#: Stands for a payload that cannot be read, so that only its message fails.
UNREADABLE = object()


def run_bundle(execution: Execution, request: dict[str, Any], body: str) -> Traced:
    """Runs the bundle's messages. Returns what Celery's pool expects; the result is the events for Flower."""
    template = request_of_bundle(request, execution.hostname)
    light = LightTracer(template)
    writes = WriteBehind(execution, request[HEADER_INCARNATION])
    try:
        with execution.row(first_fence(request)) as row:
            return _run(execution, row, request, body, template, light, writes)
    finally:
        writes.drop()
        light.close()


def _run(
    execution: Execution,
    row: int,
    request: dict[str, Any],
    body: str,
    template: dict[str, Any],
    light: LightTracer,
    writes: WriteBehind,
) -> Traced:
    # ``row``: this process's row of the shared page. It holds the fence that runs.
    shared = execution.shared
    incarnation = request[HEADER_INCARNATION]
    base = request[HEADER_BASE]
    if not shared.holds(incarnation):
        return ignored("the lease that this was dispatched under is over")
    runs = [
        [
            Delivery(ticket, id_, base + offset + i, attempt if i == 0 else 1, task, [ticket, payload], {})
            for i, (id_, task, payload) in enumerate(messages)
        ]
        for ticket, offset, attempt, messages in readable_runs(body, UNREADABLE)
    ]
    cut_off, asked = shared.cut_off(runs[0][0].fence, max(deliveries[-1].fence for deliveries in runs))
    if cut_off:
        _report_cut_off(execution, incarnation, template, runs, cut_off, asked=asked)
        return ignored(CUT_OFF)
    try:
        _read_states(execution, incarnation, runs)
    except LeaseOver:
        return ignored("the lease ended before the states were read")
    events = writes.events
    #: Ticket -> run, of the runs that go on in the next round: their message of this round succeeded.
    going_on: dict[str, list[Delivery]] = {}
    started = last_write = time.monotonic()
    may_take_s = last_start_s(execution.lane.bundle_ms / 1000, request.get("timelimit") or ())
    give_up_at = started + max(may_take_s, 2 * WRITE_AFTER_S)
    pending = writes.pending
    unstarted: list[Outcome] = []
    position = 0
    stopping = False
    is_dead = False
    while runs:
        going_on.clear()
        # A long round is written in two parts: while one is under way, the tickets of the other one run.
        middle = len(runs) // 2 if len(runs) >= SPLIT_FROM else 0
        for place, deliveries in enumerate(runs):
            delivery = deliveries[position]
            if delivery.ticket in writes.tickets:
                # The message before it is in the write that is under way. Before the lease is checked: while the server
                # is away, this waits until the lease is over.
                writes.end()
            if delivery.ticket in writes.refused:
                continue
            now = time.monotonic()
            if (
                pending
                and ((place == middle and writes.has_effects) or now - last_write > WRITE_AFTER_S)
                and not stopping
                and writes.may_begin
            ):
                writes.begin()
                now = last_write = time.monotonic()
            # The fence is noted before the lease and the recall are checked. A process that ends the lease or recalls
            # messages reads the fences afterwards. So either it sees this fence, or this check sees the change.
            shared.note_running(row, delivery.fence)
            if not stopping:
                if not shared.holds(incarnation):
                    # The pending outcomes are void: they cannot be written after the lease.
                    return ignored("the lease ended in the middle of a bundle")
                stopping = delivery.fence <= shared.recalled_to or now > give_up_at
            if stopping:
                # The rest of the run goes back with its first message.
                unstarted.append(delivery.outcome(Kind.RETURNED))
                continue
            if shared.is_revoked(delivery.message_id):
                events[delivery.fence] = (delivery.message_id, REVOKED, "", "")
                pending.append((delivery, delivery.outcome(Kind.DEAD, error=REVOKED_ERROR)))
                is_dead = True
                continue
            outcome, traced = _traced(execution, delivery, incarnation, template, light)
            events[delivery.fence] = event_of(delivery, traced)
            pending.append((delivery, outcome))
            if outcome.kind is Kind.DONE or outcome.kind is Kind.DROPPED:
                if position + 1 < len(deliveries):
                    going_on[delivery.ticket] = deliveries
                    if delivery.context is not None:
                        # When its success is refused, the next message does not start.
                        deliveries[position + 1].state = delivery.context.saved_state
            elif outcome.kind is Kind.DEAD:
                is_dead = True
        if stopping:
            # The message whose fence was noted last was not started.
            shared.note_running(row, 0)
        if pending:
            writes.begin()
            last_write = time.monotonic()
        runs = list(going_on.values())
        position += 1
    writes.end()
    shared.note_running(row, 0)
    if unstarted:
        execution.writer.write(incarnation, unstarted)
    found = [event for event in events.values() if event is not None]
    if is_dead:
        # First, so that the main process need not look for them among all.
        found.sort(key=lambda event: event[1] not in NEVER_STARTED)
    return (0, found, time.monotonic() - started)


def _report_cut_off(
    execution: Execution,
    incarnation: str,
    template: dict[str, Any],
    runs: list[list[Delivery]],
    cut_off: int,
    *,
    asked: bool,
) -> None:
    """Reports the message of the fence ``cut_off``, which ran when its process died, and gives the others back."""
    for deliveries in runs:
        for one in deliveries:
            if one.fence == cut_off:
                known = execution.app.tasks.get(one.task)
                execution.report_cut_off(one, one.request(template, known), asked=asked)
    # Outcomes of messages that the dead process had settled have stale fences, and change nothing. The first other
    # message of a run goes back, and the rest of its run with it.
    outcomes = [
        one.outcome(*cut_off_outcome(asked)) if one.fence == cut_off else one.outcome(Kind.RETURNED)
        for deliveries in runs
        for one in deliveries
    ]
    execution.writer.write(incarnation, outcomes)


def _read_states(execution: Execution, incarnation: str, runs: list[list[Delivery]]) -> None:
    """Reads the states for the first messages of all runs, where their tasks have one."""
    tasks = execution.app.tasks
    wanted = {
        deliveries[0].ticket: deliveries[0]
        for deliveries in runs
        if getattr(tasks.get(deliveries[0].task), "bridge_state", None)
    }
    if wanted:
        for ticket, state in execution.states.read(incarnation, wanted).items():
            wanted[ticket].state = state


def _traced(
    execution: Execution, delivery: Delivery, incarnation: str, template: dict[str, Any], light: LightTracer
) -> tuple[Outcome, Traced]:
    if delivery.args[1] is UNREADABLE:
        exc = ValueError("the payload cannot be read")
        return delivery.outcome(Kind.FAILED, error_text(exc)), failed(exc)
    try:
        return execution.trace(delivery, incarnation, template, light)
    except Exception as exc:
        # It came from outside the task's body and Celery's tracer. A time limit, for example, may strike anywhere.
        return delivery.outcome(Kind.FAILED, error_text(exc)), failed(exc)


def request_of_bundle(request: dict[str, Any], hostname: str) -> dict[str, Any]:
    """The request fields that all messages of a bundle share. They are the same as in an ordinary Celery message."""
    return {
        "lang": "py",
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "timelimit": [None, None],
        "parent_id": None,
        "origin": request.get("origin"),
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
        "callbacks": None,
        "errbacks": None,
        "chain": None,
        "chord": None,
        "kwargsrepr": "{}",
        "properties": request.get("properties"),
        "reply_to": "",
        "delivery_info": request.get("delivery_info"),
        "hostname": hostname,
        "is_eager": False,
    }
