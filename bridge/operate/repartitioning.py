"""Changes the number of partitions of a stream while it is used: what ``bridge stream repartition`` does.

It has three steps, each of them one script. The stored layout says which step is next. So the command may be killed at
any moment and run again.

1. `begin`: the stream gets a new layout, which names the older one. Producers push to the new partitions from then on.
   Masters lead the old and the new ones, workers serve both. A message in a new partition waits until the old ones
   have no message of its ticket.
2. `leave`: when nothing of the old partitions is undone, they are not followed any more. Masters and workers leave
   their lanes.
3. `clear`: when these have left, and the retention of the last entries is over, the old partitions are deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bridge.inspect.advice import NOT_OF_AN_APP, Advice
from bridge.operate.deleting import LanesOfStream, StillUsed, delayed_among, lanes_on
from bridge.protocol.agreement import refuse_newer
from bridge.routing.errors import InputError
from bridge.routing.ids import id_key
from bridge.routing.keys import LaneKeys
from bridge.routing.layouts import claim_layout
from bridge.routing.numbers import count, moment
from bridge.routing.partitions import Layout
from bridge.routing.repartitioning import forget_layout, leave_layout, next_layout, repartition
from bridge.routing.return_codes import ReturnCode
from bridge.routing.text import printable
from bridge.routing.versions import leave_chain, newer_versions, older_versions

if TYPE_CHECKING:
    from redis import Redis

#: Most old partitions that one new partition may follow: each of its steps looks at all of them.
MOST_OLDER = 16
#: Most new partitions that may follow one old partition. One master leads all of them until the old one is done.
MOST_NEWER = 64


def check(redis: Redis, stream: str, layout: Layout, partitions: int) -> None:
    """Raises `InputError` when ``stream``, which has ``layout``, cannot get another number of partitions now, and
    `ConfigurationError` when a newer version keeps one of its lanes, also one of another app.
    """
    for whole in (layout, layout.older, layout.leaving):
        for one in whole.streams(stream) if whole else ():
            for keys in lanes_on(redis, one):
                refuse_newer(redis, keys)
    before = layout.older or layout.leaving
    if before is not None:
        if layout.partitions == partitions:
            return
        raise InputError(
            f"{printable(stream)} is being repartitioned from {before.partitions} to {layout.partitions}: finish that "
            f"first with `bridge stream repartition {layout.partitions}`; nothing was changed"
        )
    older, newer = _versions(redis, stream, layout)
    if older or newer:
        others = ", ".join(map(printable, sorted({*older, *newer})))
        commands = " and ".join(NOT_OF_AN_APP.of_app("stream", "retire", about=one) for one in sorted(older))
        raise InputError(
            f"{printable(stream)} has other versions ({others}): retire the older ones first"
            f"{f' ({commands})' if older else ''}; nothing was changed"
        )
    wanted = next_layout(layout, partitions)
    if len(wanted.older_of(0)) > MOST_OLDER:
        raise InputError(
            f"from {layout.partitions} to {partitions} partitions, a new one would follow more than {MOST_OLDER} old "
            "ones: choose a number that divides the old one by less, and go in steps; nothing was changed"
        )
    if len(wanted.newer_of(0)) > MOST_NEWER:
        raise InputError(
            f"from {layout.partitions} to {partitions} partitions, more than {MOST_NEWER} new ones would follow an old "
            "one: choose a multiple of the old number that is smaller, and go in steps; nothing was changed"
        )


def _versions(redis: Redis, stream: str, layout: Layout) -> tuple[set[str], set[str]]:
    """(older versions of ``stream``, newer ones): whole streams. Those of all have partitions of the same names."""
    older, newer = set(older_versions(redis, stream)), newer_versions(redis, stream)
    for number, one in enumerate(layout.streams(stream)):
        end = layout.stream("", number)
        older |= {name.removesuffix(end) for name in older_versions(redis, one)}
        newer |= {name.removesuffix(end) for name in newer_versions(redis, one)}
    return older, newer


def begin(redis: Redis, stream: str, layout: Layout, partitions: int) -> Layout:
    """Gives ``stream`` the new layout, and returns it. Raises as `check` does, and redis errors."""
    check(redis, stream, layout, partitions)
    if layout.older is not None or layout.leaving is not None:
        return layout
    wanted = next_layout(layout, partitions)
    code, detail = repartition(redis, stream, layout, wanted)
    if code is ReturnCode.HELD:
        raise InputError(
            f"the key {printable(detail)}, which would be a new partition, is no stream, or has groups: another "
            "program's, or of an earlier layout that was lost: rename or delete it; nothing was changed"
        )
    if code is ReturnCode.LAYOUT:
        # Another run of the command was faster.
        return begin(redis, stream, claim_layout(redis, stream, 1), partitions)
    return wanted


def leave(redis: Redis, stream: str, layout: Layout, commands: Mapping[str, Advice] = MappingProxyType({})) -> str:
    """Lets the new partitions follow the older ones no more. Returns why it cannot do so yet; "": it is done.

    ``commands``: subscription of the caller's app -> how commands about it are written.
    """
    assert layout.older is not None
    old = layout.older.streams(stream)
    groups = sorted({keys.group for one in old for keys in lanes_on(redis, one)})
    code, detail, group = leave_layout(redis, stream, layout, groups)
    if code is ReturnCode.UNREAD:
        who = f"that group {printable(group)} has not read" if group else "and no group that reads it"
        return f"{printable(detail)} has messages {who}"
    if code is ReturnCode.UNDONE:
        what = f"{printable(detail)} has messages of group {printable(group)} that are not done"
        return what + delayed_among(redis, detail, group)
    if code is ReturnCode.HELD:
        if detail.endswith(":dead"):
            letters = count(int(redis.xlen(detail)), "dead letter")
            [owner] = [name for name in groups for one in old if LaneKeys(one, name).dead == detail]
            how = "with its app" if owner not in commands else f"({commands[owner].bridge('dead', 'list')})"
            return f"{letters} in {printable(detail)}: replay or drop them {how}"
        return f"{printable(detail)} has tickets that are in flight, await a retry, or are parked"
    if code is ReturnCode.CHANGED:
        return f"group {printable(detail)} came just now"
    return ""


def kept(redis: Redis, stream: str, layout: Layout, keep_s: float | None) -> str:
    """Why ``bridge_retention`` keeps the partitions that were left; "": they may be deleted.

    ``keep_s``: least age in seconds of the entries that may be deleted; None: they stay for ever.
    """
    assert layout.leaving is not None
    newest = max(_newest_ms(redis, one) for one in layout.leaving.streams(stream)) if keep_s != 0 else 0
    if not newest:
        return ""
    if keep_s is None:
        return "the old partitions keep their done entries (bridge_retention is None): to delete them, add --drop-kept"
    until = newest / 1000 + keep_s
    if until <= redis.time()[0]:
        return ""
    at = moment(until * 1000)
    return f"the old partitions keep their done entries until {at} (bridge_retention): run this again then"


def clear(redis: Redis, stream: str, layout: Layout) -> str:
    """Deletes the keys of the partitions that were left. Returns why it cannot yet; "": it is done."""
    assert layout.leaving is not None
    groups = {keys.group for one in layout.streams(stream) for keys in lanes_on(redis, one)}
    for one in layout.leaving.streams(stream):
        # Somebody may have deleted the stream by hand. The keys of its lanes still exist.
        found = [LaneKeys(one, group).about for group in sorted(groups)]
        try:
            # States stay. Where the stream was not split, their key is that of the whole stream.
            homes = [LaneKeys(stream, group).state_home for group in sorted(groups)]
            LanesOfStream(redis, one, found, letters=False).delete(keep=homes)
        except StillUsed as exc:
            if exc.unread:
                return (
                    f"{printable(one)} has messages that nobody reads: a program added them with XADD when it had been "
                    "left; push them again, and delete them there"
                )
            return f"masters and workers have not left {printable(one)} yet: {exc.what}"
        leave_chain(redis, one)
    forget_layout(redis, stream, layout)
    return ""


def _newest_ms(redis: Redis, stream: str) -> int:
    """When the newest entry of the stream was added, in Unix ms; 0: the stream has none."""
    found: Any = redis.execute_command("XREVRANGE", stream, "+", "-", "COUNT", 1)
    return id_key(found[0][0].decode())[0] if found else 0
