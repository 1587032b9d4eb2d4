"""How the worker's main process takes ticket messages and bundles from its queue: a Celery strategy.

Ordinary messages of the same task (``apply_async`` without the bridge) go unchanged to the strategy that the task had
before. That is usually Celery's default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.exceptions import NotRegistered
from celery.utils.functional import noop
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger
from celery.worker.request import create_request_cls
from celery.worker.state import task_reserved

from bridge.protocol.headers import first_fence, own_rules
from bridge.protocol.names import (
    BUNDLE_TASK,
    HEADER_ALONE,
    HEADER_BASE,
    HEADER_FIRST,
    HEADER_INCARNATION,
    HEADER_OWN,
    HEADER_REQUEST,
)
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.text import error_text
from bridge.worker.celery_patches.waiting_requests import put_first
from bridge.worker.main.bundle_requests import BundleRequest
from bridge.worker.main.rate_limits import new_limits_of
from bridge.worker.main.ticket_requests import TicketRequest
from bridge.worker.main.workers_here import members_of
from bridge.worker.pool.calls import run_bundle, run_ticket

if TYPE_CHECKING:
    from bridge.worker.main.member import Member

logger = get_logger(__name__)

#: Whether it was logged that the pool cannot stop a task.
_said = False


def strategy(task: Any, app: Any, consumer: Any, **kwargs: Any) -> Any:
    """Returns the handler for messages of ``task``. Celery calls this for each task."""
    ordinary = symbol_by_name(task._bridge_ordinary_strategy)(task, app, consumer, **kwargs)
    members = members_of(consumer)
    if members is None:
        return ordinary
    by_queue = members.by_queue
    only = next(iter(members)) if len(by_queue) == 1 else None
    eventer = consumer.event_dispatcher
    bundle = task.name == BUNDLE_TASK
    base = create_request_cls(
        symbol_by_name(task.Request),
        task,
        consumer.pool,
        consumer.hostname,
        eventer,
        app=app,
        trace=run_bundle if bundle else run_ticket,
    )
    request_cls: Any = type(
        "BundleRequest" if bundle else "TicketRequest", (BundleRequest if bundle else TicketRequest, base), {}
    )
    connection_errors = consumer.connection_errors
    #: Errors of the connection: Celery restarts its consumer, and the member gives back the messages that it dropped.
    passed_on = (*connection_errors, *consumer.channel_errors)
    bucket_of = consumer.task_buckets.__getitem__
    rate_limits = not consumer.disable_rate_limits
    # A limit for all tasks is not one of the bundles: a task that is exempt from it travels in them.
    has_bucket = rate_limits and not bundle
    longest_lease_s = max((member.lane.lease for member in members), default=0.0)
    new_limits = new_limits_of(consumer, longest_lease_s) if bundle and rate_limits else None

    def handle(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **extra: Any) -> Any:
        headers = message.headers
        if HEADER_BASE not in headers:
            return ordinary(message, body, ack, reject, callbacks, **extra)
        member = only or by_queue.get(message.delivery_info.get("routing_key"))
        if member is None:
            logger.warning("ignored a message of a lane that this worker does not serve: %s", headers.get("id"))
            return None
        if HEADER_REQUEST in headers:
            member.handle_leader_request(headers)
            return None
        try:
            return take(member, message, headers, callbacks)
        except passed_on:
            raise
        except Exception as exc:
            # An error that a message causes here is that message's failure. The worker lives on.
            logger.exception("cannot take %s", headers.get("id"))
            member.refuse(headers, message.body, f"the worker could not take it: {error_text(exc)}")
            return None

    def take(member: Member, message: Any, headers: Any, callbacks: Any) -> Any:
        if not member.take(headers, message.body):
            return None
        if HEADER_ALONE in headers and any(other.open.all for other in members if other is not member):
            member.decline(headers, message.body)
            return None
        if member.is_stopping:
            # The message came with kombu's last read. The pool is closing, and might drop it without a report.
            member.decline(headers, message.body)
            return None
        if HEADER_OWN in headers and not member.can_end:
            _say_that_nothing_stops(headers)
        request = request_cls(
            message,
            # The queue is consumed without acknowledgements. Kombu would still make a round trip for each one.
            on_ack=noop,
            on_reject=noop,
            app=app,
            hostname=consumer.hostname,
            eventer=eventer,
            task=task,
            connection_errors=connection_errors,
            # The payload is not parsed here. Only the pool process parses it.
            body=((), {}, {}),
            headers=headers,
            decoded=True,
        )
        member.received(request)
        if new_limits is not None and new_limits.keep_back(message.body):
            member.kept_back.append(request)
            return None
        if request.revoked():
            return None
        request.signal_received(consumer)
        request.announce()
        bucket = bucket_of(task.name) if has_bucket else None
        if bucket:
            if bucket.contents:
                # A timer is set for those that wait. With one for each, more than ten would be due at once, and then
                # Celery's loop sleeps for a second after each ten: the task would run far below its limit.
                return bucket.add((request, 1))
            return consumer._limit_task(request, bucket, 1)
        task_reserved(request)
        for callback in callbacks or ():
            callback(request)
        try:
            taken = consumer.on_task_request(request)
            if HEADER_FIRST in headers:
                put_first(getattr(consumer.controller, "semaphore", None), request)
            return taken
        except passed_on:
            raise
        except Exception:
            # The pool failed, not the message. The pool may have the message or not.
            logger.exception("cannot give %s to the pool", headers.get("id"))
            member.open.in_doubt(request)
            return None

    return handle


def _say_that_nothing_stops(headers: Any) -> None:
    """Logs once that the pool of this worker cannot stop a message at its time limit."""
    global _said
    rules = own_rules(headers)
    if _said or rules is None or rules.timeout_ms is None:
        return
    _said = True
    logger.warning(
        "message %s has a timeout, and this pool cannot stop a task: one that takes too long fails when it ends",
        headers["id"],
    )


def unknown_task(consumer: Any, message: Any, name: str) -> None:
    """Handles a ticket message whose task the worker of ``consumer`` (Celery's) does not have: it is dead, with that
    reason.
    """
    headers = message.headers or {}
    members = members_of(consumer)
    if members is None or HEADER_BASE not in headers or name == BUNDLE_TASK:
        return
    member = members.by_queue.get(message.delivery_info.get("routing_key"))
    if member is None:
        return
    error = f"{NotRegistered.__name__}: the worker does not know the task {name}"
    outcome = Outcome(headers["id"], first_fence(headers), Kind.DEAD, error=error)
    member.write(headers[HEADER_INCARNATION], [outcome])
