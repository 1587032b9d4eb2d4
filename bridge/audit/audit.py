"""Proves from the history of a lane, message by message, that the promise was kept. Never writes.

`audit` reads a lane while it works, or at rest, and returns an
`AuditVerdict`; `Audit` does the same in steps, for following.
`Auditor` is the judge alone: rows in, findings out (`bridge.audit.auditor`). `Check` says what each check proves.

Nothing stands still meanwhile, and still nothing is reported that is not so. Every step that takes an entry from the
pending list writes its row in the same step. So it is read in this order:

1. The dead letters, and how far the group has read: whatever is dead has its row by now; whatever was read is pending,
   or has its last row.
2. The history, from its first entry to its end; before each page of it the entries of the stream, up to the youngest
   that the page names: then what is undone when a row is judged is known.
3. The pending list and the ticket records. What was undone at the end of 2 and is not pending now was settled in
   between, or is lost; what was done at the end of 2 and is pending now was replayed in between, or should not be.
4. The history on to its end. A message of 3 that has no new row there was not touched in between: it is as it looks.

Rows that are dropped while they are read (the history is capped) are noticed page by page; the audit then goes on as
with a history that begins there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from bridge.audit import pages
from bridge.audit.auditor import CLOCK_SKEW_MS, Auditor
from bridge.audit.checks import Check, Finding
from bridge.audit.verdict import AuditVerdict, Coverage
from bridge.routing.history import Delivery, What
from bridge.routing.ids import IdKey, id_key

if TYPE_CHECKING:
    from redis import Redis

    from bridge.routing.keys import LaneKeys

__all__ = ["Audit", "AuditVerdict", "Auditor", "Check", "Coverage", "Finding", "audit"]

#: Times that messages are looked at again which moved on between two looks.
LOOKS = 3
NO_GROUP = "the consumer group does not exist: what is undone cannot be compared with what is pending"
#: Counter of the lane -> the rows that it counts.
COUNTED = {"done": (What.DONE,), "dead": (What.DEAD, What.REFUSED), "replayed": (What.REPLAYED,)}


def audit(
    redis: Redis,
    keys: LaneKeys,
    *,
    clock_skew_ms: float = CLOCK_SKEW_MS,
    since: str | None = None,
    ticket: str | None = None,
) -> AuditVerdict:
    """Audits the lane of ``keys`` once. ``redis``: a client without ``decode_responses``. Raises redis errors.

    ``since``: entries from this id on are the lane's own, so that even the first of them is missed ("0": all); None:
    from the oldest that the history mentions. ``ticket``: only findings of this one.
    """
    return Audit(redis, keys, clock_skew_ms=clock_skew_ms, since=since, ticket=ticket).run()


class Audit:
    """One audit of one lane. ``on_rows`` gets the rows of each step, ``on_finding`` each finding, as they come."""

    def __init__(
        self,
        redis: Redis,
        keys: LaneKeys,
        *,
        clock_skew_ms: float = CLOCK_SKEW_MS,
        since: str | None = None,
        ticket: str | None = None,
        on_rows: Callable[[list[Delivery]], None] | None = None,
        on_finding: Callable[[Finding], None] | None = None,
    ) -> None:
        self._redis = pages.raw_client(redis)
        self._keys = keys
        self._clock_skew_ms = clock_skew_ms
        self._since = since
        self._only = ticket
        self._on_rows = on_rows
        self._on_finding = on_finding
        self._begun = False
        self._complete = False
        #: The entry of the history that the survey saw first; None: the pass has begun there.
        self._expected_first: str | None = None
        self._history = pages.HistoryPages(self._redis, keys.history)
        self._stream = pages.StreamPages(self._redis, keys.stream, "-")
        self._letters = pages.LetterPages(self._redis, keys.dead)
        #: Ids of messages that got rows during a comparison; None: none is going on.
        self._touched: set[str] | None = None
        #: What was reported of the lane as it is: once is enough.
        self._told: set[str] = set()
        self._notes: list[str] = []
        self.auditor = self._judge("0-0")

    def run(self) -> AuditVerdict:
        """From the first row to the last, and then against the lane as it is."""
        self.compare()
        return self.verdict()

    def verdict(self) -> AuditVerdict:
        """The verdict on what was read so far."""
        return AuditVerdict.of(self.auditor, self._coverage(), tuple(self._notes))

    # -- the history ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Looks how far the history reaches back."""
        redis, keys = self._redis, self._keys
        # The rows that are counted at this moment, and no later ones: or a late row would make up for one that was
        # dropped.
        counts, first, last = pages.counted(redis, keys)
        if first is None:
            # Nothing to begin with; what its first row will be is not known yet.
            return
        group = pages.group_of(redis, keys)
        rows, oldest = self._survey(last)
        have = {name: sum(rows[what] for what in whats) for name, whats in COUNTED.items()}
        self._complete = all(have[name] >= counts.get(name, 0) for name in ("done", "dead"))
        self._begun = True
        self._expected_first = first
        self._history = pages.HistoryPages(redis, keys.history)
        since = self._since
        if since is None:
            known = [key for key in (oldest, pages.oldest_pending(redis, keys)) if key is not None]
            read_to = None if group is None else id_key(group.read_to)
            since = _id(min(known) if known else (0, 0) if read_to is None else (read_to[0], read_to[1] + 1))
        self.auditor = self._judge(since)
        if self._complete:
            self._stream = pages.StreamPages(redis, keys.stream, since)
            # Only done and dead are counted one by one: what was dropped may have been failures alone.
            if not pages.is_whole(redis, keys.history):
                self.auditor.begins(id_key(first)[0])
            return
        self._cut(id_key(first)[0], replays_hidden=have["replayed"] < counts.get("replayed", 0))

    def advance(self) -> bool:
        """Takes in the next page of the history; whether there was one."""
        if not self._begun:
            self._begin()
        if not self._begun:
            return False
        steps = self._history.next()
        if self._expected_first is not None:
            # The survey's reading and this one are two: in between rows may have been dropped.
            if self._history.first != self._expected_first:
                self._cut(id_key(self._history.first)[0] if self._history.first else _now_ms(self._redis))
            self._expected_first = None
        elif self._history.torn_ms is not None:
            self._cut(self._history.torn_ms)
        for id_ in self._history.unreadable:
            text = f"entry {id_} of the history cannot be read: nothing is proven of what it told"
            self.auditor.report(Check.DISAGREEING, self._only or "", "", text)
        self._history.unreadable.clear()
        if not steps:
            return False
        self._read_entries(max((id_key(row.message_id) for rows in steps for row in rows), default=(0, 0)))
        for rows in steps:
            if self._on_rows is not None:
                # Before they are judged: then the ticket is known of those rows that do not name it.
                self._on_rows([row if row.ticket else self._named(row) for row in rows])
            self.auditor.step(rows)
            if self._touched is not None:
                self._touched.update(row.message_id for row in rows)
        return True

    def _named(self, row: Delivery) -> Delivery:
        return replace(row, ticket=self.auditor.ticket_of(row.message_id))

    def wait(self, timeout_ms: int) -> None:
        """Waits until the history goes on, or ``timeout_ms`` have passed."""
        self._redis.xread({self._keys.history: self._history.at or "0-0"}, count=1, block=timeout_ms)

    # -- the lane as it is ---------------------------------------------------------------------------------------

    def compare(self) -> None:
        """Reads the history to its end, and compares it with the lane as it is now; nothing while there is no row."""
        for _ in range(LOOKS):
            if not self._compare_once():
                return

    def _compare_once(self) -> bool:
        """One comparison; whether there are messages that moved on, so that another one is needed for them."""
        redis, keys = self._redis, self._keys
        self._letters.read()
        group = pages.group_of(redis, keys)
        while self.advance():
            pass
        if not self._begun:
            return False
        auditor = self.auditor
        if group is None:
            self._note(NO_GROUP)
            return False
        self._read_entries(id_key(group.read_to))
        named = pages.named_by_records(redis, keys)
        try:
            pending = set(pages.pending_ids(redis, keys))
        except ResponseError as exc:
            if "NOGROUP" not in str(exc):
                raise
            self._note(NO_GROUP)
            return False
        # A group that was destroyed is made anew by the leader: it says how far it has read when all is pending again.
        after = pages.group_of(redis, keys)
        read_to = min(id_key(group.read_to), id_key(after.read_to if after is not None else "0-0"))
        missing = [
            id_ for id_ in auditor.undone if id_ not in pending and id_ not in self._told and id_key(id_) <= read_to
        ]
        surplus = self._finished_but_here(pending | named.keys())
        orphans = [pair for pair in self._letters.letters.items() if self._has_no_row(*pair)]
        if not missing and not surplus and not orphans:
            return False
        self._touched = set()
        while self.advance():
            pass
        touched, self._touched = self._touched, None
        for id_ in missing:
            if id_ not in touched and auditor.is_undone(id_):
                self._told.add(id_)
                auditor.lost(id_, "; the record of its ticket names it as in flight" if id_ in named else "")
        for id_ in surplus:
            if id_ in touched:
                continue
            self._told.add(id_)
            if id_ in pending:
                auditor.still_pending(id_)
            else:
                text = "it has its last row, and the record of its ticket still names it"
                auditor.report(Check.DISAGREEING, named[id_], id_, text)
        self._report_letters(orphans)
        return bool(touched)

    def _finished_but_here(self, ids: set[str]) -> list[str]:
        """Those of ``ids`` (pending, or in a record) that have their last row by the history."""
        found = []
        for id_ in ids:
            key = id_key(id_)
            if not self.auditor.is_undone(id_) and self.auditor.covers(key) and key <= self._stream.to:
                found.append(id_)
        # Of an entry that was deleted from the stream there need be no row yet.
        here = pages.present(self._redis, self._keys.stream, found)
        return [id_ for id_ in found if id_ in here and id_ not in self._told]

    def _has_no_row(self, letter_id: str, message_id: str) -> bool:
        """Whether the row of a dead letter ought to be here and is not."""
        if letter_id in self._told or self.auditor.is_dead(message_id):
            return False
        cut_ms = self.auditor.cut_ms
        return cut_ms is None or id_key(letter_id)[0] > cut_ms

    def _report_letters(self, orphans: list[tuple[str, str]]) -> None:
        # Replayed or dropped since then, it is gone.
        here = pages.present(self._redis, self._keys.dead, [letter_id for letter_id, _ in orphans])
        for letter_id, message_id in orphans:
            if letter_id not in here:
                self._letters.letters.pop(letter_id)
            elif self._has_no_row(letter_id, message_id):
                self._told.add(letter_id)
                text = f"it has a dead letter ({letter_id}), and the history does not know of its death"
                self.auditor.report(Check.DISAGREEING, self.auditor.ticket_of(message_id), message_id, text)

    # -- parts ---------------------------------------------------------------------------------------------------

    def _judge(self, since: str) -> Auditor:
        return Auditor(clock_skew_ms=self._clock_skew_ms, since=since, only=self._only, on_finding=self._on_finding)

    def _survey(self, last: str) -> tuple[Counter[What], IdKey | None]:
        """Rows of each kind up to the entry ``last``, and the oldest message that they name."""
        rows: Counter[What] = Counter()
        oldest: IdKey | None = None
        read = pages.HistoryPages(self._redis, self._keys.history, last)
        while steps := read.next():
            for step in steps:
                rows.update(row.what for row in step)
                lowest = min((id_key(row.message_id) for row in step), default=oldest)
                if lowest is not None and (oldest is None or lowest < oldest):
                    oldest = lowest
        return rows, oldest

    def _cut(self, at_ms: int, *, replays_hidden: bool = True) -> None:
        self._complete = False
        self.auditor.cut(at_ms, replays_hidden=replays_hidden)
        start = (int(at_ms + self._clock_skew_ms), 0)
        self._stream = pages.StreamPages(self._redis, self._keys.stream, _id(start))

    def _read_entries(self, to: IdKey) -> None:
        for id_, ticket in self._stream.up_to(to):
            self.auditor.entry(id_, ticket)

    def _coverage(self) -> Coverage:
        from_ = self.auditor.covered_from
        oldest = self._redis.execute_command("XRANGE", self._keys.stream, "-", "+", "COUNT", 1)
        older = bool(oldest) and id_key(oldest[0][0].decode()) < from_
        return Coverage(self._complete, _id(from_), older)

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)


def _id(key: IdKey) -> str:
    return f"{key[0]}-{key[1]}"


def _now_ms(redis: Redis) -> int:
    seconds, microseconds = redis.time()
    return int(seconds) * 1000 + int(microseconds) // 1000
