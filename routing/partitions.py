"""Partitions of a stream: which one a ticket belongs to, the names of their streams, and the ids of their messages.

A stream of one partition is the stream itself. Each partition of a split stream is a stream of its own, with lanes,
keys and ids of its own. The *layout* of a stream says how many partitions it has. It is stored beside the stream, and
the stored one rules (`bridge.routing.layouts`).

A layout may have an *older* one, whose partitions are followed until all their messages are done: a partition follows
those older ones that can have a ticket in common with it (`Layout.older_of`).

An id is unique within one stream. So the id of a message on a partition names the partition too: ``1700000000000-0@p3``
outside of the partition's own keys. On a stream of one partition it is the stream id alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import gcd
from zlib import crc32

#: The largest number of partitions.
MOST = 4096
#: The generation and the number in the suffix of an id.
_PARTS = re.compile("[gp][0-9]+")
#: The end of the name of a partition's stream, and what stands before ``:p0`` in it.
_PARTITION = re.compile(r":[gp][0-9]+\Z")
#: What stands between a stream id and the name of its partition.
AT = "@"


def partition_of(ticket_id: str | bytes, count: int) -> int:
    """The partition of a ticket, from 0: the CRC-32 of its UTF-8 bytes, modulo ``count``."""
    return crc32(ticket_id if isinstance(ticket_id, bytes) else ticket_id.encode()) % count


@dataclass(frozen=True)
class Layout:
    """How a stream is split.

    ``generation``: 0 for the first layout of a stream. Each later one has streams of its own. ``since_ms``: Unix time.
    ``text``: as it is stored; "": nothing is stored. ``older``: the layout before, while its partitions are followed.
    ``leaving``: the layout before, when its partitions are followed no more, and still have keys.
    """

    partitions: int = 1
    generation: int = 0
    since_ms: int = 0
    text: str = ""
    older: Layout | None = None
    leaving: Layout | None = None

    @property
    def is_split(self) -> bool:
        """Whether the partitions have streams of their own."""
        return self.partitions > 1 or self.generation > 0

    def stream(self, stream: str, number: int) -> str:
        """The stream of a partition of ``stream``."""
        if not self.is_split:
            return stream
        return f"{stream}:p{number}" if self.generation == 0 else f"{stream}:g{self.generation}:p{number}"

    def streams(self, stream: str) -> tuple[str, ...]:
        """The streams of all partitions of ``stream``, in their order."""
        return tuple(self.stream(stream, number) for number in range(self.partitions))

    @property
    def shape(self) -> tuple[tuple[int, int] | None, ...]:
        """What decides which lanes there are and what they wait for: partitions and generation, of this layout, of the
        older one, and of the one that is being left.
        """
        every = (self, self.older, self.leaving)
        return tuple(None if one is None else (one.partitions, one.generation) for one in every)

    def all_streams(self, stream: str) -> frozenset[str]:
        """The streams of all partitions of ``stream``, also of the older ones."""
        older = () if self.older is None else self.older.streams(stream)
        return frozenset((*self.streams(stream), *older))

    @property
    def classes(self) -> int:
        """How many groups of partitions there are, of this layout and the older one, without a ticket in common.

        Partition ``n`` is in group ``n`` modulo this.
        """
        return self.partitions if self.older is None else gcd(self.partitions, self.older.partitions)

    def older_of(self, number: int) -> tuple[int, ...]:
        """The numbers of the older partitions that can have tickets of partition ``number``."""
        if self.older is None:
            return ()
        return tuple(range(number % self.classes, self.older.partitions, self.classes))

    def newer_of(self, number: int) -> tuple[int, ...]:
        """The numbers of the partitions that can have tickets of the older partition ``number``."""
        return tuple(range(number % self.classes, self.partitions, self.classes))

    def suffix(self, number: int) -> str:
        """What follows a stream id of that partition in a message id."""
        if not self.is_split:
            return ""
        return f"{AT}p{number}" if self.generation == 0 else f"{AT}g{self.generation}p{number}"


def suffix_in(stream: str, whole: str, other: str) -> str:
    """What follows a stream id in the ids of ``stream``, a partition of ``whole``; ``other`` if it is none."""
    parts = stream.removeprefix(f"{whole}:").split(":") if stream.startswith(f"{whole}:") else []
    return AT + "".join(parts) if parts and all(map(_PARTS.fullmatch, parts)) else other


def is_partition(stream: str) -> bool:
    """Whether ``stream`` has the name of a partition of another stream, or its own ones would have such names."""
    return _PARTITION.search(stream) is not None


def first_partition(stream: str) -> str:
    """The first partition that ``stream`` has, once it is split."""
    return Layout(MOST).stream(stream, 0)


def stream_id(message_id: str) -> str:
    """The id in its own stream of the message ``message_id``."""
    return message_id.partition(AT)[0]


def whole_stream(stream: str, message_id: str) -> str:
    """The stream of which ``stream`` is a partition, by the id of a message on it; ``stream`` itself if it is whole."""
    return stream.removesuffix("".join(f":{part}" for part in _PARTS.findall(suffix_of(message_id))))


def suffix_of(message_id: str) -> str:
    """What follows the stream id in ``message_id``: it names the partition."""
    return message_id[len(stream_id(message_id)) :]
