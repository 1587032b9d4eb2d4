"""The state of one subscription, as `bridge status` and `bridge subscription` show it, and what needs attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from bridge.inspect.advice import NOT_OF_AN_APP
from bridge.inspect.reasons import BEYOND_LAG
from bridge.inspect.stream_status import holds_much
from bridge.protocol.agreement import LANE_FORMAT
from bridge.routing.numbers import count, data_size
from bridge.routing.text import one_line

if TYPE_CHECKING:
    from bridge.inspect.advice import Advice


@dataclass(frozen=True)
class SubscriptionStatus:
    """The state of one subscription, over all its lanes. Counts are of messages."""

    name: str
    streams: tuple[str, ...]
    #: The app names it.
    declared: bool
    #: It has a consumer group on each of its streams.
    exists: bool
    #: The app that it belongs to, and the format of its data (`bridge.protocol.agreement`). None: not recorded yet.
    app: str | None
    format: int | None
    #: Lanes that a master leads, of how many.
    led: int
    lanes: int
    #: Consumers that are registered.
    consumers: int
    unread: int
    #: Whether the number is exact; else there may be fewer.
    unread_exact: bool
    waiting: int
    in_flight: int
    awaiting_retry: int
    #: Messages that are not due; of parked tickets only those that others overtake.
    delayed: int
    #: Those of ``delayed`` for which their tickets wait, or will wait.
    holding: int
    #: Messages that wait for the release of parked tickets.
    parked: int
    dead: int
    counters: Mapping[str, int]
    #: Age of the oldest message that is neither done nor delayed; None: there is none.
    oldest_undone_ms: int | None
    #: Bytes of the messages that it is not done with, estimated. None: not known.
    held_bytes: int | None
    #: Messages, and their bytes, that all other groups of the stream are done with.
    held_alone: int
    held_alone_bytes: int | None
    #: Bytes of the messages with a dead letter: these stay in the stream. Estimated.
    dead_bytes: int | None
    #: Lanes that read nothing new, since they are beyond ``bridge_max_lag``.
    stopped: int
    #: Whether this user may read its keys. If not, ``led``, ``consumers``, ``awaiting_retry``, ``delayed``, ``dead``
    #: and ``counters`` are 0.
    permitted: bool = True
    #: Stream -> age in ms of its oldest undone message. Of its lanes that have one, or a ticket with a record, or whose
    #: dead letters are full, or that nobody leads.
    unfinished: Mapping[str, int] = field(default_factory=dict)

    @property
    def undone(self) -> int:
        """Messages that it is not done with, without those that others overtake."""
        return self.unread + self.waiting + self.in_flight + self.awaiting_retry + self.parked + self.holding

    def document(self, commands: Advice = NOT_OF_AN_APP) -> dict[str, Any]:
        """All of it, for JSON."""
        return {**asdict(self), "undone": self.undone, "problems": self.problems(commands)}

    def problems(self, commands: Advice = NOT_OF_AN_APP) -> list[str]:
        """What needs attention: one sentence each. `bridge.inspect.lane_problems` has those of single lanes."""
        name = one_line(self.name)
        found = []
        if self.format is not None and self.format > LANE_FORMAT:
            found.append(f"{name} is kept by a newer Ticket Bridge, in format {self.format}: upgrade this one")
        if not self.exists:
            add = commands.of_app("subscription", "add", about=self.name)
            found.append(f"{name} has no consumer group yet: the first master makes it, or {add}")
        elif self.led < self.lanes and self.declared:
            what = "no master leads it" if self.lanes == 1 else f"no master leads {self.lanes - self.led} of its lanes"
            found.append(f"{name}: {what}; start one with {commands.master}")
        if self.stopped:
            found.append(f"{name} {BEYOND_LAG}")
        if holds_much(self.held_alone, self.held_alone_bytes):
            held = "" if self.held_alone_bytes is None else f", about {data_size(self.held_alone_bytes)}"
            found.append(
                f"{name} alone holds {count(self.held_alone, 'message')} of {', '.join(self.streams)}{held}: all "
                "others are done with them"
            )
        if self.declared and holds_much(self.dead, self.dead_bytes):
            held = "" if self.dead_bytes is None else f", about {data_size(self.dead_bytes)}"
            found.append(
                f"{name} has {count(self.dead, 'dead letter')}: their messages stay in {', '.join(self.streams)}{held}"
                f"; replay or drop them ({commands.of_app('dead', 'list', '-s', self.name)})"
            )
        return found
