"""Streams that look like partitions of a split stream and are none: nobody reads them.

A program that adds messages with XADD chooses the stream itself. It may use the name of the stream that is split, or
the number of a partition that there is not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from redis import Redis
from redis.exceptions import NoPermissionError

from bridge.routing.partitions import Layout

#: Numbers above the last partition that are looked at. A producer with another number of partitions uses the next ones.
ABOVE = 64


class Stray(NamedTuple):
    """A stream that nobody reads, and how many entries it has."""

    stream: str
    entries: int


def strays_of(client: Redis, stream: str, layout: Layout) -> list[Stray]:
    """The strays of ``stream`` that have entries. One round trip when there are none. Raises redis errors.

    Of the layouts before, the stream itself and the first partitions of the last one are looked at.
    """
    if not layout.is_split:
        return []
    last = layout.partitions
    names = [layout.stream(stream, number) for number in range(last, last + ABOVE)]
    names.append(stream)
    if layout.generation > 0:
        before = Layout(ABOVE, layout.generation - 1)
        names += before.streams(stream)
    for known in (layout.older, layout.leaving):
        if known is not None:
            names = [name for name in names if name not in known.streams(stream)]
    try:
        if not client.exists(*names):
            return []
        with client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.xlen(name)
            lengths: list[Any] = pipe.execute(raise_on_error=False)
    except NoPermissionError:
        return []
    # An error: a key of another type, which no XADD can use.
    return [Stray(name, length) for name, length in zip(names, lengths, strict=True) if type(length) is int and length]


def said_of(stray: Stray, stream: str, layout: Layout) -> str:
    """The problem that ``stray`` is, and what to do: one sentence."""
    many = "1 message" if stray.entries == 1 else f"{stray.entries:,} messages"
    streams = layout.streams(stream)
    what = "is split" if stray.stream == stream else f"has {layout.partitions} partitions"
    return (
        f"{stray.stream} has {many} that nobody reads, since {stream} {what}: a program adds them with XADD; let it "
        f"choose among {streams[0]} to {streams[-1]} by the ticket, push these again, and delete {stray.stream}"
    )
