"""A ticket, a payload and an idempotency key as the stream takes them. What cannot be sent is refused with a reason."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import orjson

from bridge.routing.errors import PayloadError
from bridge.routing.messages import MAX_DEPTH, MAX_TICKET_BYTES, Refused, is_deep

#: Longest idempotency key, in bytes of UTF-8.
MAX_KEY_BYTES = 512


def checked_key(key: Any) -> str:
    """``key``, if it can be an idempotency key. Raises `PayloadError`."""
    if not isinstance(key, str) or not key:
        raise PayloadError(f"an idempotency_key must be a string that is not empty, not {key!r:.80}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise PayloadError(f"the idempotency_key {key!r:.80} cannot be written as UTF-8") from None
    if size > MAX_KEY_BYTES:
        raise PayloadError(f"an idempotency_key must have at most {MAX_KEY_BYTES} bytes, not {size}")
    return key


def ticket_bytes(ticket_id: Any) -> bytes:
    """``ticket_id`` as bytes for the stream. Raises `PayloadError`."""
    if not isinstance(ticket_id, str):
        if not isinstance(ticket_id, int) or isinstance(ticket_id, bool):
            raise PayloadError(f"ticket_id must be a string or a whole number, not {type(ticket_id).__name__}")
        # 42 and "42" are the same ticket, also for `bridge push`.
        try:
            ticket_id = int.__repr__(ticket_id)
        except ValueError as exc:
            raise PayloadError(f"ticket_id is too large a number: {exc}") from None
    try:
        raw: bytes = ticket_id.encode()
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
        if "Recursion limit" in str(exc):
            raise PayloadError(f"the {Refused.TOO_DEEP.value}") from None
        raise PayloadError(f"the payload cannot be written as JSON: {exc}") from None
    # JSON has no NaN and no Infinity: orjson writes null. So look for them if there is a null.
    if b"null" in raw and (number := not_finite(payload)) is not None:
        raise PayloadError(f"the payload cannot be written as JSON: it holds {number}, which is no number there")
    # JSON with fewer bytes cannot be nested too deeply.
    if len(raw) > MAX_DEPTH and is_deep(raw):
        raise PayloadError(f"the {Refused.TOO_DEEP.value}")
    if len(raw) > max_payload:
        raise PayloadError(f"the payload has {len(raw)} bytes of JSON; bridge_max_payload allows {max_payload}")
    return raw


def not_finite(payload: Any) -> float | None:
    """A number in ``payload`` that JSON does not have (NaN, Infinity); None: there is none.

    ``payload`` must be writable as JSON otherwise.
    """
    left = [payload]
    while left:
        one = left.pop()
        if isinstance(one, float):
            if not math.isfinite(one):
                return one
        elif isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list | tuple):
            left += one
        elif isinstance(one, Enum):
            left.append(one.value)
        elif is_dataclass(one):
            # What orjson writes: all attributes of an instance that has a dict, also those that are no fields.
            names = vars(one) if hasattr(one, "__dict__") else [field.name for field in fields(one)]
            left += [getattr(one, name, None) for name in names if not name.startswith("_")]
    return None
