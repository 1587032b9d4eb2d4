"""Finds streams to which a program adds messages by mistake, and which no master reads.

A program that adds messages with XADD chooses the stream itself. It may use the name of the stream that is split, or
the number of a partition that does not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redis import Redis
from redis.exceptions import NoPermissionError

from bridge.routing.groups import groups_in
from bridge.routing.ids import id_key
from bridge.routing.partitions import Layout

#: Numbers above the last partition that are looked at. A producer with another number of partitions uses the next ones.
ABOVE = 64
#: Unread entries of a partition that is being left that are counted at most.
COUNTED = 1000


class UnreadStream(NamedTuple):
    """A stream that nobody reads, and how many entries it has. ``left``: it is a partition that is being left, and
    ``entries`` of its entries were never read.
    """

    stream: str
    entries: int
    left: bool = False


def unread_streams(client: Redis, stream: str, layout: Layout) -> list[UnreadStream]:
    """The unread streams beside ``stream`` that have entries. One round trip if there are none. Raises redis errors.

    It looks at the stream itself, at the first partitions of the last layout before, and at each partition of a layout
    that is being left: what a program adds there now is not read.
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
        left = [] if layout.leaving is None else _left_unread(client, layout.leaving.streams(stream))
        if not client.exists(*names):
            return left
        with client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.xlen(name)
            lengths: list[Any] = pipe.execute(raise_on_error=False)
    except NoPermissionError:
        return []
    # An error: a key of another type, which no XADD can use.
    sized = zip(names, lengths, strict=True)
    found = [UnreadStream(name, length) for name, length in sized if type(length) is int and length]
    return [*left, *found]


def _left_unread(client: Redis, streams: Sequence[str]) -> list[UnreadStream]:
    """Those of ``streams`` that have entries which some group has not read."""
    with client.pipeline(transaction=False) as pipe:
        for name in streams:
            pipe.execute_command("XINFO", "GROUPS", name)
        # An error: the stream is gone already.
        read_to = [
            min((group.read_to for group in groups_in(reply).values()), key=id_key, default="0-0")
            for reply in pipe.execute(raise_on_error=False)
        ]
        for name, id_ in zip(streams, read_to, strict=True):
            pipe.execute_command("XRANGE", name, f"({id_}", "+", "COUNT", COUNTED)
        unread: list[Any] = pipe.execute(raise_on_error=False)
    return [
        UnreadStream(name, len(entries), left=True)
        for name, entries in zip(streams, unread, strict=True)
        if not isinstance(entries, Exception) and entries
    ]


def advice_on(unread: UnreadStream, stream: str, layout: Layout) -> str:
    """What is wrong with ``unread``, and what to do about it: one sentence."""
    many = "1 message" if unread.entries == 1 else f"{unread.entries:,} messages"
    streams = layout.streams(stream)
    if unread.left:
        least = "at least " if unread.entries == COUNTED else ""
        return (
            f"{unread.stream}, an old partition that is being left, has {least}{many} that nobody reads: a program "
            f"added them with XADD when it had been left; let it choose among {streams[0]} to {streams[-1]} by the "
            "ticket, push these again, and delete them there"
        )
    what = "is split" if unread.stream == stream else f"has {layout.partitions} partitions"
    return (
        f"{unread.stream} has {many} that nobody reads, since {stream} {what}: a program adds them with XADD; let it "
        f"choose among {streams[0]} to {streams[-1]} by the ticket, push these again, and delete {unread.stream}"
    )
