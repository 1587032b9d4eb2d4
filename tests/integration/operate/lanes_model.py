"""What a test of changing lanes knows of subscriptions, messages and consumers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bridge.routing.ids import id_key
from bridge.routing.partitions import stream_id
from tests.integration.http.http_consumers import HttpConsumerUnderTest

STREAM = "orders"
TASK = "shop.update"
#: Subscription -> its options. Each gets every message, but for its filter.
SUBSCRIPTIONS: dict[str, dict[str, Any]] = {
    "billing": {"task": TASK},
    "search": {"task": TASK, "filter": {"kind": ["a"]}},
    "mail": {"task": TASK},
}
MAX_ATTEMPTS = 3
#: A stream, whose lanes a subscription has one of, and an id in it.
Entry = tuple[str, str]


@dataclass
class Message:
    """A message, as it was pushed."""

    id: str
    stream: str
    ticket: str
    kind: str
    #: The place of its stream among those that may have messages of the ticket: the version, then the generation.
    rank: tuple[int, int]
    mode: str | None = None
    due_ms: int = 0

    @property
    def entry(self) -> Entry:
        return self.stream, stream_id(self.id)


@dataclass
class Copy:
    """A message in one subscription."""

    message: Message
    #: "undone", "done", "dead", "cancelled", "dropped" or "left out".
    state: str
    due_ms: int
    #: The step of its last order or its push: what began before may go on.
    changed_at: int
    replayed: bool = False
    failures: int = 0

    @property
    def place(self) -> tuple[tuple[int, int], int, int]:
        """Its place in the order of its ticket."""
        ms, sequence = id_key(stream_id(self.message.id))
        if self.message.mode == "overtake" and self.due_ms and not self.replayed:
            return self.message.rank, max(self.due_ms, ms), sequence
        return self.message.rank, ms, sequence

    def is_delayed(self, now_ms: int) -> bool:
        return self.state == "undone" and self.message.mode is not None and not self.replayed and self.due_ms > now_ms

    def is_overtaken(self, now_ms: int) -> bool:
        return self.message.mode == "overtake" and self.is_delayed(now_ms)

    @property
    def is_needed(self) -> bool:
        """Whether its subscription keeps the entry in the stream."""
        return self.state in ("undone", "dead")


@dataclass
class Flight:
    """A message that was dispatched. ``since``: the step in which it was first seen so."""

    incarnation: str
    since: int


@dataclass
class Held:
    """A message that a consumer was given."""

    consumer: Consumer
    document: dict[str, Any]


@dataclass
class Consumer:
    """An HTTP consumer. ``streams``: of the lanes that it registered in."""

    of: HttpConsumerUnderTest
    subscription: str
    streams: frozenset[str]

    @property
    def name(self) -> str:
        return self.of.name


@dataclass
class Subscription:
    """What the model knows of a subscription."""

    name: str
    #: The streams on which it has a group.
    streams: set[str] = field(default_factory=set)
    copies: dict[str, Copy] = field(default_factory=dict)
    consumers: dict[str, Consumer] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    flying: dict[str, Flight] = field(default_factory=dict)
    #: Counter -> stream -> what its lane has counted.
    deaths: dict[str, int] = field(default_factory=dict)
    cancelled: dict[str, int] = field(default_factory=dict)
    #: Whether its lanes may have counted messages that were left out before the model saw the lanes.
    counts_more: bool = False

    def takes(self, message: Message) -> bool:
        kinds = SUBSCRIPTIONS[self.name].get("filter", {}).get("kind")
        return kinds is None or message.kind in kinds

    def of_state(self, *states: str, streams: Sequence[str] | None = None) -> list[Copy]:
        return [
            one
            for one in self.copies.values()
            if one.state in states and (streams is None or one.message.stream in streams)
        ]

    def forget(self) -> None:
        """It was removed."""
        self.streams.clear()
        for one in (self.copies, self.held, self.flying, self.deaths, self.cancelled):
            one.clear()
        self.counts_more = False


@dataclass(frozen=True)
class Deployed:
    """What the app names that runs. ``versions``: of the stream, oldest first."""

    subscriptions: tuple[str, ...]
    versions: tuple[str, ...] = (STREAM,)

    @property
    def newest(self) -> str:
        return self.versions[-1]
