"""The errors of a push: each says which messages are in for certain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import redis

from bridge.link.connections import UNAVAILABLE, is_full, without_password
from bridge.routing.errors import ServerUnavailable, Unanswered
from bridge.routing.server_errors import was_not_sent

if TYPE_CHECKING:
    from bridge.settings.app import Settings

#: The errors of a push that the server refuses or does not answer.
FAILURES = (*UNAVAILABLE, redis.exceptions.ResponseError)


@contextmanager
def translated_failures(settings: Settings, pushed: list[str], total: int) -> Iterator[None]:
    """Translates the errors of a push. ``pushed``: ids of the messages that are in, of ``total`` messages."""
    try:
        yield
    except FAILURES as exc:
        raise failure_of(exc, settings, pushed, total) from None


def failure_of(exc: Exception, settings: Settings, pushed: list[str], total: int) -> ServerUnavailable:
    """The error of a push for ``exc``; ``pushed`` and ``total`` as above."""
    url = without_password(settings.redis_url)
    said = " ".join(str(exc).split()) or type(exc).__name__
    if not was_not_sent(exc) and not isinstance(exc, redis.exceptions.ResponseError):
        return unanswered(f"no answer from Redis at {url}: {said}", pushed, total)
    rest = rest_of(pushed, total)
    if is_full(exc):
        return ServerUnavailable(
            f"Redis is full: {said}; {rest}; messages in the stream are still handled; push again later",
            pushed,
        )
    if isinstance(exc, UNAVAILABLE):
        return ServerUnavailable(f"cannot reach Redis at {url}: {said}; {rest}", pushed)
    return ServerUnavailable(f"Redis refused: {said}; {rest}", pushed)


def unanswered(said: str, pushed: list[str], total: int) -> Unanswered:
    """The error of a push that did not get its last answer. ``said``: why; ``pushed`` and ``total`` as above."""
    rest = "the message may or may not be in" if total == 1 else f"{_in(pushed, total)}some after them may be"
    return Unanswered(f"{said}; {rest}; with an idempotency_key the same push can be tried again", pushed)


def rest_of(pushed: list[str], total: int) -> str:
    """Which messages of a push that was refused are in, as part of a sentence."""
    return "the message is not in" if total == 1 else f"{_in(pushed, total)}none after them"


def _in(pushed: list[str], total: int) -> str:
    return f"{len(pushed):,} of {total:,} messages are in, in order, and "
