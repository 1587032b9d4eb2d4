"""Moves delayed messages that are due: the script of the leader's timer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis

from bridge.routing.errors import LaneConflict
from bridge.routing.return_codes import ReturnCode, code_for_leader
from bridge.routing.scripts import Argument, Script
from bridge.routing.transitions import READ_BYTES, Leadership

_MOVE_DUE = Script("move_due")

#: Most messages in one call: Lua's limit on unpacked values is far above twice that.
MOST = 500


@dataclass(frozen=True)
class Moved:
    """What a call moved. ``entries``: raw, ``[id, [field, value, ...], due ms]``; no fields: it was deleted."""

    entries: list[Any]
    #: Due time of the next delayed message, Unix ms; None: there is none.
    next_ms: int | None
    #: All that are due before this time are to be moved now.
    before_ms: int
    #: Members of the sorted set that are no messages. They were removed, and nothing else was moved.
    foreign: Sequence[bytes] = ()


def move_due(
    client: Redis,
    lead: Leadership,
    count: int,
    read_to: str,
    *,
    before_ms: int | None = None,
    history_cap: int = 0,
    limit: int = READ_BYTES,
    names: Sequence[Argument] = (),
) -> Moved:
    """Moves up to ``count`` delayed messages that are due by the server's clock, and before ``before_ms``, to those
    that wait. It stops at `READ_BYTES`.

    ``read_to``: id up to which the caller has read. ``history_cap``: entries that the history may have; 0: it is off.
    ``limit``: most bytes of an entry that is returned whole. ``names``: the fields of a larger entry that are returned.

    Raises `NotLeading`, and `LaneConflict` when the group is gone.
    """
    keys = lead.keys
    args: list[Argument] = [lead.token, keys.group, lead.master, "" if before_ms is None else before_ms, read_to]
    args += (min(count, MOST), READ_BYTES, limit, history_cap, "ticket_id", "task", "payload", *names)
    names_of_keys = [keys.leader, keys.delayed, keys.late, keys.stream, keys.history]
    reply = _MOVE_DUE.run(client, names_of_keys, args)
    code = code_for_leader(reply[0], keys)
    if code is ReturnCode.NOGROUP:
        raise LaneConflict(f"the group {keys.group} of {keys.stream} is gone")
    next_ms, before = int(float(reply[1])) if reply[1] else None, int(reply[2])
    if code is ReturnCode.FOREIGN:
        return Moved([], next_ms, before, reply[3:])
    return Moved(_entries(reply), next_ms, before)


def _entries(flat: list[Any]) -> list[Any]:
    entries: list[Any] = []
    at, end = 3, len(flat)
    while at < end:
        first = at + 3
        at = first + flat[first - 1]
        entries.append([flat[first - 3], flat[first:at], flat[first - 2]])
    return entries
