"""Writes outcomes: one XADD for many outcomes, or one script where there are effects.

Each process has its own connections, as many as it has concurrent writers. While the server is away, the writer tries
again until the lease ends. Until then no other worker may have the tickets, so waiting loses nothing. After that the
outcome is void.

A full server (OOM) refuses the XADD. Then the outcome is written by a script that a full server accepts. The outcome
leads to an acknowledgement, and an acknowledgement frees memory.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from bridge.link.connections import Wire, client, is_full, is_outage
from bridge.link.outage import Outage
from bridge.protocol.outcome_entries import WHO, EntryKind
from bridge.protocol.outcomes import Outcome
from bridge.routing.effects import Effect, Success, apply, tell
from bridge.routing.return_codes import ReturnCode

if TYPE_CHECKING:
    from bridge.consumer.deadline import Deadline
    from bridge.settings.lane import LaneSettings

logger = logging.getLogger(__name__)

#: Seconds between two tries while the server is away.
RETRY_S = 0.05
#: Timeout of one write, in seconds. Then it is tried again on a new connection.
TIMEOUT_S = 2.0


def has_no_file_descriptor(exc: BaseException | None) -> bool:
    """Whether ``exc`` was raised since no file descriptor was left: the fault is this process's, not the server's."""
    while exc is not None:
        if isinstance(exc, OSError) and exc.errno in (errno.EMFILE, errno.ENFILE):
            return True
        exc = exc.__cause__ or exc.__context__
    return False


class OutcomeWriter:
    """Writes outcomes of one process, from any of its threads.

    Connections are kept for the next writer, and are not bound to threads. With gevent every message has a greenlet of
    its own, and would open a connection each time.
    """

    def __init__(self, url: str, lane: LaneSettings, deadline: Deadline) -> None:
        self._url = url
        self._keys = lane.keys
        self._deadline = deadline
        self._pid = os.getpid()
        #: Connections that are not in use now.
        self._idle: list[Wire] = []
        self._made_client: Redis | None = None
        self._known_head = ("", b"")
        self._outage = Outage(logger, "trying to write an outcome until the lease ends")

    def write(self, incarnation: str, outcomes: Sequence[Outcome]) -> bool:
        """Writes ``outcomes`` in one entry. False: the lease ended first, and they are void."""
        data = b"[" + b",".join(outcome.encode() for outcome in outcomes) + b"]"
        packed = b"%b$%d\r\n%b\r\n" % (self._head(incarnation), len(data), data)

        def send() -> None:
            try:
                self._call(packed)
            except RedisError as exc:
                if not is_full(exc):
                    raise
                tell(self._client(), self._keys, incarnation, data)

        return self._until_lease_ends(incarnation, send)

    def _head(self, incarnation: str) -> bytes:
        """The command (RESP) up to the outcomes. It is the same for every write of an incarnation."""
        known, head = self._known_head
        if known != incarnation:
            command = ("XADD", self._keys.outcomes, "*", WHO, incarnation, EntryKind.OUTCOMES.value)
            encoded = [argument.encode() for argument in command]
            head = b"*7\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in encoded)
            self._known_head = (incarnation, head)
        return head

    def apply(
        self, incarnation: str, items: Sequence[tuple[str, Outcome, tuple[Effect, ...]]]
    ) -> list[tuple[ReturnCode, str]]:
        """Applies effects and writes successes. ``items``: (ticket, outcome, effects).

        Returns a return code and an error for each item. All are STALE when the lease ended first.
        """
        successes = [
            Success(ticket, outcome.fence, outcome.encode().decode(), effects) for ticket, outcome, effects in items
        ]
        codes: list[tuple[ReturnCode, str]] = []

        def send() -> None:
            codes[:] = apply(self._client(), self._keys, incarnation, successes)

        if not self._until_lease_ends(incarnation, send):
            return [(ReturnCode.STALE, "")] * len(items)
        return codes

    def ask(self, incarnation: str, commands: Sequence[Sequence[Any]]) -> list[Any] | None:
        """The replies to commands that only read; an error reply is in its place. None: the lease ended first."""
        replies: list[Any] = []

        def send() -> None:
            with self._wire() as wire:
                replies[:] = wire.replies_to(commands)

        return replies if self._until_lease_ends(incarnation, send) else None

    def _until_lease_ends(self, incarnation: str, send: Any) -> bool:
        while True:
            try:
                send()
            except (RedisError, OSError) as exc:
                if not is_outage(exc):
                    raise
                if has_no_file_descriptor(exc) and not self._deadline.in_main:
                    logger.critical("no connection can be made in this pool process, which ends: %s", exc)
                    os._exit(os.EX_OSERR)
                self._outage.met(exc)
            else:
                self._outage.over()
                return True
            if not self._deadline.holds(incarnation):
                return False
            time.sleep(RETRY_S)

    def _call(self, packed: bytes) -> None:
        with self._wire() as wire:
            wire.call_packed(packed)

    @contextmanager
    def _wire(self) -> Iterator[Wire]:
        """A connection that nobody else uses within the block."""
        self._check_process()
        try:
            # This is atomic in Python: two threads never get the same connection.
            wire = self._idle.pop()
        except IndexError:
            wire = Wire(self._url, timeout_s=TIMEOUT_S)
        try:
            yield wire
        except ResponseError:
            # The reply was read, so the connection is in order.
            self._idle.append(wire)
            raise
        except BaseException:
            # Most often the connection was lost, and then the idle ones are lost as well. Or a time limit struck here.
            lost, self._idle = [wire, *self._idle], []
            for one in lost:
                one.close()
            raise
        self._idle.append(wire)

    def _client(self) -> Redis:
        self._check_process()
        if self._made_client is None:
            self._made_client = client(self._url, timeout_s=TIMEOUT_S)
        return self._made_client

    def _check_process(self) -> None:
        # Connections that were open when this process was forked belong to the parent.
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._idle = []
            self._made_client = None
