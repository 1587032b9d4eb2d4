"""The pending messages of a lane by name in the group, as XPENDING and XINFO CONSUMERS have them. Never writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bridge.routing.groups import name_in_group, pending_summary, shown_name, unless_missing
from bridge.routing.ids import id_key

if TYPE_CHECKING:
    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.settings.lane import LaneSettings


@dataclass(frozen=True)
class PendingConsumer:
    """One name in the group, as XINFO CONSUMERS has it. The names of parked tickets are one row."""

    name: str
    pending: int
    #: Since it last read or claimed, or a message was claimed for it; of several names the least.
    idle_ms: int
    #: What the name means: "master", "consumer", "delayed", "parked tickets" or "unknown".
    kind: str
    #: How many names the row is about.
    names: int = 1


@dataclass(frozen=True)
class PendingSummary:
    """The pending messages of a lane, or of several. ``oldest_ms``: the age of the oldest by its id; None: none."""

    total: int
    oldest_id: str | None
    oldest_ms: int | None
    consumers: tuple[PendingConsumer, ...]

    def document(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)


def summarise(redis: Redis, lanes: Sequence[AppLane]) -> PendingSummary:
    """The pending messages of ``lanes`` by name in the group. Raises redis errors."""
    rows: dict[tuple[str, str], PendingConsumer] = {}
    total, oldest, oldest_ms = 0, None, None
    for lane in lanes:
        settings = lane.settings
        keys = settings.keys
        with redis.pipeline(transaction=True) as pipe:
            pipe.time()
            pipe.hkeys(keys.consumers)
            pipe.execute_command("XPENDING", keys.stream, keys.group)
            pipe.execute_command("XINFO", "CONSUMERS", keys.stream, keys.group)
            time_, registered, summary, named = pipe.execute(raise_on_error=False)
        for reply in (time_, registered):
            if isinstance(reply, Exception):
                raise reply
        found = pending_summary(unless_missing(summary))
        total += found.total
        if found.oldest is not None:
            age_ms = max(0, time_[0] * 1000 + time_[1] // 1000 - id_key(found.oldest)[0])
            if oldest_ms is None or age_ms > oldest_ms:
                oldest, oldest_ms = found.oldest + lane.id_suffix, age_ms
        known = {name.decode(errors="surrogateescape") for name in registered}
        for one in _consumers(unless_missing(named) or (), settings, known):
            before = rows.get((one.kind, one.name))
            rows[one.kind, one.name] = one if before is None else _sum(before, one)
    order = ("master", "consumer", "delayed", "parked tickets", "unknown")
    return PendingSummary(
        total, oldest, oldest_ms, tuple(sorted(rows.values(), key=lambda one: (order.index(one.kind), one.name)))
    )


def pending_in(redis: Redis, lane: LaneSettings) -> int:
    """How many messages are pending in a lane. Raises redis errors."""
    with redis.pipeline(transaction=False) as pipe:
        pipe.execute_command("XPENDING", lane.stream, lane.group)
        return pending_summary(unless_missing(pipe.execute(raise_on_error=False)[0])).total


def _consumers(reply: Any, lane: LaneSettings, registered: set[str]) -> Iterator[PendingConsumer]:
    shelves = lane.keys.parked_consumer(lane.master, "")
    for flat in reply:
        pairs = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
        facts = {key.encode() if isinstance(key, str) else key: value for key, value in pairs.items()}
        name = name_in_group(facts[b"name"])
        kind = "consumer" if name in registered else "unknown"
        if name == lane.master:
            kind = "master"
        elif name == lane.keys.delayed_consumer(lane.master) and name not in registered:
            kind = "delayed"
        elif name.startswith(shelves) and name not in registered:
            name, kind = f"{shelves}*", "parked tickets"
        yield PendingConsumer(shown_name(name), int(facts[b"pending"]), int(facts[b"idle"]), kind)


def _sum(one: PendingConsumer, other: PendingConsumer) -> PendingConsumer:
    """The row of two names of parked tickets, or of one name in two partitions."""
    names = one.names + other.names if one.kind == "parked tickets" else 1
    idle_ms = min(one.idle_ms, other.idle_ms)
    return PendingConsumer(one.name, one.pending + other.pending, idle_ms, one.kind, names)
