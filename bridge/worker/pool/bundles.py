"""Runs a bundle in a pool process: in rounds, one message of each ticket a round."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import orjson

from bridge.protocol.names import HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS
from bridge.protocol.outcomes import Kind, Outcome
from bridge.worker.pool.delivery import (
    CUT_OFF,
    REVOKED,
    REVOKED_ERROR,
    Delivery,
    Traced,
    cut_off_outcome,
    event_of,
    failed,
    ignored,
)

if TYPE_CHECKING:
    from bridge.worker.pool.execute import Execution

#: Nobody waits longer than this, in seconds, for the outcomes of bundle mates.
WRITE_AFTER_S = 0.005

#: A bundle that lasts this many times its share gives back what it has not started.
OVERTIME = 16

#: In the place of a payload.
UNREADABLE = object()


def run_bundle(execution: Execution, request: dict[str, Any], body: str) -> Traced:
    """Runs the bundle's messages; the outcomes of a round are written before the next."""
    with execution.row(request[HEADER_BASE] + request[HEADER_RUNS][0][1]) as row:
        return _run(execution, row, request, body)


def _run(execution: Execution, row: int, request: dict[str, Any], body: str) -> Traced:
    # ``row``: where the shared page says what runs.
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
        for ticket, offset, attempt, messages in _parsed(body)
    ]
    template = request_of_bundle(request, execution.hostname)
    cut_off, asked = shared.cut_off(runs[0][0].fence, max(deliveries[-1].fence for deliveries in runs))
    if cut_off:
        for deliveries in runs:
            for one in deliveries:
                if one.fence == cut_off:
                    execution.report_cut_off(one, _request_of(execution, one, template), asked=asked)
        # What was done before has stale fences now; of each run, the rest goes back with the first that is not.
        outcomes = [
            one.outcome(*cut_off_outcome(asked)) if one.fence == cut_off else one.outcome(Kind.RETURNED)
            for deliveries in runs
            for one in deliveries
        ]
        execution.writer.write(incarnation, outcomes)
        return ignored(CUT_OFF)
    #: Of each message that ran, by its fence.
    events: dict[int, tuple[Any, ...] | None] = {}
    #: By ticket, the runs whose message of this round succeeded, and is written by the end of it.
    going_on: dict[str, list[Delivery]] = {}
    started = last_write = time.monotonic()
    give_up_at = started + max(OVERTIME * execution.lane.bundle_ms / 1000, 2 * WRITE_AFTER_S)
    pending: list[tuple[Delivery, Outcome]] = []
    unstarted: list[Outcome] = []
    position = 0
    stopping = False

    def write() -> None:
        """Writes what is pending. A ticket whose success was refused does not go on: the rest was never started."""
        refused = execution.write(incarnation, pending)
        for one, _ in pending if refused else ():
            if one.fence in refused:
                events[one.fence] = event_of(one, refused[one.fence])
                going_on.pop(one.ticket, None)
        pending.clear()

    while runs:
        going_on.clear()
        for deliveries in runs:
            delivery = deliveries[position]
            now = time.monotonic()
            if pending and now - last_write > WRITE_AFTER_S and not stopping:
                # Before the looks: where the server is away it waits, until the lease is over.
                write()
                now = last_write = time.monotonic()
            # Noted before the looks: whoever ends the lease, or wants it back, then sees that it runs.
            shared.running(row, delivery.fence)
            if not stopping:
                if not shared.holds(incarnation):
                    # Void: what is pending cannot be written under a lease that is over, either.
                    return ignored("the lease ended in the middle of a bundle")
                stopping = delivery.fence <= shared.recalled_to or now > give_up_at
            if stopping:
                # The rest of the run goes back with its first message.
                unstarted.append(delivery.outcome(Kind.RETURNED))
                continue
            if shared.is_revoked(delivery.message_id):
                events[delivery.fence] = (delivery.message_id, REVOKED, "", "")
                pending.append((delivery, delivery.outcome(Kind.DEAD, error=REVOKED_ERROR)))
                continue
            outcome, traced = _traced(execution, delivery, incarnation, template)
            events[delivery.fence] = event_of(delivery, traced)
            pending.append((delivery, outcome))
            if outcome.kind is Kind.DONE and position + 1 < len(deliveries):
                going_on[delivery.ticket] = deliveries
        if stopping:
            # The last one noted was not begun.
            shared.running(row, 0)
        if pending:
            write()
            last_write = time.monotonic()
        shared.running(row, 0)
        runs = list(going_on.values())
        position += 1
    if unstarted:
        execution.writer.write(incarnation, unstarted)
    return (0, [event for event in events.values() if event is not None], time.monotonic() - started)


def _traced(
    execution: Execution, delivery: Delivery, incarnation: str, template: dict[str, Any]
) -> tuple[Outcome, Traced]:
    wanted = _request_of(execution, delivery, template)
    if delivery.args[1] is UNREADABLE:
        exc = ValueError("the payload cannot be read")
        return delivery.outcome(Kind.FAILED, f"{type(exc).__name__}: {exc}"), failed(exc)
    try:
        return execution.trace(delivery, incarnation, wanted)
    except Exception as exc:
        # Outside the task's body and Celery's tracer: a time limit may strike anywhere.
        return delivery.outcome(Kind.FAILED, f"{type(exc).__name__}: {exc}"), failed(exc)


def _request_of(execution: Execution, delivery: Delivery, template: dict[str, Any]) -> dict[str, Any]:
    wanted = dict(template)
    wanted["id"] = wanted["correlation_id"] = wanted["root_id"] = delivery.message_id
    wanted["task"] = delivery.task
    wanted["retries"] = delivery.attempt - 1
    wanted["args"], wanted["kwargs"] = delivery.args, delivery.kwargs
    known = execution.app.tasks.get(delivery.task)
    wanted["ignore_result"] = bool(known.ignore_result) if known is not None else True
    return wanted


def _parsed(body: str) -> Any:
    """The runs of a bundle; a payload that cannot be read is `UNREADABLE`, and takes no bundle mate with it."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        runs = orjson.loads(body)
    for *_, messages in runs:
        for message in messages:
            try:
                message[2] = json.loads(orjson.dumps(message[2]))
            except (ValueError, RecursionError):
                message[2] = UNREADABLE
    return runs


def request_of_bundle(request: dict[str, Any], hostname: str) -> dict[str, Any]:
    """The request fields that all messages of a bundle share, as an ordinary Celery message would have them."""
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
