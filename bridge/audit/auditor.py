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
from bridge.audit.trail import NONE, Trail
from bridge.routing.history import Delivery, What
from bridge.routing.ids import IdKey, id_key
from bridge.routing.numbers import duration

#: Findings of each check that are kept. All are counted.
EXAMPLES = 5
#: How far the clocks of two machines may differ, in ms.
CLOCK_SKEW_MS = 100
#: Two executions may seem to overlap by this much: the start is cut to whole us, and the duration is rounded.
ROUNDING_US = 2
#: How far fences may be ahead of the server's clock, in us: one for each fence that a script gives out.
FENCES_AHEAD_US = 50_000
#: Returned fences that are remembered, at most.
GIVEN_BACK = 100_000
#: Larger than every fence, and smaller than every fence.
UNBOUNDED, BEFORE_ALL = 2**63, 1

_RAN = (What.DONE, What.FAILED, What.DEAD)


class Auditor:
    """The audit of one history.

    Call in this order:

    1. `rows_missing`, if the first rows of the history are missing.
    2. For each step of the history: `entry` (optional) for the stream's entries, in id order, up to the largest id that
       the step names; then `step` with its rows.
    3. `at_rest` with the pending messages, when the lane is at rest.

    ``since``: older entries do not belong to the lane. ``only``: report findings of this ticket only. ``on_finding``:
    called with each finding, also with those that are not kept.
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
        self._skew_us = round(clock_skew_ms * 1000)
        self._since = id_key(since)
        self._examples = examples
        self._only = only
        self._on_finding = on_finding
        #: Rows written before this time may be missing (Unix ms by the server's clock). None: no row is missing.
        self._missing_until_ms: int | None = None
        self._replays_hidden = False
        self._covered_from = self._since
        #: Rows of first attempts may be missing for messages that are older than this (Unix ms).
        self._attempts_from_ms: int | None = None
        self._trails: dict[str, Trail] = {}
        #: Undone message -> its ticket's trail; None: an entry that names no ticket.
        self._undone: dict[str, Trail | None] = {}
        #: Undone message with rows -> (smallest and largest next attempt, its first fence).
        self._tries: dict[str, tuple[int, int, int]] = {}
        #: Undone messages that must not be left out.
        self._wanted: set[str] = set()
        #: Dead and refused messages that were not replayed.
        self._dead: set[str] = set()
        #: The latest fences that consumers gave back as never started -> ticket.
        self._given_back: dict[int, str] = {}
        #: The youngest entry that was passed in.
        self._entries_to: IdKey = NONE
        #: Rows of each kind.
        self.rows: Counter[What] = Counter()
        self.steps = 0
        #: Deliveries beyond the first of a message. A row explains each of them.
        self.repeats = 0
        self.first_ms = 0
        self.last_ms = 0
        self.counts: Counter[Check] = Counter()
        self.examples: list[Finding] = []
        #: A few executions of frozen processes, whose effects were refused.
        self.stale: list[Delivery] = []

    # -- results -------------------------------------------------------------------------------------

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.counts

    @property
    def tickets(self) -> int:
        """The number of tickets with an entry or a row."""
        return len(self._trails)

    @property
    def missing_until_ms(self) -> int | None:
        """Rows written before this (Unix ms by the server's clock) may be missing; None: none is."""
        return self._missing_until_ms

    @property
    def undone(self) -> Collection[str]:
        """Ids of the messages without a last row, among the entries and rows that were passed in."""
        return self._undone.keys()

    def is_undone(self, id_: str) -> bool:
        """Whether the message is among `undone`."""
        return id_ in self._undone

    def is_dead(self, id_: str) -> bool:
        """Whether the message is dead or refused, and was not replayed."""
        return id_ in self._dead

    def ticket_of(self, id_: str) -> str:
        """The ticket of an undone message; '' when it is not known."""
        trail = self._undone.get(id_)
        return "" if trail is None else trail.name

    @property
    def covered_from(self) -> IdKey:
        """All rows of messages from this id on are here."""
        if self._missing_until_ms is None:
            return self._since
        # After a failover the server's clock may be behind by the skew.
        return max(self._since, (self._missing_until_ms + self._skew_us // 1000 + 1, 0))

    def covers(self, key: IdKey) -> bool:
        """Whether all rows of the message with this id are here, if there are any."""
        return key >= self._covered_from

    # -- input -------------------------------------------------------------------------------------

    def rows_missing(self, until_ms: int, *, replays_hidden: bool = True) -> None:
        """Rows that were written up to ``until_ms`` may be missing. Called before the first step, and again when rows
        were removed before they were read. ``replays_hidden``: rows of replays may be missing.
        """
        self._missing_until_ms = until_ms
        self._covered_from = self.covered_from
        self._replays_hidden = replays_hidden
        self._undone.clear()
        self._tries.clear()
        self._wanted.clear()
        self._dead.clear()
        for trail in self._trails.values():
            trail.forget_messages()

    def attempts_complete_after(self, at_ms: int) -> None:
        """All last rows and all replays are here, but rows of other attempts that were written up to ``at_ms`` may be
        missing. Called before the first step.
        """
        self._attempts_from_ms = at_ms

    def entry(self, id_: str, ticket: str | None, *, wanted: bool = False) -> None:
        """Adds an entry that the group has read. ``ticket``: None when the entry has no valid ticket. ``wanted``: the
        lane must not leave it out.
        """
        key = id_key(id_)
        self._entries_to = key
        if not self.covers(key):
            return
        if wanted:
            self._wanted.add(id_)
        if ticket is None:
            self._undone[id_] = None
            return
        trail = self._trail(ticket)
        self._undone[id_] = trail
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
            elif row.what in (What.LEFT_OUT, What.SKIPPED):
                self._left_out(row)
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
        for id_ in list(self._undone):
            if id_ not in waiting:
                self.lost(id_)
        for id_ in waiting:
            if id_ not in self._undone and self.covers(id_key(id_)) and id_key(id_) <= self._entries_to:
                self.still_pending(id_)

    def lost(self, id_: str, more: str = "") -> None:
        """Reports an undone message that is not pending."""
        text = "the group has read it; it is neither pending nor done nor dead"
        if id_ in self._tries:
            text = "it had been delivered, is not done or dead, and is not pending"
        self.report(Check.LOST, self.ticket_of(id_), id_, text + more)

    def still_pending(self, id_: str) -> None:
        """Reports a pending message that has its last row."""
        self.report(Check.DISAGREEING, "", id_, "it has its last row, and is still pending")

    def report(self, check: Check, ticket: str, id_: str, text: str) -> None:
        """Reports a finding."""
        if self._only is not None and ticket != self._only:
            return
        finding = Finding(check, ticket, id_, text)
        self.counts[check] += 1
        if self.counts[check] <= self._examples:
            self.examples.append(finding)
        if self._on_finding is not None:
            self._on_finding(finding)

    # -- rows ----------------------------------------------------------------------------------------------------

    def _delivered(self, row: Delivery) -> None:
        id_ = row.message_id
        key = id_key(id_)
        trail = self._trail(row.ticket)
        known = self._undone.get(id_)
        was_replayed = trail.replayed is not None and id_ in trail.replayed
        new = id_ not in self._undone
        if known is not None and known is not trail:
            text = f"its row names ticket {row.ticket!r}, its entry {known.name!r}"
            self.report(Check.DISAGREEING, row.ticket, id_, text)
        if new and not was_replayed:
            self._check_last(trail, row, key)
        if row.what in _RAN and not was_replayed:
            self._check_order(trail, row, key)
        self._check_attempt(row, key)
        self._check_fence(trail, row)
        self._check_times(trail, row)
        if row.what in _RAN and key > trail.last:
            trail.last = key
        if row.what is What.DONE or row.what is What.DEAD:
            self._finish(id_)
            if row.what is What.DEAD:
                self._dead.add(id_)
            return
        if new:
            self._undone[id_] = trail
            if self._missing_until_ms is not None and self._replays_hidden and not self.covers(key):
                # The row of a replay may be missing. A replayed message may be late.
                self._note_replayed(trail, id_, UNBOUNDED)
            else:
                trail.add(id_, key)

    def _refused(self, row: Delivery) -> None:
        """An entry that could not be processed. Its ticket does not wait for it, so it breaks no order."""
        id_ = row.message_id
        if id_ in self._dead:
            self.report(Check.REPEATED, row.ticket, id_, "it was refused, and was dead already")
        self._finish(id_)
        self._dead.add(id_)

    def _left_out(self, row: Delivery) -> None:
        """An entry that the lane did not want, or skipped. It had no delivery, so it breaks no order."""
        if row.message_id in self._dead:
            self.report(Check.REPEATED, row.ticket, row.message_id, f"it was {row.what.value}, and was dead already")
        if row.what is What.LEFT_OUT and row.message_id in self._wanted:
            text = "it was left out, and the lane wants it, by its filter and its tasks as they are now"
            self.report(Check.SKIPPED, self.ticket_of(row.message_id), row.message_id, text)
        self._finish(row.message_id)

    def _replayed(self, row: Delivery) -> None:
        id_ = row.message_id
        key = id_key(id_)
        trail = self._trail(row.ticket)
        if id_ not in self._dead and (id_ in self._undone or self._missing_until_ms is None or self.covers(key)):
            self.report(Check.REPEATED, row.ticket, id_, "it was replayed, and was not dead")
        self._dead.discard(id_)
        self._undone[id_] = trail
        self._tries[id_] = (1, 1, 0)
        # A fence is the server's clock in us, so a later dispatch has a larger fence.
        self._note_replayed(trail, id_, (row.written_ms + 1) * 1000 + FENCES_AHEAD_US)

    def _note_replayed(self, trail: Trail, id_: str, bound: int) -> None:
        if trail.replayed is None:
            trail.replayed = {}
        trail.replayed[id_] = bound

    def _finish(self, id_: str) -> None:
        trail = self._undone.pop(id_, None)
        self._tries.pop(id_, None)
        self._wanted.discard(id_)
        if trail is not None and trail.replayed is not None:
            trail.replayed.pop(id_, None)

    def _note_returned(self, rows: Sequence[Delivery], returned: Sequence[Delivery]) -> None:
        cut_off = {row.ticket for row in rows if row.what is What.LOST}
        for row in returned:
            # After all rows of the step: the rows of a returned run may be in any order.
            trail = self._trail(row.ticket)
            trail.fence = max(trail.fence, row.fence)
            # If the step also cut off a message of this run, a frozen process may still run the others. So they do not
            # count as given back.
            if row.ticket not in cut_off:
                self._given_back[row.fence] = row.ticket
        while len(self._given_back) > GIVEN_BACK:
            del self._given_back[next(iter(self._given_back))]

    def _stale(self, row: Delivery) -> None:
        """`Check.REPEATED`: what was given back as never started must not run."""
        ticket = self._given_back.get(row.fence)
        if ticket is not None:
            text = f"it ran under fence {row.fence}, which had been given back as never started"
            self.report(Check.REPEATED, ticket, row.message_id, text)
        elif len(self.stale) < self._examples and self._only in (None, row.ticket):
            self.stale.append(row)

    # -- checks --------------------------------------------------------------------------------------------------

    def _check_last(self, trail: Trail, row: Delivery, key: IdKey) -> None:
        """`Check.REPEATED`, and `Check.REORDERED` where no entry tells that it was handled before.

        A message that is not undone, and not younger than all messages of its ticket that ran, was either handled
        before or is late. Both are violations, unless the row of its replay is missing.
        """
        id_ = row.message_id
        if id_ in self._dead:
            self.report(
                Check.REPEATED, trail.name, id_, f"{row.what.value}, after it was dead and had not been replayed"
            )
        elif key == trail.last:
            self.report(Check.REPEATED, trail.name, id_, f"{row.what.value}, after its own last row")
        elif key < trail.last:
            covered = self.covers(key)
            if self._missing_until_ms is not None and not covered and self._replays_hidden:
                return
            if covered and key <= self._entries_to:
                text = f"{row.what.value}, after its own last row, and after younger messages of its ticket"
                self.report(Check.REPEATED, trail.name, id_, text)
            else:
                younger = _id(trail.last)
                text = f"{row.what.value} after the younger message {younger} of its ticket: out of order, or repeated"
                self.report(Check.REORDERED, trail.name, id_, text)

    def _check_order(self, trail: Trail, row: Delivery, key: IdKey) -> None:
        """`Check.REORDERED`: compares with the undone and with the replayed messages of the ticket."""
        undone = trail.undone
        replayed = trail.replayed
        while undone and (undone[0] not in self._undone or (replayed is not None and undone[0] in replayed)):
            undone.popleft()
        if undone and undone[0] != row.message_id and id_key(undone[0]) < key:
            text = f"{row.what.value}, while the older message {undone[0]} of its ticket was undone"
            self.report(Check.REORDERED, trail.name, row.message_id, text)
        if not replayed or not row.fence:
            return
        tried = self._tries.get(row.message_id)
        if tried is None and not self._begins_here(key):
            return  # it may have started before the replay, in rows that are missing
        first_fence = row.fence if tried is None or not tried[2] else tried[2]
        passed = [id_ for id_, bound in replayed.items() if first_fence > bound]
        if passed:
            text = f"first dispatched after {passed[0]} was replayed, and {row.what.value} before {passed[0]}"
            self.report(Check.REORDERED, trail.name, row.message_id, text)

    def _check_attempt(self, row: Delivery, key: IdKey) -> None:
        """`Check.ATTEMPTS`. A message that dies without being in flight (fence 0) has no attempt."""
        id_, attempt = row.message_id, row.attempt
        tried = self._tries.get(id_)
        if row.fence:
            if tried is not None:
                least, most, _ = tried
                if not least <= attempt <= most:
                    wanted = str(least) if least == most else f"{least} or {most}"
                    text = f"{row.what.value} in attempt {attempt}; expected {wanted} after the row before"
                    self.report(Check.ATTEMPTS, row.ticket, id_, text)
            elif attempt != 1 and self._begins_here(key):
                self.report(Check.ATTEMPTS, row.ticket, id_, f"its first row is of attempt {attempt}")
        if tried is not None and tried[2]:
            self.repeats += 1
        if row.what is What.FAILED:
            least, most = attempt + 1, attempt + 1
        elif row.what is What.LOST:
            least, most = attempt, attempt + 1
        elif row.what is What.RETURNED:
            least = most = attempt
        else:
            return
        if tried is not None and tried[2]:
            first_fence = tried[2]
        else:
            # When its first rows may be missing, its first fence is unknown: take the smallest.
            first_fence = row.fence if tried is not None or self._begins_here(key) else BEFORE_ALL
        self._tries[id_] = (least, most, first_fence)

    def _begins_here(self, key: IdKey) -> bool:
        """Whether the first row of the message is here."""
        if self._missing_until_ms is not None:
            return self.covers(key)
        from_ms = self._attempts_from_ms
        return from_ms is None or key[0] > from_ms + self._skew_us // 1000

    def _check_fence(self, trail: Trail, row: Delivery) -> None:
        """`Check.FENCES`."""
        fence = row.fence
        if not fence:
            return
        if fence <= trail.fence:
            text = f"fence {fence} is not larger than the earlier fence {trail.fence} of its ticket"
            self.report(Check.FENCES, trail.name, row.message_id, text)
        elif row.what is not What.RETURNED:
            trail.fence = fence

    def _check_times(self, trail: Trail, row: Delivery) -> None:
        """`Check.OVERLAPPED`."""
        if not row.started_us:
            return
        host = host_of(row.consumer)
        finished_us = row.finished_us
        if trail.finished_us:
            allowed = ROUNDING_US if host == trail.host else self._skew_us
            early = trail.finished_us - row.started_us
            if early > allowed:
                text = f"began {duration(early / 1000)} before {trail.finished_id} had ended"
                if host != trail.host:
                    text += f", on another host ({host}, {trail.host})"
                self.report(Check.OVERLAPPED, trail.name, row.message_id, text)
        if host != trail.host or finished_us > trail.finished_us:
            trail.host, trail.finished_us, trail.finished_id = host, finished_us, row.message_id

    def _trail(self, ticket: str) -> Trail:
        trail = self._trails.get(ticket)
        if trail is None:
            trail = self._trails[ticket] = Trail(ticket)
        return trail


def host_of(consumer: str) -> str:
    """The host of a consumer: the part of its name after the ``@``."""
    return consumer.rpartition("@")[2]


def _id(key: IdKey) -> str:
    return f"{key[0]}-{key[1]}"
