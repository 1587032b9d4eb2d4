"""Partitions of a stream: which one a ticket belongs to, the names of their streams, and the ids of their messages.

A stream of one partition is the stream itself. Of a split stream, each partition is a stream of its own, with lanes,
keys and ids of its own. The *layout* of a stream says how many partitions it has. It is stored beside the stream, and
the stored one rules (`bridge.routing.layouts`).

An id is unique within one stream. So the id of a message on a partition names the partition too: ``1700000000000-0@p3``
outside of the partition's own keys. On a stream of one partition it is the stream id alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from zlib import crc32

#: The largest number of partitions.
MOST = 4096
#: The generation and the number in the suffix of an id.
_PARTS = re.compile("[gp][0-9]+")
#: What stands between a stream id and the name of its partition.
AT = "@"


def partition_of(ticket_id: str | bytes, count: int) -> int:
    """The partition of a ticket, from 0: the CRC-32 of its UTF-8 bytes, modulo ``count``."""
    return crc32(ticket_id if isinstance(ticket_id, bytes) else ticket_id.encode()) % count


@dataclass(frozen=True)
class Layout:
    """How a stream is split.

    ``generation``: 0 for the first layout of a stream. Each later one has streams of its own. ``since_ms``: Unix time.
    ``text``: as it is stored; "": nothing is stored.
    """

    partitions: int = 1
    generation: int = 0
    since_ms: int = 0
    text: str = ""

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

    def suffix(self, number: int) -> str:
        """What follows a stream id of that partition in a message id."""
        if not self.is_split:
            return ""
        return f"{AT}p{number}" if self.generation == 0 else f"{AT}g{self.generation}p{number}"


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
