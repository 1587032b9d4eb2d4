"""Checks the rows of a history, step by step, and reports violations. Does no I/O.

The rows of a ticket are in the order in which the leader settled its deliveries. This order is checked.
Entries of the stream are passed in before the first row that may concern them. They show which messages must come
first. So a skipped message is found even if it never gets a row.

Memory: the messages that are undone at a time, a few numbers for each ticket, and the ids of dead messages. Never the
whole history.

A history has a bounded length, so its oldest rows may be missing. `Auditor.rows_missing` says until when. Then the
absence of an older row proves nothing. A message is *covered* when it is younger than that: all its rows were written
later, so none of them is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from bridge.audit.checks import Check, Finding
from bridge.audit.delivery_checks import DeliveryChecks
from bridge.audit.findings import EXAMPLES, Findings
from bridge.audit.messages import Messages, NextAttempt
from bridge.audit.missing_rows import MissingRows
from bridge.routing.history import Delivery, What
from bridge.routing.ids import IdKey, id_key, late_place
from bridge.routing.numbers import duration

#: How far the clocks of two machines may differ, in ms.
CLOCK_SKEW_MS = 100
#: How far a leader's knowledge of the server's clock may be off, in ms. It notices no smaller step of it.
CLOCK_KNOWN_MS = 1000
#: How far fences may be ahead of the server's clock, in us: one for each fence that a script gives out.
FENCES_AHEAD_US = 50_000
#: Larger than every fence.
UNBOUNDED = 2**63

_RAN = (What.DONE, What.DROPPED, What.FAILED, What.NACKED, What.DEAD)


class Auditor:
    """The audit of one history.

    Call in this order:

    1. `rows_missing`, if the first rows of the history are missing.
    2. For each step of the history: `entry` (optional) for the stream's entries, in id order, up to the largest id that
       the step names; then `step` with its rows.
    3. `at_rest` with the pending messages, when the lane is at rest.

    ``since``: older entries do not belong to the lane. ``only``: report findings of this ticket, and those whose
    ticket is not known. ``on_finding``: called with each finding, also with those that are not kept.
    """

    def __init__(
        self,
        *,
        clock_skew_ms: float = CLOCK_SKEW_MS,
        since: str = "0-0",
        examples: int = EXAMPLES,
        only: str | None = None,
        on_finding: Callable[[Finding], None] | None = None,
    ) -> None:
        skew_us = round(clock_skew_ms * 1000)
        self._findings = Findings(examples=examples, only=only, on_finding=on_finding)
        self._missing = MissingRows(since, skew_us)
        self._messages = Messages()
        self._check = DeliveryChecks(self._messages, self._missing, self._findings, skew_us)
        self._most_stale = examples
        #: Rows of each kind.
        self.rows: Counter[What] = Counter()
        self.steps = 0
        self.first_ms = 0
        self.last_ms = 0
        #: A few executions of frozen processes, whose effects were refused.
        self.stale: list[Delivery] = []

    # -- results -------------------------------------------------------------------------------------

    @property
    def counts(self) -> Counter[Check]:
        """The number of findings of each check."""
        return self._findings.counts

    @property
    def examples(self) -> list[Finding]:
        """The first findings of each check."""
        return self._findings.examples

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.counts

    @property
    def repeats(self) -> int:
        """Deliveries beyond the first of a message. A row explains each of them."""
        return self._check.repeats

    @property
    def tickets(self) -> int:
        """The number of tickets with an entry or a row."""
        return len(self.ticket_ids)

    @property
    def ticket_ids(self) -> Collection[str]:
        """Those tickets."""
        return self._messages.trails.keys()

    @property
    def missing_until_ms(self) -> int | None:
        """Rows written before this (Unix ms by the server's clock) may be missing; None: none is."""
        return self._missing.until_ms

    @property
    def undone(self) -> Collection[str]:
        """Ids of the messages without a last row, among the entries and rows that were passed in."""
        return self._messages.undone.keys()

    def is_undone(self, id_: str) -> bool:
        """Whether the message is among `undone`."""
        return id_ in self._messages.undone

    def is_dead(self, id_: str) -> bool:
        """Whether the message is dead or refused, and was not replayed."""
        return id_ in self._messages.dead

    def ticket_of(self, id_: str) -> str:
        """The ticket of an undone message; '' when it is not known."""
        return self._messages.ticket_of(id_)

    @property
    def covered_from(self) -> IdKey:
        """All rows of messages from this id on are here."""
        return self._missing.covered_from

    def covers(self, key: IdKey) -> bool:
        """Whether all rows of the message with this id are here, if there are any."""
        return self._missing.covers(key)

    # -- input -------------------------------------------------------------------------------------

    def rows_missing(self, until_ms: int, *, replays_hidden: bool = True) -> None:
        """Rows that were written up to ``until_ms`` may be missing. Called before the first step, and again when rows
        were removed before they were read. ``replays_hidden``: rows of replays may be missing.
        """
        self._missing.add(until_ms, replays_hidden=replays_hidden)
        self._messages.forget()

    def uncounted_rows_missing(self, until_ms: int) -> None:
        """All last rows and all replays are here, but rows of other attempts and of delays that were written up to
        ``until_ms`` may be missing. Called before the first step.
        """
        self._missing.uncounted_until_ms = until_ms

    def entry(self, id_: str, ticket: str | None, *, wanted: bool = False) -> None:
        """Adds an entry that the group has read. ``ticket``: None when the entry has no valid ticket. ``wanted``: the
        lane must not leave it out.
        """
        key = id_key(id_)
        messages = self._messages
        messages.entries_to = key
        if not self.covers(key):
            return
        if wanted:
            messages.wanted.add(id_)
        if ticket is None:
            messages.undone[id_] = None
            return
        trail = messages.trail(ticket)
        messages.undone[id_] = trail
        if self._missing.begins_here(key):
            trail.undone.append(id_)

    def step(self, rows: Sequence[Delivery]) -> None:
        """Checks the rows of one step, which one entry of the history holds."""
        self.steps += 1
        returned: list[Delivery] = []
        stale: list[Delivery] = []
        for row in rows:
            self.rows[row.what] += 1
            if row.what is What.STALE:
                stale.append(row)
            elif row.what is What.REFUSED:
                self._refused(row)
            elif row.what is What.REPLAYED:
                self._replayed(row)
            elif row.what in (What.LEFT_OUT, What.SKIPPED, What.CANCELLED):
                self._left_out(row)
            elif row.what in (What.DELAYED, What.DUE):
                self._delayed(row)
            else:
                self._delivered(row)
                if row.what is What.RETURNED:
                    returned.append(row)
        if returned:
            self._note_returned(rows, returned)
        for row in stale:
            # Last: a message that was given back in this step must not have run either.
            self._stale(row)
        if rows:
            self.first_ms = self.first_ms or rows[0].written_ms
            self.last_ms = rows[-1].written_ms

    def at_rest(self, pending: Iterable[str]) -> None:
        """Called when the lane is at rest, with the pending messages. Every other undone message is lost. A done
        message must not be pending.
        """
        waiting = set(pending)
        messages = self._messages
        for id_ in list(messages.undone):
            if id_ not in waiting:
                self.lost(id_)
        for id_ in waiting:
            if id_ not in messages.undone and self.covers(id_key(id_)) and id_key(id_) <= messages.entries_to:
                self.still_pending(id_)

    def lost(self, id_: str, more: str = "") -> None:
        """Reports an undone message that is not pending."""
        text = "the group has read it; it is neither pending nor done nor dead"
        if id_ in self._messages.attempts:
            text = "it had been delivered, is not done or dead, and is not pending"
        self.report(Check.LOST, self.ticket_of(id_), id_, text + more)

    def still_pending(self, id_: str, ticket: str = "") -> None:
        """Reports a pending message that has its last row. Its ticket is not kept here any more."""
        self.report(Check.DISAGREEING, ticket, id_, "it has its last row, and is still pending")

    def report(self, check: Check, ticket: str, id_: str, text: str) -> None:
        """Reports a finding."""
        self._findings.report(check, ticket, id_, text)

    # -- rows ----------------------------------------------------------------------------------------------------

    def _delivered(self, row: Delivery) -> None:
        id_ = row.message_id
        key = id_key(id_)
        messages = self._messages
        trail = messages.trail(row.ticket)
        known = messages.undone.get(id_)
        was_replayed = trail.replayed is not None and id_ in trail.replayed
        new = id_ not in messages.undone
        if known is not None and known is not trail:
            text = f"its row names ticket {row.ticket!r}, its entry {known.name!r}"
            self.report(Check.DISAGREEING, row.ticket, id_, text)
        if row.fence and messages.is_put_off(id_):
            self.report(Check.EARLY, row.ticket, id_, f"{row.what.value}, while it was delayed and not due")
        if new and not was_replayed:
            self._check.last(trail, row, key)
        if row.what in _RAN and not was_replayed:
            self._check.order(trail, row, key)
        self._check.attempt(row, key)
        self._check.fence(trail, row)
        self._check.times(trail, row)
        if row.what in _RAN and key > trail.last and id_ not in messages.delayed:
            trail.last = key
        if row.what is What.DONE or row.what is What.DROPPED or row.what is What.DEAD:
            messages.finish(id_)
            if row.what is What.DEAD:
                messages.dead.add(id_)
            return
        if new:
            messages.undone[id_] = trail
        if self._missing.begins_here(key):
            if new:
                trail.add(id_, key)
        elif self._missing.hides_replay(key):
            if new:
                # The row of a replay may be missing. A replayed message may be late.
                trail.replay(id_, UNBOUNDED)
        elif row.what in _RAN:
            # Rows of a delay may be missing, so it may have come late. But now it was begun, and stays the first.
            trail.add(id_, key)

    def _refused(self, row: Delivery) -> None:
        """An entry that could not be processed. Its ticket does not wait for it, so it breaks no order."""
        id_ = row.message_id
        if id_ in self._messages.dead:
            self.report(Check.REPEATED, row.ticket, id_, "it was refused, and was dead already")
        self._messages.finish(id_)
        self._messages.dead.add(id_)

    def _left_out(self, row: Delivery) -> None:
        """An entry that the lane did not want, skipped, or that was cancelled. It breaks no order."""
        if row.message_id in self._messages.dead:
            self.report(Check.REPEATED, row.ticket, row.message_id, f"it was {row.what.value}, and was dead already")
        if row.what is What.LEFT_OUT and row.message_id in self._messages.wanted:
            text = "it was left out, and the lane wants it, by its filter and its tasks as they are now"
            self.report(Check.WITHHELD, self.ticket_of(row.message_id), row.message_id, text)
        self._messages.finish(row.message_id)

    def _delayed(self, row: Delivery) -> None:
        """A message that others overtake, or that was overtaken and takes its place now."""
        id_, messages = row.message_id, self._messages
        trail = messages.trail(row.ticket)
        messages.undone[id_] = trail
        messages.dead.discard(id_)
        if row.what is What.DELAYED:
            messages.delayed[id_] = None
            return
        early_ms = row.dispatched_ms - row.written_ms
        if early_ms > CLOCK_KNOWN_MS:
            self.report(Check.EARLY, row.ticket, id_, f"it took its place {duration(early_ms)} before it was due")
        place = messages.delayed[id_] = late_place(row.dispatched_ms, id_)
        if trail.replayed is None or id_ not in trail.replayed:
            # A fence is the server's clock in us, so a later dispatch has a larger fence.
            trail.come_late(id_, place, (row.written_ms + 1) * 1000 + FENCES_AHEAD_US)

    def _replayed(self, row: Delivery) -> None:
        id_ = row.message_id
        key = id_key(id_)
        messages = self._messages
        trail = messages.trail(row.ticket)
        if id_ not in messages.dead and (id_ in messages.undone or self._missing.until_ms is None or self.covers(key)):
            self.report(Check.REPEATED, row.ticket, id_, "it was replayed, and was not dead")
        messages.dead.discard(id_)
        messages.undone[id_] = trail
        messages.attempts[id_] = NextAttempt(1, 1, 0)
        # A fence is the server's clock in us, so a later dispatch has a larger fence.
        trail.replay(id_, (row.written_ms + 1) * 1000 + FENCES_AHEAD_US)

    def _note_returned(self, rows: Sequence[Delivery], returned: Sequence[Delivery]) -> None:
        cut_off = {row.ticket for row in rows if row.what is What.LOST}
        for row in returned:
            # After all rows of the step: the rows of a returned run may be in any order.
            trail = self._messages.trail(row.ticket)
            trail.fence = max(trail.fence, row.fence)
            # If the step also cut off a message of this run, a frozen process may still run the others. So they do not
            # count as given back.
            if row.ticket not in cut_off:
                self._messages.give_back(row.fence, row.ticket)

    def _stale(self, row: Delivery) -> None:
        """`Check.REPEATED`: what was given back as never started must not run."""
        ticket = self._messages.given_back.get(row.fence)
        if ticket is not None:
            text = f"it ran under fence {row.fence}, which had been given back as never started"
            self.report(Check.REPEATED, ticket, row.message_id, text)
        elif len(self.stale) < self._most_stale and self._findings.are_about(row.ticket):
            self.stale.append(row)
