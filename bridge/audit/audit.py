"""Checks the history of a lane, message by message, for broken promises. Never writes.

`audit` reads a lane, also while it works, and returns an `AuditVerdict`. `Audit` does so in steps, for --follow.
`Auditor` only checks: it gets rows and reports findings (`bridge.audit.auditor`). `Check` says what each check proves.

The lane may change during an audit. The order of the reads avoids false violations, since the step that takes an entry
out of the pending list also writes the entry's row:

1. The dead letters, and the last entry that the group has read. Each dead message has its row by now. Each message that
   was read is pending or has its last row.
2. The history, from its first entry to its end. Before each page, the entries of the stream up to the youngest that the
   page names. So the undone messages are known when a row is checked.
3. The pending list and the ticket records. A message that was undone after 2 and is not pending now was settled in
   between, or it is lost. A message that was done after 2 and is pending now was replayed in between, or it is wrong.
4. The new rows of the history. A message of 3 without a new row did not change in between: the finding is true.

The history has a bounded length, so rows may be removed while they are read. This is noticed at each page. The audit
then goes on as with a history that begins there.
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
from bridge.routing.history import COUNTED, COUNTED_AGAIN, ROWS_AGAIN, Delivery, What
from bridge.routing.ids import IdKey, id_key, id_text

if TYPE_CHECKING:
    from redis import Redis

    from bridge.audit.wanted import Wants
    from bridge.routing.keys import LaneKeys

__all__ = ["Audit", "AuditVerdict", "Auditor", "Check", "Coverage", "Finding", "audit"]

#: Comparisons with the lane, at most. Messages that changed during one are compared again.
MAX_COMPARISONS = 3
NO_GROUP = "the consumer group does not exist: undone messages cannot be compared with pending entries"


def audit(
    redis: Redis,
    keys: LaneKeys,
    *,
    clock_skew_ms: float = CLOCK_SKEW_MS,
    since: str | None = None,
    ticket: str | None = None,
    wants: Wants | None = None,
) -> AuditVerdict:
    """Audits the lane of ``keys`` once. ``redis``: a client without ``decode_responses``. Raises redis errors.

    ``since``: the lane's first entry; all entries from it on must be in the history ("0": all of the stream). None: the
    oldest message that the history names. ``ticket``: report findings of this ticket, and those whose ticket is
    not known. ``wants``: which messages
    the lane must not have left out (`bridge.audit.wanted`); None: that is not checked.
    """
    return Audit(redis, keys, clock_skew_ms=clock_skew_ms, since=since, ticket=ticket, wants=wants).run()


class Audit:
    """One audit of one lane. ``on_rows`` is called with the rows of each step, ``on_finding`` with each finding."""

    def __init__(
        self,
        redis: Redis,
        keys: LaneKeys,
        *,
        clock_skew_ms: float = CLOCK_SKEW_MS,
        since: str | None = None,
        ticket: str | None = None,
        wants: Wants | None = None,
        on_rows: Callable[[list[Delivery]], None] | None = None,
        on_finding: Callable[[Finding], None] | None = None,
    ) -> None:
        self._redis = pages.raw_client(redis)
        self._keys = keys
        self._clock_skew_ms = clock_skew_ms
        self._since = since
        self._only = ticket
        self._wants = wants
        self._on_rows = on_rows
        self._on_finding = on_finding
        self._begun = False
        #: Of a lane without a history: how many messages are pending.
        self._pending = 0
        self._complete = False
        #: The first entry of the history, as the survey saw it. None: the first page was read and began there.
        self._expected_first: str | None = None
        self._history = pages.HistoryPages(self._redis, keys.history)
        self._stream = pages.StreamPages(self._redis, keys.stream, "-")
        self._letters = pages.LetterPages(self._redis, keys.dead)
        #: During a comparison: ids of messages that got rows. None: no comparison is running.
        self._touched: set[str] | None = None
        #: Ids of messages that were reported. Each is reported once.
        self._reported: set[str] = set()
        #: The last comparison found no group.
        self._lacks_group = False
        self.auditor = self._new_auditor("0-0")

    def run(self) -> AuditVerdict:
        """Checks all rows, and then compares the history with the lane."""
        self.compare()
        return self.result()

    def result(self) -> AuditVerdict:
        """The result of what was read so far."""
        checks = [check for check in Check if check is not Check.WITHHELD or self._wants is not None]
        verdict = AuditVerdict.of(self.auditor, self._coverage(), checks, (NO_GROUP,) if self._lacks_group else ())
        return verdict if self._begun else replace(verdict, undone=self._pending)

    # -- the history ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Finds out how far back the history reaches."""
        redis, keys = self._redis, self._keys
        # Counters and the last entry are read at one moment. A later row would make up for a missing one.
        counts, first, last = pages.counted(redis, keys)
        if first is None:
            # The history is empty: its first row is not known yet.
            return
        group = pages.group_of(redis, keys)
        rows, oldest = self._survey(last)
        have = {name: sum(rows[what] for what in whats) for name, whats in COUNTED.items()}
        # A history that was off for a while is whole, and lacks rows that were counted.
        whole = pages.is_whole(redis, keys.history)
        self._complete = whole is not False and all(have[name] >= counts.get(name, 0) for name in COUNTED)
        self._begun = True
        self._expected_first = first
        self._history = pages.HistoryPages(redis, keys.history)
        since = self._since
        if since is None:
            known = [key for key in (oldest, pages.oldest_pending(redis, keys)) if key is not None]
            read_to = None if group is None else id_key(group.read_to)
            since = id_text(min(known) if known else (0, 0) if read_to is None else (read_to[0], read_to[1] + 1))
        self.auditor = self._new_auditor(since)
        if self._complete:
            self._stream = pages.StreamPages(redis, keys.stream, since)
            if sum(counts.get(name, 0) for name in COUNTED_AGAIN) > sum(rows[what] for what in ROWS_AGAIN):
                # The history was off while a message failed or was cut off, at its beginning or in between.
                self.auditor.uncounted_rows_missing(id_key(last)[0])
            elif whole is None:
                # The counters cover last rows and replays. Rows of failures and delays may be missing.
                self.auditor.uncounted_rows_missing(id_key(first)[0])
            return
        self._rows_missing(id_key(first)[0], replays_hidden=have["replayed"] < counts.get("replayed", 0))

    def advance(self) -> bool:
        """Checks the next page of the history. False: there is none."""
        if not self._begun:
            self._begin()
        if not self._begun:
            return False
        steps = self._history.next()
        if self._expected_first is not None:
            # Rows may have been removed between the survey and this first page.
            if self._history.first != self._expected_first:
                self._rows_missing(id_key(self._history.first)[0] if self._history.first else _now_ms(self._redis))
            self._expected_first = None
        elif self._history.missing_until_ms is not None:
            self._rows_missing(self._history.missing_until_ms)
        for id_ in self._history.unreadable:
            text = f"entry {id_} of the history cannot be read: nothing is proven about its rows"
            self.auditor.report(Check.DISAGREEING, "", "", text)
        self._history.unreadable.clear()
        if not steps:
            return False
        self._read_entries(max((id_key(row.message_id) for rows in steps for row in rows), default=(0, 0)))
        for rows in steps:
            if self._on_rows is not None:
                # Before the check, which forgets the ticket of a message that ends.
                self._on_rows([row if row.ticket else self._with_ticket(row) for row in rows])
            self.auditor.step(rows)
            if self._touched is not None:
                self._touched.update(row.message_id for row in rows)
        return True

    def _with_ticket(self, row: Delivery) -> Delivery:
        return replace(row, ticket=self.auditor.ticket_of(row.message_id))

    def wait(self, timeout_ms: int) -> None:
        """Waits until the history has a new entry, or ``timeout_ms`` have passed."""
        self._redis.xread({self._keys.history: self._history.at or "0-0"}, count=1, block=timeout_ms)

    # -- the comparison with the lane ----------------------------------------------------------------------------

    def compare(self) -> None:
        """Reads the history to its end, and compares it with the lane. Does nothing while the history is empty."""
        for _ in range(MAX_COMPARISONS):
            if not self._compare_once():
                return

    def _compare_once(self) -> bool:
        """One comparison. True: some messages changed during it, so another comparison is needed."""
        redis, keys = self._redis, self._keys
        self._letters.read()
        group = pages.group_of(redis, keys)
        while self.advance():
            pass
        if not self._begun:
            # There is no history, and nothing else to compare.
            self._pending = 0 if group is None else group.pending
            return False
        auditor = self.auditor
        if group is None:
            self._lacks_group = True
            return False
        self._read_entries(id_key(group.read_to))
        named = pages.named_by_records(redis, keys)
        try:
            pending = set(pages.pending_ids(redis, keys))
        except ResponseError as exc:
            if "NOGROUP" not in str(exc):
                raise
            self._lacks_group = True
            return False
        self._lacks_group = False
        # The leader makes a destroyed group again, and sets its last id when all entries are pending again.
        after = pages.group_of(redis, keys)
        read_to = min(id_key(group.read_to), id_key(after.read_to if after is not None else "0-0"))
        missing = [
            id_ for id_ in auditor.undone if id_ not in pending and id_ not in self._reported and id_key(id_) <= read_to
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
                self._reported.add(id_)
                auditor.lost(id_, "; the record of its ticket says that it is in flight" if id_ in named else "")
        for id_, ticket in surplus.items():
            if id_ in touched:
                continue
            self._reported.add(id_)
            if id_ in pending:
                auditor.still_pending(id_, ticket)
            else:
                text = "it has its last row, and the record of its ticket still names it"
                auditor.report(Check.DISAGREEING, named[id_], id_, text)
        self._report_letters(orphans)
        return bool(touched)

    def _finished_but_here(self, ids: set[str]) -> dict[str, str]:
        """Those of ``ids`` (pending, or in a record) that have their last row in the history -> ticket of the entry."""
        found = []
        for id_ in ids:
            key = id_key(id_)
            if not self.auditor.is_undone(id_) and self.auditor.covers(key) and key <= self._stream.to:
                found.append(id_)
        # An entry that was deleted from the stream may have no row yet.
        here = pages.tickets_of(self._redis, self._keys.stream, found)
        return {id_: ticket for id_, ticket in here.items() if id_ not in self._reported}

    def _has_no_row(self, letter_id: str, message_id: str) -> bool:
        """Whether the history should have a row for a dead letter, and has none."""
        if letter_id in self._reported or self.auditor.is_dead(message_id):
            return False
        until_ms = self.auditor.missing_until_ms
        return until_ms is None or id_key(letter_id)[0] > until_ms

    def _report_letters(self, orphans: list[tuple[str, str]]) -> None:
        # A letter that was replayed or dropped since then is not reported.
        letter_ids = [letter_id for letter_id, _ in orphans]
        here = pages.tickets_of(self._redis, self._keys.dead, letter_ids, pages.ticket_of_letter)
        for letter_id, message_id in orphans:
            if letter_id not in here:
                self._letters.letters.pop(letter_id)
            elif self._has_no_row(letter_id, message_id):
                self._reported.add(letter_id)
                text = f"it has a dead letter ({letter_id}), and the history has no row of its death"
                self.auditor.report(Check.DISAGREEING, here[letter_id], message_id, text)

    # -- parts ---------------------------------------------------------------------------------------------------

    def _new_auditor(self, since: str) -> Auditor:
        return Auditor(clock_skew_ms=self._clock_skew_ms, since=since, only=self._only, on_finding=self._on_finding)

    def _survey(self, last: str) -> tuple[Counter[What], IdKey | None]:
        """(number of rows of each kind up to the entry ``last``, the oldest message that they name)."""
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

    def _rows_missing(self, until_ms: int, *, replays_hidden: bool = True) -> None:
        self._complete = False
        self.auditor.rows_missing(until_ms, replays_hidden=replays_hidden)
        start = (int(until_ms + self._clock_skew_ms), 0)
        self._stream = pages.StreamPages(self._redis, self._keys.stream, id_text(start))

    def _read_entries(self, to: IdKey) -> None:
        wants = self._wants
        for id_, ticket, fields in self._stream.up_to(to):
            self.auditor.entry(id_, ticket, wanted=wants is not None and wants(fields))

    def _coverage(self) -> Coverage:
        from_ = self.auditor.covered_from
        oldest = self._redis.execute_command("XRANGE", self._keys.stream, "-", "+", "COUNT", 1)
        older = bool(oldest) and id_key(oldest[0][0].decode()) < from_
        return Coverage(self._complete, id_text(from_), older)


def _now_ms(redis: Redis) -> int:
    seconds, microseconds = redis.time()
    return int(seconds) * 1000 + int(microseconds) // 1000
