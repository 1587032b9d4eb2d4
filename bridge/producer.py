"""Adds messages to the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import redis

from bridge.connect import UNAVAILABLE, is_full, without_password
from routing.errors import ConfigurationError, PayloadError, ServerUnavailable
from routing.messages import MAX_TICKET_BYTES

if TYPE_CHECKING:
    from celery import Celery


def push(app: Celery, task: str, ticket_id: str, payload: Any, *, delay: float | None = None) -> str:
    """One message for ``task``; returns its id. See `TicketTask.push`."""
    if delay is not None:
        raise ConfigurationError("push(delay=…) is not available yet; push the message when it is due")
    settings = app.bridge.settings
    fields = {
        "ticket_id": ticket_bytes(ticket_id),
        "task": task,
        "payload": payload_bytes(payload, settings.max_payload),
    }
    try:
        id_ = app.bridge.client.xadd(settings.stream, fields)
    except UNAVAILABLE as exc:
        url = without_password(settings.redis_url)
        raise ServerUnavailable(f"cannot reach Redis at {url}: {exc}; the message may or may not be in") from None
    except redis.exceptions.ResponseError as exc:
        if is_full(exc):
            raise ServerUnavailable(
                f"Redis is full, the message is not in: {exc}; what is there goes on, push it again when there is room"
            ) from None
        raise ServerUnavailable(f"Redis refused the message: {exc}") from None
    return id_.decode() if isinstance(id_, bytes) else str(id_)


def ticket_bytes(ticket_id: Any) -> bytes:
    """``ticket_id`` as it goes into the stream. Raises `PayloadError`."""
    if not isinstance(ticket_id, str):
        raise PayloadError(f"ticket_id must be a string, not {type(ticket_id).__name__}")
    try:
        raw = ticket_id.encode()
    except UnicodeEncodeError:
        raise PayloadError(f"ticket_id {ticket_id!r} cannot be written as UTF-8") from None
    if not 0 < len(raw) <= MAX_TICKET_BYTES:
        raise PayloadError(f"ticket_id must have 1 to {MAX_TICKET_BYTES} bytes, not {len(raw)}")
    return raw


def payload_bytes(payload: Any, max_payload: int) -> bytes:
    """``payload`` as JSON. Raises `PayloadError`."""
    try:
        raw = orjson.dumps(payload)
    except TypeError as exc:
        raise PayloadError(f"the payload cannot be written as JSON: {exc}") from None
    if len(raw) > max_payload:
        raise PayloadError(f"the payload has {len(raw)} bytes of JSON; bridge_max_payload allows {max_payload}")
    return raw
