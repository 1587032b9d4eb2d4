"""What somebody acknowledged by hand while no master led: entries that were read, are not pending, and were never done.

A leader sees such a thing by its picture (`bridge.strays`). One that reads the lane anew has no picture yet, and to it
such an entry looks like one that is done. Only the history tells the two apart: every end is written to it in the very
step that acknowledges. So an entry after the *floor* that the group has read and has not pending, and whose end the
history should have and has not, is undone, and is pending again before anything of its ticket is dispatched.

Where the history says nothing, nothing is concluded: before its oldest row, and where it is turned off. It has no
holes, since a leader without history deletes what there is. And where a producer chose an id that is later than the
server's clock, while the history has been trimmed, an end may be older than its entry and be gone: such a message may
come again.

Costs a takeover 0.4 to 7 ms as a rule. At worst (a ticket parked long ago keeps the floor low, and the retention keeps
100,000 entries behind it) a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.picture import id_before, id_key
from bridge.regroup import ended_after
from routing.retention import done

if TYPE_CHECKING:
    from bridge.leader import Leader

#: Entries in one look.
PAGE = 500


def acknowledged_by_hand(leader: Leader, floor: str, read_to: str) -> list[str]:
    """Ids after ``floor``, up to ``read_to``, of what is undone and neither pending nor named by a record in flight."""
    since = _told_since(leader, floor)
    if since is None:
        return []
    keys = leader.settings.keys
    found: list[str] = []
    start = f"({since}"
    while True:
        look = done(leader.redis, keys.stream, start, read_to, PAGE, keys.group)
        found += look.ids
        if look.looked < PAGE:
            break
        start = f"({look.last}"
    if not found:
        return []
    ended, _ = ended_after(leader, id_before(id_key(found[0])))
    return [id_ for id_ in found if id_ not in ended and id_ not in leader.lane.in_flight]


def _told_since(leader: Leader, floor: str) -> str | None:
    """From where on, ``floor`` or later, the history has the end of all that ended; None: there is none."""
    oldest = leader.wire.call("XRANGE", leader.settings.keys.history, "-", "+", "COUNT", 1)
    return max(floor, oldest[0][0].decode(), key=id_key) if oldest else None
