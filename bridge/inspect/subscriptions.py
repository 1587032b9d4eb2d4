"""Reads all subscriptions of an app at once, for `bridge status` and `bridge subscription`: one row for each.

It makes three round trips, however many lanes there are, one more where the server does not know how much a group has
not read (`bridge.inspect.stream_status`), and some for each lane that has delayed messages. The numbers of a
subscription are the sums over its lanes. They are read one after the other, so they need not belong to one moment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError

from bridge.inspect.holding import Holding, read_holding
from bridge.inspect.oldest import oldest_ms
from bridge.inspect.roster import Pending
from bridge.inspect.stream_status import StreamStatus, read_streams
from bridge.inspect.subscription_status import SubscriptionStatus
from bridge.inspect.undeclared import undeclared_lanes
from bridge.routing.counters import ANY, read_counters
from bridge.routing.ids import id_key, younger_than

if TYPE_CHECKING:
    from redis import Redis

    from bridge.settings.lane import LaneSettings

#: Counters that are shown.
COUNTERS = ("done", "left_out", "skipped", "dead")


def read_subscriptions(
    redis: Redis, declared: Mapping[str, Sequence[LaneSettings]], *, others: bool = False
) -> list[SubscriptionStatus]:
    """The subscriptions ``declared``, in their order; with ``others`` then those that only the server knows.

    Raises redis errors.
    """
    now_ms, streams = read_streams(redis, {lane.stream for lanes in declared.values() for lane in lanes})
    wanted = dict(declared)
    if others:
        wanted |= undeclared_lanes(streams, declared)
    all_lanes = [lane for lanes in wanted.values() for lane in lanes]
    replies = iter(_read_lanes(redis, streams, all_lanes, declared.keys()))
    return [
        _sum(
            name, [_Lane(redis, lane, streams[lane.stream], next(replies), now_ms) for lane in lanes], name in declared
        )
        for name, lanes in wanted.items()
    ]


#: The replies for each lane that `_read_lanes` asks for first, where this user may not read the lane's keys.
_NOT_PERMITTED: tuple[Any, ...] = (None, (None, None), 0, 0, 0, 0, 0, 0, 0, (None,) * len(COUNTERS))
_REPLIES = len(_NOT_PERMITTED)


def _read_lanes(
    redis: Redis, streams: Mapping[str, StreamStatus], lanes: Sequence[LaneSettings], declared: Collection[str]
) -> list[list[Any]]:
    """The replies for each lane: `_REPLIES`, then the pending summary and the next unread entry, or None.

    A user of the app need not have permissions for the keys of groups that the app has not ``declared``. Then the first
    reply is None.
    """
    with redis.pipeline(transaction=False) as pipe:
        for lane in lanes:
            pipe.exists(lane.keys.leader)
            pipe.hmget(lane.keys.about, "app", "format")
            pipe.hlen(lane.keys.consumers)
            pipe.zcard(lane.keys.retries)
            pipe.zcard(lane.keys.delayed)
            pipe.zcard(lane.keys.holding)
            pipe.zcard(lane.keys.late)
            pipe.xlen(lane.keys.dead)
            pipe.hlen(lane.keys.tickets)
            pipe.hmget(lane.keys.counts, *COUNTERS)
        replies = pipe.execute(raise_on_error=False)
    found = []
    for i, lane in enumerate(lanes):
        row = replies[i * _REPLIES : (i + 1) * _REPLIES]
        error = next((reply for reply in row if isinstance(reply, Exception)), None)
        if isinstance(error, NoPermissionError) and lane.group not in declared:
            row = list(_NOT_PERMITTED)
        elif error is not None:
            raise error
        found.append([*row, None, None])
    # An idle lane has none of them.
    asked: list[tuple[list[Any], int]] = []
    with redis.pipeline(transaction=False) as pipe:
        for lane, row in zip(lanes, found, strict=True):
            stream = streams[lane.stream]
            name = lane.group.encode()
            group = stream.groups.get(name)
            if group is not None and group.pending:
                pipe.execute_command("XPENDING", lane.stream, lane.group)
                asked.append((row, _REPLIES))
            if stream.length and stream.unread(name)[0]:
                start = ("-", "+") if group is None else younger_than(group.read_to)
                pipe.execute_command("XRANGE", lane.stream, *start, "COUNT", 1)
                asked.append((row, _REPLIES + 1))
        for (row, at), reply in zip(asked, pipe.execute() if asked else (), strict=True):
            row[at] = reply
    return found


class _Lane:
    """The numbers of one lane."""

    def __init__(self, redis: Redis, lane: LaneSettings, stream: StreamStatus, replies: list[Any], now_ms: int) -> None:
        led, (app, format_), consumers, retries, *rest = replies
        delayed, holding, late, dead, recorded, counts, pending_raw, next_unread = rest
        name = lane.group.encode()
        self.stream = lane.stream
        self.group = stream.groups.get(name)
        self.permitted = led is not None
        self.led, self.consumers, self.dead = bool(led), consumers, dead
        self.app = None if app is None else app.decode(errors="replace")
        self.format = int(format_) if format_ is not None and format_.isdigit() else None
        there = zip(COUNTERS, counts, strict=True)
        counted = read_counters({one.encode(): value for one, value in there if value is not None})
        # `bridge status` of the lane names one that holds no number.
        self.counters = {one: int(number) for one in COUNTERS if (number := counted.get(one, 0)) != ANY}
        self.unread, self.exact = stream.unread(name)
        self.pending = Pending.of(pending_raw, lane, (), late)
        held = read_holding(redis, lane, self.pending, now_ms) if holding else Holding()
        self.retrying = max(0, retries - held.tickets)
        self.waiting = max(0, self.pending.of_master - self.retrying - held.messages)
        self.holding = held.messages
        self.delayed = delayed + held.messages
        # Without permission for its keys, its delayed messages cannot be told from the others.
        oldest = oldest_ms(redis, lane, self.pending, holding, now_ms) if self.permitted else self.pending.first_ms
        oldest_unread = id_key(next_unread[0][0].decode())[0] if next_unread else None
        if oldest is None:
            oldest = oldest_unread
        self.oldest_ms = None if oldest is None else max(0, now_ms - oldest)
        self.held_bytes = stream.bytes_of(stream.undone(name))
        self.alone = stream.held_alone(name)
        self.alone_bytes = stream.bytes_of(self.alone)
        self.dead_bytes = stream.bytes_of(dead)
        undone = stream.undone(name)
        # A parked ticket without messages has a record.
        self.unfinished = undone > 0 or recorded > 0 or dead >= lane.dead_max or not led
        unread_s = 0.0 if oldest_unread is None else (now_ms - oldest_unread) / 1000
        self.stopped = lane.max_lag.stops(self.unread, stream.bytes_of(self.unread), unread_s)


def _sum(name: str, lanes: Sequence[_Lane], declared: bool) -> SubscriptionStatus:
    def known(values: list[int | None]) -> int | None:
        there = [value for value in values if value is not None]
        return sum(there) if len(there) == len(values) else None

    ages = [lane.oldest_ms for lane in lanes if lane.oldest_ms is not None]
    return SubscriptionStatus(
        name=name,
        streams=tuple(lane.stream for lane in lanes),
        declared=declared,
        exists=all(lane.group is not None for lane in lanes),
        app=next((lane.app for lane in lanes if lane.app is not None), None),
        format=next((lane.format for lane in lanes if lane.format is not None), None),
        led=sum(lane.led for lane in lanes),
        lanes=len(lanes),
        consumers=max(lane.consumers for lane in lanes),
        unread=sum(lane.unread for lane in lanes),
        unread_exact=all(lane.exact for lane in lanes),
        waiting=sum(lane.waiting for lane in lanes),
        in_flight=sum(sum(lane.pending.of_consumers.values()) for lane in lanes),
        awaiting_retry=sum(lane.retrying for lane in lanes),
        delayed=sum(lane.delayed for lane in lanes),
        holding=sum(lane.holding for lane in lanes),
        parked=sum(sum(lane.pending.of_parked.values()) for lane in lanes),
        dead=sum(lane.dead for lane in lanes),
        counters={one: sum(lane.counters.get(one, 0) for lane in lanes) for one in COUNTERS},
        oldest_undone_ms=max(ages, default=None),
        held_bytes=known([lane.held_bytes for lane in lanes]),
        held_alone=sum(lane.alone for lane in lanes),
        held_alone_bytes=known([lane.alone_bytes for lane in lanes]),
        dead_bytes=known([lane.dead_bytes for lane in lanes]),
        stopped=sum(lane.stopped for lane in lanes),
        permitted=all(lane.permitted for lane in lanes),
        unfinished={lane.stream: lane.oldest_ms or 0 for lane in lanes if lane.unfinished},
    )
