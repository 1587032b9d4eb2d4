"""The steps in which a stream gets another layout: what ``bridge stream repartition`` changes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from redis import Redis

from bridge.routing.groups import name_in_group, raw_name
from bridge.routing.keys import LaneKeys, layout_copy_key, layout_key
from bridge.routing.layouts import layout_of, text_of_layout
from bridge.routing.partitions import Layout
from bridge.routing.return_codes import ReturnCode, code_of
from bridge.routing.scripts import Argument, Script

_REPARTITION = Script("repartition")
_LEAVE_LAYOUT = Script("leave_layout")
#: Forgets the layout that a stream has left, when all its keys are gone.
_FORGET_LAYOUT = Script("forget_layout")


def next_layout(known: Layout, partitions: int) -> Layout:
    """The layout with ``partitions`` that follows ``known``."""
    older = Layout(known.partitions, known.generation, known.since_ms)
    made = Layout(partitions, known.generation + 1, time.time_ns() // 1_000_000, older=older)
    return replace(made, text=text_of_layout(made))


def repartition(client: Redis, stream: str, known: Layout, wanted: Layout) -> tuple[ReturnCode, str]:
    """Gives ``stream`` the layout ``wanted``, if it has ``known``. Producers and masters go by it from then on.

    Returns OK, LAYOUT with the text of the stored layout, or HELD with a key.
    """
    old = known.streams(stream)
    names = [layout_key(stream), *old, *wanted.streams(stream), layout_copy_key(stream)]
    return _answer(_REPARTITION.run(client, names, [known.text, wanted.text, len(old)]))


def leave_layout(client: Redis, stream: str, known: Layout, groups: Sequence[str]) -> tuple[ReturnCode, str, str]:
    """From now on no partition follows the older partitions of ``known``. ``groups``: those that the caller knows of.

    Returns OK; LAYOUT with the text of the stored layout; CHANGED with a group; UNREAD or UNDONE with a stream and a
    group; HELD with a key.
    """
    assert known.older is not None
    left = replace(known, older=None, leaving=known.older)
    old, new = known.older.streams(stream), known.streams(stream)
    names = [layout_key(stream), *old, *new]
    for group in groups:
        for keys in (LaneKeys(one, group) for one in old):
            names += [keys.fence, keys.tickets, keys.dead]
        names += [LaneKeys(one, group).fence for one in new]
    names.append(layout_copy_key(stream))
    arguments: list[Argument] = [known.text, text_of_layout(left), len(old), len(new), *map(raw_name, groups)]
    reply = _LEAVE_LAYOUT.run(client, names, arguments)
    code, detail = _answer(reply)
    return code, detail, name_in_group(reply[2]) if reply[2:] else ""


def forget_layout(client: Redis, stream: str, known: Layout) -> Layout:
    """Ends the repartition: the older layout is not named any more. Returns the stored layout."""
    names = [layout_key(stream), layout_copy_key(stream)]
    reply = _FORGET_LAYOUT.run(client, names, [known.text, text_of_layout(replace(known, leaving=None))])
    return layout_of(reply, stream)


def _answer(reply: Sequence[bytes]) -> tuple[ReturnCode, str]:
    return code_of(reply[0]), name_in_group(reply[1]) if reply[1:] else ""
