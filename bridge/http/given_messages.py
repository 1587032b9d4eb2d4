"""A Celery message of the bridge, as an HTTP consumer gets it: JSON. The payload is the producer's text, unchanged."""

from __future__ import annotations

from typing import Any

import orjson

from bridge.protocol.headers import OwnRules, first_fence, first_head, lost_of, own_rules
from bridge.routing.records import LostAttempt

#: What follows a payload in the body of a Celery message.
AFTER_PAYLOAD = "],{},"


def given_message(text: bytes, deadline_ms: int) -> bytes:
    """The JSON of the message in ``text``. ``deadline_ms``: Unix ms when the lease ends, unless it is renewed."""
    message: dict[str, Any] = orjson.loads(text)
    headers, body = message["headers"], message["body"]
    head = first_head(headers)
    ticket = orjson.dumps(head.ticket)
    payload = body[len(ticket.decode()) + 3 : body.rindex(AFTER_PAYLOAD)]
    lost, own = lost_of(headers), own_rules(headers)
    return b'{"ticket_id":%b,"message_id":%b,"fence":%d,"attempt":%d,"task":%b,"payload":%b,"deadline_ms":%d%b}' % (
        ticket,
        orjson.dumps(headers["id"]),
        first_fence(headers),
        head.attempt,
        orjson.dumps(headers["task"]),
        payload.encode(),
        deadline_ms,
        (b"" if lost is None else b',"lost":%b' % _lost(lost)) + (b"" if own is None else b',"options":%b' % _own(own)),
    )


def _own(own: OwnRules) -> bytes:
    members = {"max_attempts": own.max_attempts, "timeout_ms": own.timeout_ms, "expires_ms": own.expires_ms}
    return orjson.dumps({name: value for name, value in members.items() if value is not None})


def _lost(lost: LostAttempt) -> bytes:
    return orjson.dumps({"attempt": lost.attempt, "fence": lost.fence, "consumer": lost.consumer, "cause": lost.cause})
