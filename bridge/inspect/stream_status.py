"""Reads how much of its streams each consumer group has undone.

The server does not know how much a group has not read while the group has read nothing since it was made in the middle
of the stream. Redis 6.2 never knows it. Then the entries after the group's position are counted, up to `COUNTED_BYTES`
of them. Beyond that the number is an upper bound, and commands say "at most".

The memory that a group holds is estimated: the messages that it is not done with, times the mean bytes of an entry
(MEMORY USAGE of the stream by its length). A message is stored once, and stays until the slowest group is done with it.
So the slowest one alone holds the messages that it has undone beyond those of the second slowest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import nlargest
from typing import TYPE_CHECKING

from redis.exceptions import NoPermissionError

from bridge.routing.groups import Group, groups_in
from bridge.routing.ids import id_key, younger_than

if TYPE_CHECKING:
    from redis import Redis

#: Entries of a stream that the server looks at to estimate its bytes.
SAMPLES = 20
#: Bytes of the entries that are read to count them, of all groups together, and most entries of one group.
COUNTED_BYTES = 8 * 1024 * 1024
COUNTED = 10_000
#: A group that alone holds so many messages, or bytes, is named as a problem.
HOLDS_MESSAGES = 1000
HOLDS_BYTES = 1024 * 1024


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
        unread = group.unread(self.length)
        if unread is not None:
            return unread
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


def holds_much(messages: int, used: int | None) -> bool:
    """Whether a group that alone holds so many messages, and bytes where that is known, is named as a problem."""
    return messages >= HOLDS_MESSAGES or (used or 0) >= HOLDS_BYTES


def read_streams(redis: Redis, names: set[str]) -> tuple[int, dict[str, StreamStatus]]:
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
