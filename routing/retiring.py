"""Deletes a stream with all keys of its lanes: what `bridge stream retire` changes."""

from __future__ import annotations

from collections.abc import Sequence

from redis import Redis

from bridge.routing.groups import name_in_group, raw_name
from bridge.routing.return_codes import ReturnCode, code_of
from bridge.routing.scripts import Script

_RETIRE = Script("retire")


def retire(
    client: Redis,
    stream: str,
    groups: Sequence[str],
    free: Sequence[str],
    doomed: Sequence[str],
    *,
    look: bool = False,
) -> tuple[ReturnCode, str]:
    """Deletes ``stream`` and the keys ``doomed``. ``groups``: those that the caller knows of. ``free``: keys that must
    not be there. ``look``: only checks, and counts the keys.

    Returns OK with the number of keys, HELD with a key, or UNREAD, UNDONE or CHANGED with a group. Names of groups and
    keys need not be UTF-8.
    """
    names = [raw_name(key) for key in (stream, *free, *doomed)]
    reply = _RETIRE.run(client, names, [len(free), "look" if look else "delete", *map(raw_name, groups)])
    return code_of(reply[0]), str(reply[1]) if isinstance(reply[1], int) else name_in_group(reply[1])
