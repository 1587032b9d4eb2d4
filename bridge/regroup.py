"""Makes a lane's group anew after somebody destroyed it, or deleted the stream: what of the stream is undone?

With the group went its pending list, and how far it had read. What is known still: the *floor*, up to which all was
done or dead; the records of what is in flight, awaits a retry, or is parked; and the history, which names what was done
after the floor. So every entry after the floor that the history does not name as done or dead is undone, and is made
pending under the master's name. Without a history that reaches back to the floor, entries after it that were done come
again, and that is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.picture import id_key
from routing.history import What, read_entry
from routing.transitions import Batch, adopt, advance, regroup

if TYPE_CHECKING:
    from bridge.leader import Leader

logger = get_logger(__name__)

#: Entries in one page.
PAGE = 1000
#: What ends a message.
LAST = frozenset({What.DONE, What.DEAD, What.REFUSED})


def regroup_lane(leader: Leader) -> None:
    """The group was just made: gives it the pending entries that it must have, if there was one before it."""
    keys = leader.settings.keys
    known = leader.wire.call("GET", keys.floor)
    if known is None:
        # This lane is new.
        return
    floor = known.decode()
    ended = _ended_after(leader, floor)
    logger.error("the group %s of %s is gone: making it anew from %s on", keys.group, keys.stream, floor)
    start = f"({floor}"
    undone = skipped = 0
    read_to = floor
    while True:
        page = leader.wire.call("XRANGE", keys.stream, start, "+", "COUNT", PAGE)
        ids = [entry[0].decode() for entry in page]
        mine = [id_ for id_ in ids if id_ not in ended]
        skipped += len(ids) - len(mine)
        if mine:
            undone += adopt(leader.redis, leader.leadership, leader.settings.master, mine)
        if ids:
            read_to = ids[-1]
            start = f"({read_to}"
        if len(page) < PAGE:
            break
    regroup(leader.redis, leader.leadership, read_to)
    logger.error("%d entries after it are undone, %d were done or dead before", undone, skipped)
    batch = Batch()
    batch.count("regrouped")
    advance(leader.redis, leader.leadership, "", batch)


def _ended_after(leader: Leader, floor: str) -> set[str]:
    """Ids after ``floor`` that the history knows as done or dead."""
    keys = leader.settings.keys
    after = id_key(floor)
    ended: set[str] = set()
    # A row is never older than its message.
    start = f"{after[0]}-0"
    oldest = leader.wire.call("XRANGE", keys.history, "-", "+", "COUNT", 1)
    if not oldest or id_key(oldest[0][0].decode()) > after:
        logger.warning("the history does not reach back to %s: what was done since then may come again", floor)
    while True:
        page = leader.wire.call("XRANGE", keys.history, start, "+", "COUNT", 100)
        for id_, fields in page:
            for row in read_entry(id_, fields[1]):
                if row.what in LAST and id_key(row.message_id) > after:
                    ended.add(row.message_id)
                elif row.what is What.REPLAYED:
                    ended.discard(row.message_id)
        if len(page) < 100:
            return ended
        start = "(" + page[-1][0].decode()
