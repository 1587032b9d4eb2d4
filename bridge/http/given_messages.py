"""A Celery message of the bridge, as an HTTP consumer gets it: JSON. The payload is the producer's text, unchanged."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

import orjson

from bridge.protocol.headers import OwnRules, first_fence, first_head, lost_of, own_rules
from bridge.routing.records import LostAttempt

#: What follows a payload in the body of a Celery message.
AFTER_PAYLOAD = "],{},"


class Given(NamedTuple):
    """What an HTTP consumer gets. ``payload``: JSON, as the producer wrote it."""

    ticket: str
    message_id: str
    fence: int
    attempt: int
    task: str
    payload: str
    lost: LostAttempt | None
    own: OwnRules | None


def read_given(text: bytes) -> Given:
    """The message in ``text``, a Celery message of the bridge."""
    message: dict[str, Any] = orjson.loads(text)
    headers, body = message["headers"], message["body"]
    head = first_head(headers)
    payload = body[len(orjson.dumps(head.ticket).decode()) + 3 : body.rindex(AFTER_PAYLOAD)]
    return Given(
        ticket=head.ticket,
        message_id=headers["id"],
        fence=first_fence(headers),
        attempt=head.attempt,
        task=headers["task"],
        payload=payload,
        lost=lost_of(headers),
        own=own_rules(headers),
    )


def given_message(text: bytes, deadline_ms: int) -> bytes:
    """The JSON of the message in ``text``. ``deadline_ms``: Unix ms when the lease ends, unless it is renewed."""
    given = read_given(text)
    more = b"" if given.lost is None else b',"lost":%b' % orjson.dumps(lost_document(given.lost))
    more += b"" if given.own is None else b',"options":%b' % orjson.dumps(own_document(given.own))
    return b'{"ticket_id":%b,"message_id":%b,"fence":%d,"attempt":%d,"task":%b,"payload":%b,"deadline_ms":%d%b}' % (
        orjson.dumps(given.ticket),
        orjson.dumps(given.message_id),
        given.fence,
        given.attempt,
        orjson.dumps(given.task),
        given.payload.encode(),
        deadline_ms,
        more,
    )


def own_document(own: OwnRules) -> dict[str, Any]:
    """The message's own rules, for JSON."""
    members = {"max_attempts": own.max_attempts, "timeout_ms": own.timeout_ms, "expires_ms": own.expires_ms}
    return {name: value for name, value in members.items() if value is not None}


def lost_document(lost: LostAttempt) -> dict[str, Any]:
    """An attempt that was cut off, for JSON."""
    return asdict(lost)
