"""Repairs a lane's group: it was destroyed or set back, or its stream or the master's name in it was deleted.

The pending list is lost, and perhaps the position of the group too. This is still known:

- the *floor*: all entries up to it are done or dead;
- the ticket records of messages that are in flight, await a retry or are parked;
- the history, which names the messages that were done or dead after the floor;
- the dead letters, also where the history is off;
- the sorted sets of delayed and late messages, which may be older than the floor.

So an entry after the floor is undone unless the history, or a letter, says that it is done or dead. All undone entries
become pending under the master's name, up to the newest entry that a record, the history or a letter names. Later
entries were not begun, and are read as new ones.

If the history does not reach back to the floor, some done messages run again. That is logged.

The stream may have been deleted and filled again with smaller ids than before: after one entry with an id far ahead of
the clock, or with ids of the producer's own. Then the floor, the records and the history name ids beyond the newest one
that the stream ever gave out. They say nothing about its entries, which would never be read: all of them are undone.
If the group is still there (a floor that was noted before a failover lost the last writes, ids that were set back by
hand), its pending list says what was read, and the history goes on saying what is done.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from bridge.leader.stream.delay_sets import due_times, ids_in
from bridge.leader.stream.pending import NEVER
from bridge.routing import records
from bridge.routing.batch import Batch
from bridge.routing.history import LAST, What, read_entry, rows_in
from bridge.routing.ids import can_be_id, id_key, id_text, younger_than
from bridge.routing.retention import letters
from bridge.routing.transitions import adopt, advance, last_id, set_read_to, survey
from bridge.routing.transitions import floor as note_floor

if TYPE_CHECKING:
    from bridge.leader.step.term import Term

logger = get_logger(__name__)

#: Entries in one page.
PAGE = 1000
#: Entries of the history in one page: each may have hundreds of rows.
ENTRIES = 20
#: Dead letters in one page. The server reads the whole letter, with its payload and traceback.
LETTERS = 100
#: Position of a group that is being repaired. A leader that dies half way leaves this position behind.
HALF_MADE = "0-1"


def repair_group(term: Term, floor: str, read_to: str, why: str) -> str | None:
    """Makes all undone entries of the group pending. ``why``: what happened to the group, for the log.

    ``read_to``: position of the group. Returns the floor; None: it is not known any more.
    """
    keys = term.keys
    logger.error("the group %s of %s %s: repairing it from %s on", keys.group, keys.stream, why, floor)
    ended, replayed = ended_after(term, floor)
    named = _named_in_records(term)
    made_again = id_key(read_to) <= id_key(HALF_MADE)
    newest = max(map(id_key, {floor, *ended, *named, *replayed, *([] if made_again else [read_to])}))
    for at in range(0, len(replayed), PAGE):
        adopt(term.redis, term.leadership, term.master, replayed[at : at + PAGE])
    # Delayed and late messages may be older than the floor.
    delayed_name = keys.delayed_consumer(term.master)
    for key, name in ((keys.late, term.master), (keys.delayed, delayed_name)):
        for ids in ids_in(term, key):
            adopt(term.redis, term.leadership, name, ids)
            newest = max(newest, *map(id_key, ids))
    last = id_key(last_id(term.redis, keys.stream))
    if is_another := newest > last:
        begin = [one for one in (floor, read_to) if id_key(one) <= last and not made_again]
        start = max(begin, key=id_key, default="0-0")
        text = "%s is another stream, or its ids were set back: %s was known, its newest id is %s; undone after %s"
        logger.warning(text, keys.stream, id_text(newest), id_text(last), start)
        # The history is about the entries of the stream before.
        ended = set() if made_again else ended_after(term, start)[0]
        floor, newest = start, last
    upto = id_text(newest)
    start, end = younger_than(floor, upto)
    undone = skipped = 0
    for page in survey(term.redis, keys.stream, start, end):
        delayed = due_times(term, keys.delayed, [id_ for id_, _ in page])
        mine = [id_ for id_, _ in page if id_ not in ended and id_ not in delayed]
        skipped += len(page) - len(mine) - len(delayed)
        if mine:
            undone += adopt(term.redis, term.leadership, term.master, mine)
    set_read_to(term.redis, term.leadership, upto)
    if is_another:
        note_floor(term.redis, term.leadership, "0-0")
    logger.error("%d entries up to %s are undone, %d were done or dead before", undone, upto, skipped)
    batch = Batch()
    batch.count("regrouped")
    advance(term.redis, term.leadership, "", batch)
    return None if is_another else floor


def _named_in_records(term: Term) -> list[str]:
    """Ids in ticket records. These entries were read."""
    found: list[str] = []
    cursor: Any = b"0"
    while True:
        cursor, flat = term.wire.call("HSCAN", term.keys.tickets, cursor, "COUNT", PAGE)
        for text in flat[1::2]:
            # One that cannot be read is replaced later, when the records are read.
            with suppress(ValueError):
                found += records.parse(text).ids
        if cursor == b"0":
            return found


def ended_after(term: Term, floor: str) -> tuple[set[str], list[str]]:
    """The ended and the replayed messages, from `Ends` after it read the history to its end, and from the letters."""
    ends = Ends(term, floor, whole=True)
    while ends.read_page():
        pass
    if ends.begins_late:
        logger.warning("the history does not reach back to %s: messages done since then may run again", floor)
    dead = _dead(term)
    # Letters outlive a stream that was deleted: those beyond its newest id say nothing about this one.
    span = id_key(floor), id_key(last_id(term.redis, term.keys.stream))
    ended = ends.ended | {id_ for id_ in dead if span[0] < id_key(id_) <= span[1]}
    return ended, [id_ for id_ in ends.replayed if id_ not in dead]


def _dead(term: Term) -> set[str]:
    """The messages that have a dead letter. A replay deletes the letter in its step."""
    found: set[str] = set()
    number, last = LETTERS, ""
    while number == LETTERS:
        ids, last, number = letters(term.redis, term.keys.dead, last, LETTERS)
        # A letter may have been written by hand, with any text in place of the id.
        found.update(id_ for id_ in ids if can_be_id(id_))
    return found


class Ends:
    """Which messages ended after ``floor``, as far as the history was read.

    ``whole``: read the whole history; otherwise only rows from the time of ``floor`` on. A row may be older than its
    message: a producer chose an id in the future, or the server's clock was set back between the two. ``counted_to``:
    the last entry whose rows are counted in `rows`.
    """

    def __init__(self, term: Term, floor: str, *, whole: bool = False, counted_to: str = "") -> None:
        self._term = term
        self._after = id_key(floor)
        #: Messages after the floor that are done or dead.
        self.ended: set[str] = set()
        #: Messages up to the floor that were replayed and did not end again.
        self.replayed: dict[str, None] = {}
        #: Up to this key, rows may be missing: the history begins later, or was trimmed while it was read.
        self.missing_to = (0, 0)
        #: Whether the oldest row is younger than ``floor``. Then all rows were read.
        self.begins_late = False
        #: How many rows of each kind were read, up to ``counted_to``.
        self.rows: Counter[What] = Counter()
        self._counted_to = id_key(counted_to) if counted_to else (0, 0)
        self.whole = whole
        self._start = "-" if whole else f"{self._after[0]}-0"
        self._position = self._after

    def read_page(self) -> bool:
        """Reads the next page. Returns whether there may be more."""
        history = self._term.keys.history
        commands = (("-", "+", "COUNT", 1), (self._start, "+", "COUNT", ENTRIES))
        oldest, page = self._term.wire.call_many([("XRANGE", history, *words) for words in commands])
        begins = id_key(oldest[0][0].decode()) if oldest else NEVER
        if begins > self._position:
            self.begins_late = self.begins_late or self._position == self._after
            self.missing_to = begins
        for id_, fields in page:
            data = rows_in(fields)
            is_counted = id_key(id_.decode()) <= self._counted_to
            # Somebody else's entry has no rows.
            for row in read_entry(id_, data) if data else ():
                self.rows[row.what] += is_counted
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
