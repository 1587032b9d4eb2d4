"""Finds and removes done entries of a stream: one typed function for each Lua script.

The scripts' own headers say what each returns, and which invariant it keeps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from redis import Redis

from bridge.routing.return_codes import ReturnCode, code_for_leader, text_of
from bridge.routing.scripts import Argument, Script
from bridge.routing.transitions import Leadership

_DONE = Script("done")
_LETTERS = Script("letters")
_REMOVE = Script("remove")


#: Bytes of entries after which one look ends.
LOOK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Done:
    """The result of a look at a part of the stream."""

    #: Ids of entries that were delivered to every group asked and are pending in none, in order.
    ids: list[str]
    #: Whether there may be more.
    more: bool
    #: The last id that was looked at; empty: there was none.
    last: str
    #: Names of the stream's groups. Names from other programs may not be UTF-8.
    groups: frozenset[bytes]
    #: Those asked that stand beyond the stream's newest id, so that nothing counts as done.
    beyond: frozenset[bytes] = frozenset()


def done(
    client: Redis, stream: str, start: str, end: str, count: int, group: str = "", spared: Sequence[str] = ()
) -> Done:
    """Looks at up to ``count`` entries from ``start`` (after it with ``(`` before it, as in XRANGE) to ``end``, and not
    beyond what every group has read, until it has read `LOOK_BYTES`; with ``group`` only this one counts. ``spared``:
    ids, in order and not before ``start``, that are not looked at.
    """
    reply = _DONE.run(client, [stream], [start, end, count, group, LOOK_BYTES, *spared])
    ids, more, last, groups, beyond = reply
    return Done([text_of(id_) for id_ in ids], bool(more), text_of(last), frozenset(groups), frozenset(beyond))


def letters(client: Redis, dead: str, after: str, count: int) -> tuple[list[str], str, int]:
    """Ids of the messages of up to ``count`` dead letters after ``after``, the last of these letters, and how many
    letters there were.

    ``dead``: the key of a lane's dead letters. Empty ``after``: from the first one on.
    """
    ids, last, number = _LETTERS.run(client, [dead], [after, count])
    # A dead letter may have been added by hand.
    return [id_.decode(errors="replace") for id_ in ids], text_of(last), number


def remove(
    client: Redis, lead: Leadership, others: Collection[bytes], ids: Sequence[str], *, only_looks: bool = False
) -> list[str] | None:
    """Removes those of ``ids``, which are in order, that all other groups have read and none has pending. Returns their
    ids. ``only_looks``: removes nothing.

    None: the stream has other groups than ``others`` beside the lane's own, or not this one, and nothing was removed.
    Raises `NotLeading`.
    """
    keys = lead.keys
    args: list[Argument] = [lead.token, keys.group, int(only_looks), len(others), *others, *ids]
    reply = _REMOVE.run(client, [keys.leader, keys.stream], args)
    code = code_for_leader(reply[0], keys)
    return None if code is ReturnCode.CHANGED else [text_of(id_) for id_ in reply[1]]
