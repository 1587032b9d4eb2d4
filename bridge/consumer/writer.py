"""Writes outcomes: one XADD for many outcomes, or one script where there are effects.

Each process has its own connections, as many as it has concurrent writers. While the server is away, the writer tries
again until the lease ends. Until then no other worker may have the tickets, so waiting loses nothing. After that the
outcome is void.

A server that refuses an outcome (a permission was taken away, somebody put another type under a key of the lane) is
asked again for one lease: if it takes the outcome by then, nothing runs twice. It refuses the whole call then. An
effect that it refuses is a failure of its message.

A full server (OOM) refuses the XADD. Then the outcome is written by a script that a full server accepts. The outcome
leads to an acknowledgement, and an acknowledgement frees memory. The XADD makes no stream: it may come late to a lane
that was deleted. Where there is no stream, the script looks whether there shall be one.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from redis import Redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from bridge.link.connections import Wire, client, error_code, is_forbidden, is_full, is_outage
from bridge.link.outage import Outage, has_no_file_descriptor
from bridge.protocol.outcome_entries import WHO, EntryKind
from bridge.protocol.outcomes import Outcome
from bridge.routing.effects import Effect, Success, application, apply, codes_of, tell
from bridge.routing.return_codes import ReturnCode

if TYPE_CHECKING:
    from bridge.consumer.deadline import Deadline
    from bridge.routing.keys import LaneKeys
    from bridge.routing.layouts import InLayout
    from bridge.settings.lane import LaneSettings

logger = logging.getLogger(__name__)

#: Seconds between two tries while the server is away.
RETRY_S = 0.05
#: Timeout of one write, in seconds. Then it is tried again on a new connection.
TIMEOUT_S = 2.0
#: Seconds between two tries while the server refuses an outcome.
REFUSED_RETRY_S = 0.25


def is_refusal(exc: Exception) -> bool:
    """Whether the server refuses every outcome until somebody mends what is wrong there."""
    return is_forbidden(exc) or error_code(exc) == "WRONGTYPE"


def _outage() -> Outage:
    return Outage(logger, "trying to write an outcome until the lease ends")


class OutcomeWriter:
    """Writes outcomes of one process, from any of its threads.

    Connections are kept for the next writer, and are not bound to threads. With gevent every message has a greenlet of
    its own, and would open a connection each time.
    """

    def __init__(self, url: str, lane: LaneSettings, deadline: Deadline, layout: InLayout | None = None) -> None:
        """``layout``: what the lane's stream belongs to; None: it is a whole stream."""
        self._url = url
        self._keys = lane.keys
        self._lease_s = lane.lease
        self._layout = layout
        self._deadline = deadline
        self._pid = os.getpid()
        #: Connections that are not in use now.
        self._idle: list[Wire] = []
        self._made_client: Redis | None = None
        self._known_head = ("", b"")
        self._outage = _outage()

    def write(self, incarnation: str, outcomes: Sequence[Outcome], *, waits: bool = True) -> bool:
        """Writes ``outcomes`` in one entry. False: the lease ended first, and they are void.

        ``waits``: asks again, for one lease, when the server refuses them. Raises its error after that.
        """
        return self.begin_write(incarnation, outcomes, waits=waits).end()

    def begin_write(self, incarnation: str, outcomes: Sequence[Outcome], *, waits: bool = True) -> UnderWay:
        """Begins `write`."""
        data = b"[" + b",".join(outcome.encode() for outcome in outcomes) + b"]"
        packed = b"%b$%d\r\n%b\r\n" % (self._head(incarnation), len(data), data)

        def again() -> None:
            written = None
            try:
                with self._wire() as wire:
                    wire.ask_packed(packed)
                    written = wire.answer()
            except RedisError as exc:
                if not is_full(exc):
                    raise
            if written is None:
                tell(self._client(), self._keys, incarnation, data, self._layout)

        return UnderWay(self, incarnation, lambda wire: wire.ask_packed(packed), again, waits=waits)

    def _head(self, incarnation: str) -> bytes:
        """The command (RESP) up to the outcomes. It is the same for every write of an incarnation."""
        known, head = self._known_head
        if known != incarnation:
            command = ("XADD", self._keys.outcomes, "NOMKSTREAM", "*", WHO, incarnation, EntryKind.OUTCOMES.value)
            encoded = [argument.encode() for argument in command]
            head = b"*8\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in encoded)
            self._known_head = (incarnation, head)
        return head

    def apply(
        self, incarnation: str, items: Sequence[tuple[str, Outcome, tuple[Effect, ...]]]
    ) -> list[tuple[ReturnCode, str]]:
        """Applies effects and writes successes. ``items``: (ticket, outcome, effects).

        Returns a return code and an error for each item. All are STALE when the lease ended first.
        """
        return self.begin_apply(incarnation, items).codes()

    def begin_apply(self, incarnation: str, items: Sequence[tuple[str, Outcome, tuple[Effect, ...]]]) -> ApplyUnderWay:
        """Begins `apply`."""
        successes = [
            Success(ticket, outcome.fence, outcome.encode().decode(), effects) for ticket, outcome, effects in items
        ]
        return ApplyUnderWay(self, self._keys, incarnation, successes)

    def ask(self, incarnation: str, commands: Sequence[Sequence[Any]]) -> list[Any] | None:
        """The replies to commands that only read; an error reply is in its place. None: the lease ended first."""
        replies: list[Any] = []

        def send() -> None:
            with self._wire() as wire:
                replies[:] = wire.replies_to(commands)

        return replies if self._until_lease_ends(incarnation, send) else None

    def _until_lease_ends(
        self, incarnation: str, send: Callable[[], None], failed: Exception | None = None, *, waits: bool = False
    ) -> bool:
        """Calls ``send`` until it succeeds. ``failed``: how a first try failed already. ``waits``: as for `write`."""
        refused_since: float | None = None
        while True:
            if failed is None:
                try:
                    send()
                except (RedisError, OSError) as exc:
                    failed = exc
                else:
                    self._outage.over()
                    return True
            is_refused = waits and is_refusal(failed)
            if is_refused:
                if refused_since is None:
                    refused_since = time.monotonic()
                    text = "the server refuses an outcome: %s; it is written again for %g s"
                    logger.error(text, failed, self._lease_s)
                elif time.monotonic() - refused_since > self._lease_s:
                    raise failed
            elif not is_outage(failed):
                raise failed
            elif has_no_file_descriptor(failed) and not self._deadline.in_main:
                logger.critical("no connection can be made in this pool process, which ends: %s", failed)
                os._exit(os.EX_OSERR)
            else:
                self._outage.met(failed)
            failed = None
            if not self._deadline.holds(incarnation):
                return False
            time.sleep(REFUSED_RETRY_S if is_refused else RETRY_S)

    @contextmanager
    def _wire(self) -> Iterator[Wire]:
        """A connection that nobody else uses within the block."""
        wire = self._taken()
        try:
            yield wire
        except ResponseError:
            # The reply was read, so the connection is in order.
            self._idle.append(wire)
            raise
        except BaseException:
            self._lost(wire)
            raise
        self._idle.append(wire)

    def _taken(self) -> Wire:
        """A connection that nobody else uses until it is among the idle ones again."""
        self._check_process()
        try:
            # This is atomic in Python: two threads never get the same connection.
            wire = self._idle.pop()
        except IndexError:
            return Wire(self._url, timeout_s=TIMEOUT_S)
        wire.renew()
        return wire

    def _lost(self, wire: Wire) -> None:
        """Closes ``wire``. Most often the connection was lost, and then the idle ones are lost as well. Or a time limit
        struck while it was in use.
        """
        lost = [wire]
        # One by one, as in `_taken`: what another thread takes meanwhile is in use, and must stay open.
        with suppress(IndexError):
            while True:
                lost.append(self._idle.pop())
        for one in lost:
            one.close()

    def _client(self) -> Redis:
        self._check_process()
        if self._made_client is None:
            self._made_client = client(self._url, timeout_s=TIMEOUT_S)
        return self._made_client

    def _check_process(self) -> None:
        # Connections that were open when this process was forked belong to the parent. So does the outage that it had
        # then: a thread of the parent may have held its locks, which nobody would release here.
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._idle = []
            self._made_client = None
            self._outage = _outage()


class UnderWay:
    """A write that was sent, and whose reply was not read yet.

    Nobody else uses its connection until then. What comes of it is known when `end` has returned, and not before: the
    server may have refused it, or never got it. A write that failed is sent again, as one that nobody had begun.
    """

    __slots__ = ("_again", "_failed", "_incarnation", "_waits", "_wire", "_writer")

    def __init__(
        self,
        writer: OutcomeWriter,
        incarnation: str,
        ask: Callable[[Wire], None],
        again: Callable[[], None],
        *,
        waits: bool = False,
    ) -> None:
        """``ask``: sends the write. ``again``: sends it, and waits for its reply. ``waits``: as for
        `OutcomeWriter.write`.
        """
        self._writer = writer
        self._waits = waits
        self._incarnation = incarnation
        self._again = again
        #: Why it was not sent.
        self._failed: Exception | None = None
        #: None: it was not sent, or its reply was read.
        self._wire: Wire | None = None
        wire = writer._taken()
        try:
            ask(wire)
        except (RedisError, OSError) as exc:
            writer._lost(wire)
            self._failed = exc
        except BaseException:
            writer._lost(wire)
            raise
        else:
            self._wire = wire

    @property
    def has_reply(self) -> bool:
        """Whether `end` would find a reply, or an error, without waiting for it."""
        return self._wire is None or self._wire.has_answer

    def end(self) -> bool:
        """Reads the reply. While the server is away, it is sent again until the lease ends.

        False: the lease ended first, and the write is void. Raises the error of a server that refused it.
        """
        writer, wire, failed = self._writer, self._wire, self._failed
        if wire is not None:
            self._wire = None
            try:
                reply = wire.answer()
            except ResponseError as exc:
                writer._idle.append(wire)
                failed = exc
            except (RedisError, OSError) as exc:
                writer._lost(wire)
                failed = exc
            except BaseException:
                writer._lost(wire)
                raise
            else:
                writer._idle.append(wire)
                writer._outage.over()
                if reply is not None:
                    self._got(reply)
                    return True
        if isinstance(failed, NoScriptError) or (failed is not None and is_full(failed)):
            # The second way to send it does without the script, without memory, or without a stream.
            failed = None
        return writer._until_lease_ends(self._incarnation, self._again, failed, waits=self._waits)

    def drop(self) -> None:
        """Nobody will read the reply."""
        wire, self._wire = self._wire, None
        if wire is not None:
            # Else the next one who asks would get this reply.
            wire.close()

    def _got(self, reply: Any) -> None:
        """Takes the reply of a write that succeeded."""


class ApplyUnderWay(UnderWay):
    """The same for effects that are applied with successes."""

    __slots__ = ("_codes", "_count")

    def __init__(self, writer: OutcomeWriter, keys: LaneKeys, incarnation: str, successes: Sequence[Success]) -> None:
        self._count = len(successes)
        #: Set by the reply. Not read when the lease ended first.
        self._codes: list[tuple[ReturnCode, str]] = []

        def again() -> None:
            self._codes = apply(writer._client(), keys, incarnation, successes)

        command = application(keys, incarnation, successes)
        super().__init__(writer, incarnation, lambda wire: wire.ask(*command), again, waits=True)

    def codes(self) -> list[tuple[ReturnCode, str]]:
        """A return code and an error for each success, by `end`. All are STALE when the lease ended first."""
        return self._codes if self.end() else [(ReturnCode.STALE, "")] * self._count

    def _got(self, reply: Any) -> None:
        self._codes = codes_of(reply, self._count)
