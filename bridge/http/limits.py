"""Limits of a request, before any route sees it: the size of its body, the memory of all bodies, and the Host header.

A body is never read past its limit. It is counted as it arrives. The last handler of errors is here, too.
"""

from __future__ import annotations

import asyncio
import ipaddress
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from starlette.requests import ClientDisconnect

from bridge.http.problems import Problem, problem_of, unavailable

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from bridge.http.site import Site

logger = get_logger(__name__)

#: Most bytes of all bodies together that are in memory, as a multiple of the limit of one body.
BODIES = 16
#: Most bytes of the headers of a request.
HEADER_BYTES = 32 * 1024
#: Names of this machine that a Host header may have where no token is set.
LOCAL_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")


class Limited:
    """The application behind its limits. Every error within becomes an answer, and a bug is logged."""

    def __init__(self, application: ASGIApp, site: Site) -> None:
        self._application = application
        self.site = site
        self._most = site.settings.http_max_body
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = _Request(self, receive, send)
        try:
            self._check_host(scope)
            _check_headers(scope)
            self._check_length(scope)
            await self._application(scope, request.receive, request.send)
        except ClientDisconnect:
            # In the middle of its body, or it was told that its body takes too long: nobody reads an answer.
            logger.debug("a client went away: %s %s", scope["method"], scope["path"])
        except (Exception, asyncio.CancelledError) as exc:
            # What is left when the server stops is cancelled.
            stopped = isinstance(exc, asyncio.CancelledError)
            found = unavailable("this master stops; use another one") if stopped else problem_of(exc)
            if found.status == 500:
                logger.exception("a request failed: %s %s", scope["method"], scope["path"])
            if not request.answered:
                await found.response()(scope, receive, send)
        finally:
            self._held -= request.held

    def hold(self, size: int, whole: int) -> None:
        """Counts ``size`` more bytes of a body that has ``whole`` by now. Raises `Problem`."""
        if whole > self._most:
            raise self._too_large()
        if self._held + size > self._most * BODIES:
            raise unavailable("the server holds too many large bodies at once; try again")
        self._held += size

    def _too_large(self) -> Problem:
        # The rest of the body is not read, so the connection ends with the answer.
        return Problem(
            413, f"a body may have at most {self._most:,} bytes (bridge_http_max_body)", headers={"Connection": "close"}
        )

    def _check_length(self, scope: Scope) -> None:
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if length.isdigit() and int(length) > self._most:
            raise self._too_large()

    def _check_host(self, scope: Scope) -> None:
        """Without tokens only programs of this machine may call, and no page in its browser. Such a page would use a
        host name that a foreign server resolves to the loopback address. So other names are refused.
        """
        if not self.site.access.is_open:
            return
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        if host and not _is_local(host.decode("latin-1")):
            raise Problem(
                421, "without tokens, the Host header must name the loopback address: 127.0.0.1, [::1] or localhost"
            )


class _Request:
    """One request. It counts the body, and knows whether an answer began."""

    def __init__(self, limited: Limited, receive: Receive, send: Send) -> None:
        self._limited = limited
        self._receive = receive
        self._send = send
        self.held = 0
        self.answered = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and (size := len(message.get("body", b""))):
            self._limited.hold(size, self.held + size)
            self.held += size
        return message

    async def send(self, message: Message) -> None:
        self.answered = True
        await self._send(message)


def _check_headers(scope: Scope) -> None:
    """Uvicorn bounds only what did not come in one piece. With two lengths, a proxy may see another end than we do."""
    names = {name for name, _ in scope["headers"]}
    if b"transfer-encoding" in names and b"content-length" in names:
        raise Problem(
            400, "a request has either Content-Length or Transfer-Encoding, not both", headers={"Connection": "close"}
        )
    if b"content-encoding" in names:
        raise Problem(415, "send the body as it is, without Content-Encoding", headers={"Connection": "close"})
    size = len(scope["raw_path"]) + len(scope["query_string"])
    size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    if size > HEADER_BYTES:
        raise Problem(431, f"the headers of a request may have at most {HEADER_BYTES:,} bytes, with its path")


def _is_local(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower().rstrip(".") in LOCAL_NAMES:
        return True
    try:
        found: Any = ipaddress.ip_address(name)
    except ValueError:
        return False
    return bool(found.is_loopback)
