"""The progress of a run: reads the counts of a subscription in one round trip, and shows them."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from redis import Redis
from redis.exceptions import ResponseError
from rich.console import Console

from bridge.routing.leadership import read_token
from bridge.routing.numbers import rate
from bridge.routing.terminal import Part, ProgressDisplay

if TYPE_CHECKING:
    from bridge.settings.lane import LaneSettings

#: Seconds between two progress lines, when the output is no terminal.
LINE_EVERY_S = 2.0
#: Seconds over which the rate is averaged.
RATE_OVER_S = 3.0


@dataclass(frozen=True)
class Counts:
    """The numbers of a subscription's messages by state."""

    #: Ever added to the stream.
    pushed: int
    done: int
    dead: int
    #: Those that the subscription's filter left out.
    left_out: int
    #: Consumer -> messages dispatched to it whose outcome is not recorded.
    in_flight: dict[str, int]
    #: Tickets that wait out a backoff.
    retrying: int
    leader: str | None

    @property
    def settled(self) -> int:
        """Messages that are done or dead, or left out."""
        return self.done + self.dead + self.left_out

    @property
    def dispatched(self) -> int:
        return sum(self.in_flight.values())

    @property
    def waiting(self) -> int:
        """Messages that are not dispatched yet, whether the master has read them or not."""
        return max(0, self.pushed - self.settled - self.dispatched)


def read_counts(redis: Redis, lanes: Sequence[LaneSettings]) -> Counts:
    """The counts of all lanes of a subscription; zeros for a lane that does not exist yet. Raises redis errors."""
    with redis.pipeline(transaction=False) as pipe:
        for lane in lanes:
            keys = lane.keys
            pipe.hmget(keys.counts, ["done", "dead", "left_out"])
            pipe.execute_command("XINFO STREAM", keys.stream)
            pipe.xpending(keys.stream, keys.group)
            pipe.zcard(keys.retries)
            pipe.get(keys.leader)
        replies = pipe.execute(raise_on_error=False)
    found = [_counts_of(lane, replies[5 * i : 5 * i + 5]) for i, lane in enumerate(lanes)]
    in_flight: Counter[str] = Counter()
    for one in found:
        in_flight.update(one.in_flight)
    return Counts(
        pushed=sum(one.pushed for one in found),
        done=sum(one.done for one in found),
        dead=sum(one.dead for one in found),
        left_out=sum(one.left_out for one in found),
        in_flight=dict(in_flight),
        retrying=sum(one.retrying for one in found),
        leader=", ".join(dict.fromkeys(one.leader for one in found if one.leader)) or None,
    )


def _counts_of(lane: LaneSettings, replies: Sequence[Any]) -> Counts:
    counts, stream, pending, retrying, leader = replies
    for reply in (counts, retrying, leader):
        if isinstance(reply, Exception):
            raise reply
    for reply in (stream, pending):
        # No such stream, or no such group: not yet.
        if isinstance(reply, Exception) and not isinstance(reply, ResponseError):
            raise reply
    consumers = pending["consumers"] if isinstance(pending, dict) else []
    return Counts(
        pushed=_added(stream),
        done=int(counts[0] or 0),
        dead=int(counts[1] or 0),
        left_out=int(counts[2] or 0),
        in_flight={_text(c["name"]): c["pending"] for c in consumers if not _is_masters(c, lane)},
        retrying=int(retrying),
        leader=read_token(leader).holder if leader else None,
    )


def _is_masters(consumer: Any, lane: LaneSettings) -> bool:
    """Whether the name in the group is that of the master, or of messages that are delayed or parked."""
    name = _text(consumer["name"])
    return name == lane.master or name.startswith(f"{lane.master}/")


def _added(stream: Any) -> int:
    if not isinstance(stream, dict):
        return 0
    # Servers before 7.0 do not count the entries ever added. Their length is too small, since done entries are removed;
    # the demo starts a newer server.
    return int(stream["entries-added"] if "entries-added" in stream else stream["length"])


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


class ProgressView:
    """Shows a run's counts: bars on a terminal, else a line at most every `LINE_EVERY_S`."""

    def __init__(self, console: Console, total: int, urgent: int = 0) -> None:
        """``total``: the messages of each subscription. ``urgent``: those that the HTTP consumer is to handle."""
        self._display = ProgressDisplay(console, every_s=LINE_EVERY_S, keep=True)
        self._total = total
        self._urgent = urgent
        self._history: deque[tuple[float, int]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.close()

    def show(self, counts: Counts, trail: Counts | None = None, notices: Counts | None = None) -> None:
        """Shows the counts. ``trail`` and ``notices``: of the audit trail and the HTTP consumer, where they exist."""
        moving = f"waiting {counts.waiting:,}, in flight {counts.dispatched:,}, {rate(self._rate(counts.settled))}"
        pushed = Part("pushed", f"{counts.pushed:,}", counts.pushed, self._total)
        done = Part("done", f"{counts.settled:,}; {moving}", counts.settled, self._total)
        line = f"pushed {counts.pushed:,}, done {counts.settled:,} of {self._total:,}, {moving}"
        parts = [pushed, done]
        if trail is not None:
            line += f", audit trail {trail.settled:,}"
            parts.append(Part("audit trail", f"{trail.settled:,}", trail.settled, self._total))
        if notices is not None:
            line += f", by Node {notices.done:,}"
            parts.append(Part("by Node", f"{notices.done:,}", notices.done, self._urgent))
        self._display.show(line, parts)

    def _rate(self, settled: int) -> float:
        now = time.monotonic()
        history = self._history
        history.append((now, settled))
        while len(history) > 2 and now - history[0][0] > RATE_OVER_S:
            history.popleft()
        (then, before) = history[0]
        return (settled - before) / (now - then) if now > then else 0.0
