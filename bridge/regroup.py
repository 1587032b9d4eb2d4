"""Puts a lane's group right that somebody destroyed or set back, or whose stream or master's name was deleted: what of
the stream is undone?

With the pending list went who had what, and perhaps how far the group had read. What is known still: the *floor*, up to
which all was done or dead; the records of what is in flight, awaits a retry, or is parked; and the history, which names
what was done after the floor. So every entry after the floor that the history does not name as done or dead is undone,
and is made pending under the master's name. It is enough to do so up to the newest entry that a record or the history
names: what comes after it was not begun, and is read as if it were new. Without a history that reaches back to the
floor, entries after it that were done come again, and that is said.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from bridge.picture import id_key
from routing import records
from routing.history import What, read_entry
from routing.transitions import Batch, adopt, advance, regroup

if TYPE_CHECKING:
    from bridge.leader import Leader

logger = get_logger(__name__)

#: Entries in one page.
PAGE = 1000
#: What ends a message.
LAST = frozenset({What.DONE, What.DEAD, What.REFUSED})
#: How far a group has read whose pending entries were not put right yet: a leader that dies half way leaves it there.
HALF_MADE = "0-1"


def regroup_lane(leader: Leader, floor: str, why: str, read_to: str = "") -> None:
    """Gives the group the pending entries that it must have. ``why`` completes "the group …"; ``read_to``: how far it
    has read, if that is known.
    """
    keys = leader.settings.keys
    logger.error("the group %s of %s %s: putting it right from %s on", keys.group, keys.stream, why, floor)
    ended, replayed = ended_after(leader, floor)
    named = _named_in_records(leader)
    newest = max(map(id_key, {floor, *ended, *named, *replayed}))
    upto = read_to or f"{newest[0]}-{newest[1]}"
    for start in range(0, len(replayed), PAGE):
        adopt(leader.redis, leader.leadership, leader.settings.master, replayed[start : start + PAGE])
    start_at = f"({floor}"
    undone = skipped = 0
    while True:
        page = leader.wire.call("XRANGE", keys.stream, start_at, upto, "COUNT", PAGE)
        ids = [entry[0].decode() for entry in page]
        mine = [id_ for id_ in ids if id_ not in ended]
        skipped += len(ids) - len(mine)
        if mine:
            undone += adopt(leader.redis, leader.leadership, leader.settings.master, mine)
        if len(page) < PAGE:
            break
        start_at = f"({ids[-1]}"
    regroup(leader.redis, leader.leadership, upto)
    logger.error("%d entries up to %s are undone, %d were done or dead before", undone, upto, skipped)
    batch = Batch()
    batch.count("regrouped")
    advance(leader.redis, leader.leadership, "", batch)


def _named_in_records(leader: Leader) -> list[str]:
    """Ids that a ticket record names: they were read."""
    found: list[str] = []
    cursor: Any = b"0"
    while True:
        cursor, flat = leader.wire.call("HSCAN", leader.settings.keys.tickets, cursor, "COUNT", PAGE)
        for text in flat[1::2]:
            found += records.parse(text).ids
        if cursor == b"0":
            return found


def ended_after(leader: Leader, floor: str) -> tuple[set[str], list[str]]:
    """Ids after ``floor`` that the history knows as done or dead; and those up to it that were put back since then,
    and are not done again.
    """
    keys = leader.settings.keys
    after = id_key(floor)
    ended: set[str] = set()
    replayed: dict[str, None] = {}
    # A row is never older than its message, if its id is a time of this server; an id that is not may be later.
    start = f"{after[0]}-0" if after[0] <= time.time() * 1000 else "-"
    oldest = leader.wire.call("XRANGE", keys.history, "-", "+", "COUNT", 1)
    if not oldest or id_key(oldest[0][0].decode()) > after:
        logger.warning("the history does not reach back to %s: what was done since then may come again", floor)
    while True:
        page = leader.wire.call("XRANGE", keys.history, start, "+", "COUNT", 100)
        for id_, fields in page:
            for row in read_entry(id_, fields[1]):
                if row.what in LAST:
                    replayed.pop(row.message_id, None)
                    if id_key(row.message_id) > after:
                        ended.add(row.message_id)
                elif row.what is What.REPLAYED:
                    ended.discard(row.message_id)
                    if id_key(row.message_id) <= after:
                        replayed[row.message_id] = None
        if len(page) < 100:
            return ended, list(replayed)
        start = "(" + page[-1][0].decode()
