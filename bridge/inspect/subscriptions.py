"""Reads all subscriptions of an app at once, for `bridge status` and `bridge subscription`: one row for each.

It makes three round trips, however many lanes there are, and one more where the server does not know how much a group
has not read. The numbers of a subscription are the sums over its lanes. They are read one after the other, so they need
not belong to one moment.

The server does not know how much a group has not read while the group has read nothing since it was made in the middle
of the stream. Redis 6.2 never knows it. Then the entries after the group's position are counted, up to `COUNTED_BYTES`
of them. Beyond that the number is an upper bound, and commands say "at most".

The memory that a subscription holds is estimated: the messages that it is not done with, times the mean bytes of an
entry (MEMORY USAGE of the stream by its length). A message is stored once, and stays until the slowest subscription is
done with it. So the slowest one alone holds the messages that it has undone beyond those of the second slowest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import nlargest
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError

from bridge.inspect.advice import NOT_OF_AN_APP
from bridge.inspect.roster import Pending
from bridge.protocol.agreement import LANE_FORMAT
from bridge.routing.groups import Group, groups_in
from bridge.routing.ids import id_key, younger_than
from bridge.routing.numbers import count, data_size
from bridge.routing.text import one_line
from bridge.settings.subscriptions import with_group

if TYPE_CHECKING:
    from redis import Redis

    from bridge.inspect.advice import Advice
    from bridge.settings.lane import LaneSettings

#: Entries of a stream that the server looks at to estimate its bytes.
SAMPLES = 20
#: Bytes of the entries that are read to count them, of all groups together, and most entries of one group.
COUNTED_BYTES = 8 * 1024 * 1024
COUNTED = 10_000
#: A subscription that alone holds so many messages, or bytes, is named as a problem.
HOLDS_MESSAGES = 1000
HOLDS_BYTES = 1024 * 1024
#: Counters that are shown.
COUNTERS = ("done", "left_out", "skipped", "dead")


@dataclass(frozen=True)
class StreamStatus:
    """One stream."""

    length: int
    groups: Mapping[bytes, Group]
    first_id: str
    last_id: str
    #: Its bytes, estimated by the server; None: this user may not ask.
    used: int | None
    #: Group -> (entries that were counted after its position, whether these are all).
    counted: Mapping[bytes, tuple[int, bool]] = field(default_factory=dict)

    def known_unread(self, group: Group) -> int | None:
        """Messages that the group has not read. None: they have to be counted."""
        if group.lag is not None:
            return group.lag
        if id_key(group.read_to) >= id_key(self.last_id):
            return 0
        return self.length if id_key(group.read_to) < id_key(self.first_id) else None

    def unread(self, name: bytes) -> tuple[int, bool]:
        """(messages that the group has not read, whether the number is exact; else there may be fewer)."""
        group = self.groups.get(name)
        if group is None:
            # The first master makes it, from the stream's beginning.
            return self.length, True
        known = self.known_unread(group)
        if known is not None:
            return known, True
        found, all_ = self.counted.get(name, (0, False))
        return (found, True) if all_ else (max(found, self.length - group.pending), False)

    def undone(self, name: bytes, *, at_least: bool = False) -> int:
        """Messages that this group is not done with. Where that is not known: most that it can be, or with ``at_least``
        fewest.
        """
        unread, exact = self.unread(name)
        if at_least and not exact:
            unread = self.counted.get(name, (0, False))[0]
        return unread + (self.groups[name].pending if name in self.groups else 0)

    @cached_property
    def _slowest(self) -> list[tuple[int, bytes]]:
        """The two groups with the most undone messages: (how many, name)."""
        return nlargest(2, ((self.undone(name), name) for name in self.groups))

    def held_alone(self, name: bytes) -> int:
        """Messages that this group is not done with, and all others are."""
        if len(self._slowest) < 2 or self._slowest[0][1] != name:
            return 0
        return max(0, self.undone(name, at_least=True) - self._slowest[1][0])

    def bytes_of(self, messages: int) -> int | None:
        """The bytes of so many of its messages, estimated."""
        return None if self.used is None else round(self.used * min(messages, self.length) / max(1, self.length))


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
    #: Messages that wait for the release of parked tickets.
    parked: int
    dead: int
    counters: Mapping[str, int]
    #: Age of the oldest message that is not done; None: there is none.
    oldest_undone_ms: int | None
    #: Bytes of the messages that it is not done with, estimated. None: not known.
    held_bytes: int | None
    #: Messages, and their bytes, that all other groups of the stream are done with.
    held_alone: int
    held_alone_bytes: int | None
    #: Lanes that read nothing new, since they are beyond ``bridge_max_lag``.
    stopped: int
    #: Whether this user may read its keys. If not, ``led``, ``consumers``, ``awaiting_retry``, ``dead`` and
    #: ``counters`` are 0.
    permitted: bool = True
    #: Stream -> age in ms of its oldest undone message. Of its lanes that have one, whose dead letters are full, or
    #: that nobody leads.
    unfinished: Mapping[str, int] = field(default_factory=dict)

    @property
    def undone(self) -> int:
        """Messages that it is not done with."""
        return self.unread + self.waiting + self.in_flight + self.awaiting_retry + self.parked

    def problems(self, commands: Advice = NOT_OF_AN_APP) -> list[str]:
        """What needs attention: one sentence each. `bridge.inspect.lane_problems` has those of single lanes."""
        name = one_line(self.name)
        found = []
        if self.format is not None and self.format > LANE_FORMAT:
            found.append(f"{name} is kept by a newer Ticket Bridge, in format {self.format}: upgrade this one")
        if not self.exists:
            add = commands.of_app("subscription", "add", self.name)
            found.append(f"{name} has no consumer group yet: the first master makes it, or {add}")
        elif self.led < self.lanes and self.declared:
            what = "no master leads it" if self.lanes == 1 else f"no master leads {self.lanes - self.led} of its lanes"
            found.append(f"{name}: {what}; start one with {commands.master}")
        if self.stopped:
            found.append(
                f"{name} reads nothing new, since it is beyond bridge_max_lag: start workers for it, or raise the "
                "limit and start its masters again"
            )
        if self.held_alone >= HOLDS_MESSAGES or (self.held_alone_bytes or 0) >= HOLDS_BYTES:
            held = "" if self.held_alone_bytes is None else f", about {data_size(self.held_alone_bytes)}"
            found.append(
                f"{name} alone holds {count(self.held_alone, 'message')} of {', '.join(self.streams)}{held}: all "
                "others are done with them"
            )
        return found


def read_subscriptions(
    redis: Redis, declared: Mapping[str, Sequence[LaneSettings]], *, others: bool = False
) -> list[SubscriptionStatus]:
    """The subscriptions ``declared``, in their order; with ``others`` then those that only the server knows.

    Raises redis errors.
    """
    now_ms, streams = _read_streams(redis, {lane.stream for lanes in declared.values() for lane in lanes})
    wanted = dict(declared)
    if others:
        wanted |= _undeclared(streams, declared)
    all_lanes = [lane for lanes in wanted.values() for lane in lanes]
    replies = iter(_read_lanes(redis, streams, all_lanes, declared.keys()))
    return [
        _sum(name, [_Lane(lane, streams[lane.stream], next(replies), now_ms) for lane in lanes], name in declared)
        for name, lanes in wanted.items()
    ]


def undeclared_holders(
    redis: Redis, declared: Mapping[str, Sequence[LaneSettings]], commands: Advice = NOT_OF_AN_APP
) -> list[str]:
    """A sentence for each consumer group that the app does not name and that holds messages which all subscriptions of
    the app are done with. It needs no permission for keys of such a group.

    Raises redis errors.
    """
    found = []
    ours = {name.encode() for name in declared}
    names = sorted({lane.stream for lanes in declared.values() for lane in lanes})
    with redis.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.execute_command("XINFO", "GROUPS", name)
        replies = pipe.execute(raise_on_error=False)
    # Most streams have no others.
    with_others = {name for name, reply in zip(names, replies, strict=True) if groups_in(reply).keys() - ours}
    streams = _read_streams(redis, with_others)[1] if with_others else {}
    for stream, status in sorted(streams.items()):
        most = max((status.undone(name) for name in ours), default=0)
        for raw in sorted(status.groups.keys() - ours):
            messages = status.undone(raw, at_least=True) - most
            used = status.bytes_of(messages)
            if messages < HOLDS_MESSAGES and (messages <= 0 or (used or 0) < HOLDS_BYTES):
                continue
            size = "" if used is None else f", about {data_size(used)}"
            shown = one_line(raw.decode(errors="backslashreplace"))
            found.append(
                f"{shown}, a subscription that this app does not name, holds {count(messages, 'message')} of "
                f"{one_line(stream)}{size}: all subscriptions of this app are done with them; if no other app needs "
                f"it, {commands.of_app('subscription', 'remove', shown)}"
            )
    return found


def _read_streams(redis: Redis, names: set[str]) -> tuple[int, dict[str, StreamStatus]]:
    """(the server's time in Unix ms, name -> stream)."""
    with redis.pipeline(transaction=False) as pipe:
        pipe.time()
        for name in sorted(names):
            pipe.xlen(name)
            pipe.execute_command("XINFO", "GROUPS", name)
            pipe.execute_command("XRANGE", name, "-", "+", "COUNT", 1)
            pipe.execute_command("XREVRANGE", name, "+", "-", "COUNT", 1)
            pipe.execute_command("MEMORY", "USAGE", name, "SAMPLES", SAMPLES)
        now, *replies = pipe.execute(raise_on_error=False)
    if isinstance(now, Exception):
        raise now
    found = {}
    for i, name in enumerate(sorted(names)):
        length, groups, first, last, used = replies[5 * i : 5 * i + 5]
        for reply in (length, first, last, *([] if isinstance(used, NoPermissionError) else [used])):
            if isinstance(reply, Exception):
                raise reply
        found[name] = StreamStatus(
            length=length,
            groups=groups_in(groups),
            first_id=first[0][0].decode() if first else "0-0",
            last_id=last[0][0].decode() if last else "0-0",
            used=used if isinstance(used, int) else None,
        )
    return now[0] * 1000 + now[1] // 1000, _counted(redis, found)


def _counted(redis: Redis, streams: dict[str, StreamStatus]) -> dict[str, StreamStatus]:
    """The same streams. The unread entries of a group are counted where the server does not know how many there are."""
    unknown = [
        (name, raw, group)
        for name, stream in streams.items()
        for raw, group in stream.groups.items()
        if stream.known_unread(group) is None
    ]
    if not unknown:
        return streams
    counted: dict[str, dict[bytes, tuple[int, bool]]] = {name: {} for name, _, _ in unknown}
    with redis.pipeline(transaction=False) as pipe:
        most = []
        for name, _, group in unknown:
            of_one = max(1, (streams[name].used or COUNTED_BYTES) // max(1, streams[name].length))
            most.append(min(COUNTED, max(1, COUNTED_BYTES // len(unknown) // of_one)))
            pipe.execute_command("XRANGE", name, *younger_than(group.read_to), "COUNT", most[-1])
        for (name, raw, _), bound, entries in zip(unknown, most, pipe.execute(), strict=True):
            counted[name][raw] = (len(entries), len(entries) < bound)
    return {name: replace(stream, counted=counted.get(name, {})) for name, stream in streams.items()}


def _undeclared(
    streams: Mapping[str, StreamStatus], declared: Mapping[str, Sequence[LaneSettings]]
) -> dict[str, list[LaneSettings]]:
    """Name -> lanes of the groups on these streams that the app does not name."""
    like = {lane.stream: lane for lanes in declared.values() for lane in lanes}
    found: dict[str, list[LaneSettings]] = {}
    for stream, status in sorted(streams.items()):
        for raw in sorted(status.groups):
            try:
                name = raw.decode()
            except UnicodeDecodeError:
                # The group of another program.
                continue
            if name not in declared:
                found.setdefault(name, []).append(with_group(like[stream], name))
    return found


#: The replies for each lane that `_read_lanes` asks for first, where this user may not read the lane's keys.
_NOT_PERMITTED: tuple[Any, ...] = (None, (None, None), 0, 0, 0, (None,) * len(COUNTERS))
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
            pipe.xlen(lane.keys.dead)
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
    # An idle lane has neither.
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

    def __init__(self, lane: LaneSettings, stream: StreamStatus, replies: list[Any], now_ms: int) -> None:
        led, (app, format_), consumers, retries, dead, counts, pending_raw, next_unread = replies
        name = lane.group.encode()
        self.stream = lane.stream
        self.group = stream.groups.get(name)
        self.permitted = led is not None
        self.led, self.consumers, self.retries, self.dead = bool(led), consumers, retries, dead
        self.app = None if app is None else app.decode()
        self.format = None if format_ is None else int(format_)
        self.counters = {one: int(value or 0) for one, value in zip(COUNTERS, counts, strict=True)}
        self.unread, self.exact = stream.unread(name)
        self.pending = Pending.of(pending_raw, lane, ())
        oldest = self.pending.first_ms
        if oldest is None and next_unread:
            oldest = id_key(next_unread[0][0].decode())[0]
        self.oldest_ms = None if oldest is None else max(0, now_ms - oldest)
        self.held_bytes = stream.bytes_of(stream.undone(name))
        self.alone = stream.held_alone(name)
        self.alone_bytes = stream.bytes_of(self.alone)
        undone = stream.undone(name)
        self.unfinished = undone > 0 or dead >= lane.dead_max or not led
        self.stopped = lane.max_lag.stops(undone, self.held_bytes, (self.oldest_ms or 0) / 1000)


def _sum(name: str, lanes: Sequence[_Lane], declared: bool) -> SubscriptionStatus:
    def known(values: list[int | None]) -> int | None:
        there = [value for value in values if value is not None]
        return sum(there) if len(there) == len(values) else None

    ages = [lane.oldest_ms for lane in lanes if lane.oldest_ms is not None]
    retries = sum(lane.retries for lane in lanes)
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
        waiting=max(0, sum(lane.pending.of_master for lane in lanes) - retries),
        in_flight=sum(sum(lane.pending.of_consumers.values()) for lane in lanes),
        awaiting_retry=retries,
        parked=sum(sum(lane.pending.of_parked.values()) for lane in lanes),
        dead=sum(lane.dead for lane in lanes),
        counters={one: sum(lane.counters[one] for lane in lanes) for one in COUNTERS},
        oldest_undone_ms=max(ages, default=None),
        held_bytes=known([lane.held_bytes for lane in lanes]),
        held_alone=sum(lane.alone for lane in lanes),
        held_alone_bytes=known([lane.alone_bytes for lane in lanes]),
        stopped=sum(lane.stopped for lane in lanes),
        permitted=all(lane.permitted for lane in lanes),
        unfinished={lane.stream: lane.oldest_ms or 0 for lane in lanes if lane.unfinished},
    )
