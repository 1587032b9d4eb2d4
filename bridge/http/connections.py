"""One connection of a client, with limits that uvicorn lacks: their number, and the time of slow clients.

A client has a limited time for the headers of a request, and for its body, and must read its answer at a minimum rate.
The answer to a request that cannot be parsed is a problem. Clients of HTTP/1.1 may send several requests at once: each
is read when the one before it is answered.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from bridge.http.limits import HEADER_BYTES
from bridge.http.problems import MEDIA_TYPE, RETRY_AFTER_S, Problem, unavailable

#: Longest time for the headers of a request, and for its body, in seconds.
HEADERS_S = 10.0
BODY_S = 60.0
#: Seconds between two looks at a slow reader, and the fewest bytes that it must have read in between.
WRITE_S = 10.0
WRITE_BYTES = 10 * 1024
#: How long an idle connection is kept for a next request, in seconds.
IDLE_S = 75


class Connection(H11Protocol):
    """``most``: the most connections of the server."""

    def __init__(self, *args: Any, most: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._most = most
        #: Ends the wait for the rest of a request.
        self._request_timer: asyncio.TimerHandle | None = None
        #: Makes the next look at a slow reader.
        self._reader_timer: asyncio.TimerHandle | None = None
        #: Bytes of the answer that were not sent yet at the last of these looks.
        self._unsent = 0
        self._has_data = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most:
            self._refuse(unavailable(f"there are {self._most:,} open connections, and that is the limit; try again"))
            return
        self._request_timer = self.loop.call_later(HEADERS_S, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        had, self._has_data = self.cycle, True
        super().data_received(data)
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            # A part of the headers.
            if self._request_timer is None:
                self._request_timer = self.loop.call_later(HEADERS_S, self._too_slow)
        elif not cycle.more_body:
            self._stop_waiting()
        elif cycle is not had:
            self._stop_waiting()
            self._request_timer = self.loop.call_later(BODY_S, self._too_slow)

    def on_response_complete(self) -> None:
        self._stop_waiting()
        super().on_response_complete()
        if self.cycle is not None and not self.cycle.response_complete and self.cycle.more_body:
            self._request_timer = self.loop.call_later(BODY_S, self._too_slow)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        # The client may not have read its answer: the rest would be kept for ever.
        self.loop.call_later(WRITE_S, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent = self.transport.get_write_buffer_size()
        self._reader_timer = self.loop.call_later(WRITE_S, self._look_at_reader)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 (uvicorn's signature)
        """Answers a request that cannot be parsed."""
        # uvicorn calls it where it handles h11's error, so `sys.exception` is that error.
        if getattr(sys.exception(), "error_status_hint", 400) == 431:
            self._refuse(Problem(431, f"the headers of a request may have at most {HEADER_BYTES:,} bytes"))
        else:
            self._refuse(Problem(400, "this is not a valid HTTP request"))

    def _too_slow(self) -> None:
        self._request_timer = None
        if self.transport.is_closing():
            return
        if self._has_data:
            self._refuse(Problem(408, "the request did not come in time"))
        else:
            self.transport.close()

    def _look_at_reader(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left > self._unsent - WRITE_BYTES:
            self.transport.abort()
            return
        self._unsent = left
        self._reader_timer = self.loop.call_later(WRITE_S, self._look_at_reader)

    def _stop_waiting(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _refuse(self, problem: Problem) -> None:
        """Answers without the application, unless it answers already, and ends the connection."""
        self._stop_waiting()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            # The application waits for the rest of the body.
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and (
            cycle is None or not cycle.response_started or cycle.response_complete
        ):
            body = problem.body
            headers = [
                ("content-type", MEDIA_TYPE),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            if problem.status == 503:
                headers.append(("retry-after", str(RETRY_AFTER_S)))
            title = problem.document()["title"].encode()
            for event in (
                h11.Response(status_code=problem.status, headers=headers, reason=title),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self.loop.call_later(WRITE_S, self.transport.abort)
