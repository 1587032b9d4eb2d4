"""A server behind the connections of an `OutcomeWriter`, in this process: a test says what fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from bridge.protocol.outcomes import decode

#: How many keys the script has that applies effects.
KEYS_OF_APPLY = 4


class Fault(Enum):
    """What happens to one command. Without a fault, its reply is there at once."""

    #: The reply comes, and only to the one who waits for it.
    LATE = auto()
    #: The connection breaks before the server gets the command.
    NOT_SENT = auto()
    #: The connection breaks after the server has carried the command out.
    REPLY_LOST = auto()
    #: The connection breaks on the way: the command is sent, and the server never gets it.
    LOST_ON_THE_WAY = auto()
    #: The server does not know the script.
    NO_SCRIPT = auto()
    #: The server has no memory left for this.
    FULL = auto()
    #: There is no stream of outcomes, and XADD makes none.
    NO_STREAM = auto()
    #: The server refuses to apply effects.
    REFUSED = auto()
    #: A time limit strikes while the reply is read.
    STRUCK = auto()


@dataclass
class Server:
    """Applies effects and takes outcomes, as the scripts do. ``log``: what happened, in order."""

    #: What happens to the commands that come, in this order; later ones have no fault.
    faults: Iterator[Fault | None] = field(default_factory=lambda: iter(()))
    stale: frozenset[int] = frozenset()
    wrong: frozenset[int] = frozenset()
    log: list[tuple[Any, ...]] = field(default_factory=list)
    #: Fence -> how often its effects were applied.
    applied: Counter[int] = field(default_factory=Counter)
    #: (fence, kind) of the outcomes, in the order of their entries.
    outcomes: list[tuple[int, str]] = field(default_factory=list)
    commands: int = 0

    def carry_out(self, command: Sequence[Any] | bytes, fault: Fault | None) -> Any:
        """The reply, which may be an error."""
        if fault is Fault.NO_SCRIPT and command[0] == "EVALSHA":
            return NoScriptError("no matching script")
        if fault is Fault.FULL and isinstance(command, bytes):
            return OutOfMemoryError("command not allowed when used memory > 'maxmemory'")
        if fault is Fault.REFUSED and not isinstance(command, bytes) and command[2] == KEYS_OF_APPLY:
            return ResponseError("ERR refused")
        if isinstance(command, bytes) and fault is Fault.NO_STREAM:
            return None
        if isinstance(command, bytes):
            data = command[:-2].rpartition(b"\r\n")[2]
            self.outcomes += [(outcome.fence, outcome.kind.value) for outcome in decode(data)]
            return b"1-1"
        arguments = list(command[3 + command[2] :])
        if command[2] != KEYS_OF_APPLY:
            # The script for a full server, and where there is no stream.
            self.outcomes += [(outcome.fence, outcome.kind.value) for outcome in decode(arguments[1])]
            return b"OK"
        return self._apply(arguments)

    def _apply(self, arguments: list[Any]) -> list[bytes]:
        count = arguments[1]
        rest = arguments[2 + count :]
        codes = []
        for _ in range(count):
            fence, outcome, effects, *rest = rest
            for _ in range(effects):
                rest = rest[3 + rest[2] :]
            if fence in self.stale:
                codes.append(b"STALE")
            elif fence in self.wrong:
                codes.append(b"ERR wrong")
            elif self.applied[fence]:
                codes.append(b"AGAIN")
            else:
                self.applied[fence] += 1
                self.outcomes += [(one.fence, one.kind.value) for one in decode(f"[{outcome}]".encode())]
                codes.append(b"OK")
        return [] if set(codes) == {b"OK"} else codes


def fences_of(command: Sequence[Any] | bytes) -> list[int]:
    """The fences of a write."""
    seen = Server()
    seen.carry_out(command, None)
    return [fence for fence, _ in seen.outcomes]


class Connection:
    """Stands for `bridge.link.connections.Wire`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._waiting: list[tuple[int, Fault | None, Any]] = []

    def ask(self, *command: Any) -> None:
        self._ask(command)

    def ask_packed(self, packed: bytes) -> None:
        self._ask(packed)

    def _ask(self, command: Sequence[Any] | bytes) -> None:
        server = self._server
        fault = next(server.faults, None)
        server.commands += 1
        number = server.commands
        server.log.append(("sent", number, fences_of(command)))
        if fault is Fault.NOT_SENT:
            server.log.append(("read", number))
            raise ConnectionLost("not sent")
        reply = None if fault is Fault.LOST_ON_THE_WAY else server.carry_out(command, fault)
        self._waiting.append((number, fault, reply))

    def renew(self) -> None:
        """Nothing: the server closes no connection that is idle."""

    @property
    def has_answer(self) -> bool:
        return self._waiting[0][1] is not Fault.LATE

    def answer(self) -> Any:
        number, fault, reply = self._waiting.pop(0)
        self._server.log.append(("read", number))
        if fault in (Fault.REPLY_LOST, Fault.LOST_ON_THE_WAY):
            raise ConnectionLost("no reply")
        if fault is Fault.STRUCK:
            raise SoftTimeLimitExceeded
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        self._waiting.clear()

    def execute_command(self, *command: Any) -> Any:
        """As a client of redis-py."""
        self._ask(command)
        return self.answer()
