"""Errors as RFC 9457 problem details. Each says what is wrong and what to do, and none shows internals."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson
from celery.utils.log import get_logger
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, Field
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException

from bridge.link.failures import translated
from bridge.routing.errors import (
    ConfigurationError,
    InputError,
    KeyUsed,
    PayloadError,
    ServerUnavailable,
    TicketBridgeError,
    Unanswered,
)
from bridge.routing.server_errors import is_outage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import FastAPI, Request

logger = get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
#: What a client is told to wait for a server that is away, or has too much to do, in seconds.
RETRY_AFTER_S = 1
#: Most errors of one request that are named.
NAMED = 10


class Problem(HTTPException):
    """An answer that is an error. ``members``: further members of the problem.

    It is of a kind that FastAPI raises on where it reads a body.
    """

    def __init__(self, status: int, detail: str, *, headers: dict[str, str] | None = None, **members: Any) -> None:
        super().__init__(status, detail, headers)
        self.status = status
        self.members = members

    def document(self) -> dict[str, Any]:
        """The JSON of the answer."""
        title = HTTPStatus(self.status).phrase
        return {"type": "about:blank", "title": title, "status": self.status, "detail": self.detail, **self.members}

    @property
    def body(self) -> bytes:
        return orjson.dumps(self.document())

    def response(self) -> Response:
        return Response(self.body, self.status, self.headers, MEDIA_TYPE)


def unavailable(detail: str, **members: Any) -> Problem:
    """503: the client should try again."""
    return Problem(503, detail, headers={"Retry-After": str(RETRY_AFTER_S)}, **members)


class ProblemDocument(BaseModel):
    """The body of an error, for the description of the interface."""

    type: str = Field(description="Always about:blank: the status says which kind of error it is.")
    title: str = Field(description="The name of the status.")
    status: int = Field(description="The status of the answer.")
    detail: str = Field(description="What is wrong, and what to do.")


#: Status -> what it means, for the description of the interface.
MEANINGS = {
    400: "The request is malformed.",
    401: "The token is missing or wrong.",
    403: "The token does not allow this.",
    404: "There is no such thing.",
    405: "The path has no such method.",
    408: "The request did not come in time.",
    409: "It does not fit the present state.",
    410: "The lease of this incarnation is over: register again.",
    413: "The body is too large.",
    415: "The body is not of a media type that is understood.",
    421: "The Host header names another server.",
    431: "The headers are too large.",
    500: "The server has a bug; its log says more.",
    503: "Redis is away, or the server has too much to do: try again after the time of Retry-After.",
}


#: Those that every route can answer with.
EVERYWHERE = frozenset({400, 401, 403, 408, 413, 421, 431, 500, 503})


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route: these errors, and those of every route."""
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    return {
        status: {"description": MEANINGS[status], "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in sorted({*EVERYWHERE, *statuses})
    }


def problem_of(exc: BaseException) -> Problem:
    """The answer for any error."""
    if isinstance(exc, Problem):
        return exc
    if isinstance(exc, RequestValidationError):
        return _of_validation(exc)
    if isinstance(exc, HTTPException):
        return Problem(exc.status_code, MEANINGS[exc.status_code], headers=dict(exc.headers or {}))
    if isinstance(exc, KeyUsed):
        return Problem(409, str(exc))
    if isinstance(exc, PayloadError | InputError):
        return Problem(400, str(exc))
    if isinstance(exc, ServerUnavailable):
        members = {"message_ids": list(exc.pushed)} if exc.pushed else {}
        if isinstance(exc, Unanswered):
            members["unanswered"] = True  # type: ignore[assignment]
        return unavailable(str(exc), **members)
    if isinstance(exc, RedisError | OSError) and is_outage(exc):
        if "No connection available" in str(exc):
            # redis-py's words for a pool in which all connections are busy.
            return unavailable("the server has too much to do; try again, or use another master")
        logger.debug("Redis is away: %s", exc)
        return unavailable("Redis is away; try again when it is back")
    if isinstance(exc, RedisError) and (shown := translated(exc)) is not None:
        return unavailable(str(shown))
    if isinstance(exc, ConfigurationError):
        return Problem(409, str(exc))
    if isinstance(exc, TicketBridgeError):
        return unavailable(str(exc))
    return Problem(500, "the server has a bug; the master's log says more")


def _of_validation(exc: RequestValidationError) -> Problem:
    """400 in one sentence for the first errors. What was sent is not repeated."""
    found = exc.errors()
    said = []
    for error in found[:NAMED]:
        # Parts with a bracket are pydantic's names of the forms of a body that has several.
        where = ".".join(part[:80] for part in map(str, error["loc"][:8]) if "[" not in part)
        said.append((where, str(error["msg"]).removeprefix("Value error, ")))
    return malformed(said, len(found))


def malformed(said: Sequence[tuple[str, str]], count: int) -> Problem:
    """400 for a request with ``count`` errors. ``said``: of the first ones, where each is, and what it is."""
    errors = [{"where": where, "message": message[:300]} for where, message in said[:NAMED]]
    first = f"{errors[0]['where']}: {errors[0]['message']}" if errors else "the request is malformed"
    more = f", and {count - 1} more" if count > 1 else ""
    return Problem(400, f"{first}{more}", errors=errors)


async def _answer(_request: Request, exc: Exception) -> Response:
    return problem_of(exc).response()


def handle_problems(application: FastAPI) -> None:
    """Makes ``application`` answer all errors as problem details."""
    for kind in (Problem, RequestValidationError, HTTPException, TicketBridgeError, RedisError, OSError, Exception):
        application.add_exception_handler(kind, _answer)
