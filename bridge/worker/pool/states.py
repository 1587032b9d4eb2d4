"""Reads the states of tickets for a pool process, before their tasks begin (`bridge.app.state`).

A bundle reads the states of all its tickets together, before its first message. A message that follows another one of
its ticket in the bundle gets the state that the first one saved, from memory: while the lease holds, no other worker
has the ticket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from bridge.app.state_home import home_in
from bridge.routing.errors import PayloadError, StaleFence
from bridge.routing.keys import LaneKeys

if TYPE_CHECKING:
    from bridge.consumer.writer import OutcomeWriter
    from bridge.settings.lane import LaneSettings

#: States that are read with one round trip.
TOGETHER = 64
#: Bytes of states after which a bundle reads no more of them in advance.
BUNDLE_BYTES = 4 * 1024 * 1024

State = Mapping[bytes, bytes] | PayloadError


class LeaseOver(Exception):
    """The lease ended before the server answered."""


class States:
    """The states of the tickets of one lane, as one pool process reads them."""

    def __init__(self, lane: LaneSettings, versions: Sequence[str], writer: OutcomeWriter) -> None:
        """``versions``: the app's stream, and then its older versions, oldest first."""
        self._group = lane.group
        self._versions = versions
        self._writer = writer
        self._keys: LaneKeys | None = None

    def key(self, incarnation: str, ticket: str) -> str:
        """The key of the ticket's state. Raises `LeaseOver`."""
        return self._home(incarnation).state(ticket)

    def home(self, incarnation: str) -> str:
        """The stream under whose name the states are kept. Raises `StaleFence` when the lease ended first."""
        try:
            return self._home(incarnation).stream
        except LeaseOver:
            raise StaleFence("the lease ended before the server answered") from None

    def _home(self, incarnation: str) -> LaneKeys:
        keys = self._keys
        if keys is None:
            homes = [("GET", LaneKeys(stream, self._group).state_home) for stream in self._versions]
            found = [reply if isinstance(reply, bytes) else None for reply in self._ask(incarnation, homes)]
            stream, is_new = home_in(self._versions, found)
            if is_new:
                own = LaneKeys(self._versions[0], self._group).state_home
                # Another worker may name another stream at the same moment. The first one counts.
                _, reply = self._ask(incarnation, [("SET", own, stream, "NX"), ("GET", own)])
                stream = reply.decode() if isinstance(reply, bytes) else stream
            keys = self._keys = LaneKeys(stream, self._group)
        return keys

    def read(self, incarnation: str, tickets: Iterable[str]) -> dict[str, State]:
        """Ticket -> its state. Large states: only of the first tickets; `read` the others later. Raises `LeaseOver`."""
        names = list(tickets)
        found: dict[str, State] = {}
        size = 0
        for at in range(0, len(names), TOGETHER):
            some = names[at : at + TOGETHER]
            replies = self._ask(incarnation, [("HGETALL", self.key(incarnation, ticket)) for ticket in some])
            for ticket, reply in zip(some, replies, strict=True):
                state = found[ticket] = _state_of(ticket, reply)
                if not isinstance(state, PayloadError):
                    size += sum(len(name) + len(value) for name, value in state.items())
            if size > BUNDLE_BYTES:
                break
        return found

    def _ask(self, incarnation: str, commands: Sequence[Sequence[Any]]) -> list[Any]:
        replies = self._writer.ask(incarnation, commands)
        if replies is None:
            raise LeaseOver
        return replies


def _state_of(ticket: str, reply: Any) -> State:
    if isinstance(reply, ResponseError):
        return PayloadError(f"the state of ticket {ticket} cannot be read: {reply}")
    if isinstance(reply, dict):
        return reply
    return dict(zip(reply[::2], reply[1::2], strict=True))
