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

from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from bridge.leader.stream.pending import NEVER
from bridge.routing import records
from bridge.routing.history import What, read_entry
from bridge.routing.ids import id_key, id_text, younger_than
from bridge.routing.transitions import Batch, adopt, advance, set_read_to, survey

if TYPE_CHECKING:
    from bridge.leader.step.term import Term

logger = get_logger(__name__)

#: Entries in one page.
PAGE = 1000
#: Entries of the history in one page: each may have hundreds of rows.
ENTRIES = 20
#: What ends a message.
LAST = frozenset({What.DONE, What.DEAD, What.REFUSED})
#: How far a group has read whose pending entries were not put right yet: a leader that dies half way leaves it there.
HALF_MADE = "0-1"


def repair_group(term: Term, floor: str, why: str, read_to: str = "") -> None:
    """Gives the group the pending entries that it must have. ``why`` completes "the group …"; ``read_to``: how far it
    has read, if that is known.
    """
    keys = term.keys
    logger.error("the group %s of %s %s: putting it right from %s on", keys.group, keys.stream, why, floor)
    ended, replayed = ended_after(term, floor)
    named = _named_in_records(term)
    newest = max(map(id_key, {floor, *ended, *named, *replayed}))
    upto = read_to or id_text(newest)
    for at in range(0, len(replayed), PAGE):
        adopt(term.redis, term.leadership, term.master, replayed[at : at + PAGE])
    start, end = younger_than(floor, upto)
    undone = skipped = 0
    for page in survey(term.redis, keys.stream, start, end):
        mine = [id_ for id_, _ in page if id_ not in ended]
        skipped += len(page) - len(mine)
        if mine:
            undone += adopt(term.redis, term.leadership, term.master, mine)
    set_read_to(term.redis, term.leadership, upto)
    logger.error("%d entries up to %s are undone, %d were done or dead before", undone, upto, skipped)
    batch = Batch()
    batch.count("regrouped")
    advance(term.redis, term.leadership, "", batch)


def _named_in_records(term: Term) -> list[str]:
    """Ids that a ticket record names: they were read."""
    found: list[str] = []
    cursor: Any = b"0"
    while True:
        cursor, flat = term.wire.call("HSCAN", term.keys.tickets, cursor, "COUNT", PAGE)
        for text in flat[1::2]:
            found += records.parse(text).ids
        if cursor == b"0":
            return found


def ended_after(term: Term, floor: str) -> tuple[set[str], list[str]]:
    """What `Ends` has when the history was read to its end."""
    ends = Ends(term, floor, whole=True)
    while ends.read_page():
        pass
    return ends.ended, list(ends.replayed)


class Ends:
    """What the history knows of messages after ``floor``, as far as it was read.

    ``whole``: all of the history is read. A row is older than its message where a producer chose a later id, or the
    server's clock was set back between the two. Else only what was written from the time of ``floor`` on.
    """

    def __init__(self, term: Term, floor: str, *, whole: bool = False) -> None:
        self._term = term
        self._after = id_key(floor)
        #: Done or dead.
        self.ended: set[str] = set()
        #: Up to the floor, put back since then, and not done again.
        self.replayed: dict[str, None] = {}
        #: Of messages up to there rows are missing: the history begins later, or was trimmed while it was read.
        self.missing_to = (0, 0)
        self.whole = whole
        self._start = "-" if whole else f"{self._after[0]}-0"
        self._position = self._after

    def read_page(self) -> bool:
        """Reads on; whether there is more."""
        history = self._term.keys.history
        commands = (("-", "+", "COUNT", 1), (self._start, "+", "COUNT", ENTRIES))
        oldest, page = self._term.wire.call_many([("XRANGE", history, *words) for words in commands])
        begins = id_key(oldest[0][0].decode()) if oldest else NEVER
        if begins > self._position:
            if self._position == self._after:
                floor = id_text(self._after)
                logger.warning("the history does not reach back to %s: what was done since then may come again", floor)
            self.missing_to = begins
        for id_, fields in page:
            for row in read_entry(id_, fields[1]):
                later = id_key(row.message_id) > self._after
                if row.what in LAST:
                    self.replayed.pop(row.message_id, None)
                    if later:
                        self.ended.add(row.message_id)
                elif row.what is What.REPLAYED:
                    self.ended.discard(row.message_id)
                    if not later:
                        self.replayed[row.message_id] = None
        if page:
            last = page[-1][0].decode()
            self._start, self._position = f"({last}", id_key(last)
        return len(page) == ENTRIES
