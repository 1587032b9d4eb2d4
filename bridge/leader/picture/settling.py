"""What outcomes do to the leader's picture of its lane: done, come again, dead. No I/O.

Whose attempt is charged:

- a message that raised, or was cut off alone (its process died, its time limit struck): it;
- a message that was never begun: nobody;
- one that was cut off since its worker was told to end at once: nobody, but what it began is undone;
- when a consumer ended, see `bridge.leader.consumers.reroute`.
"""

from __future__ import annotations

from collections.abc import Callable

from bridge.leader.picture.breaker import Breakers
from bridge.leader.picture.lane import Lane
from bridge.leader.picture.pieces import Ticket
from bridge.protocol.dead_letters import payload_words
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.history import What
from bridge.routing.messages import Message, Refused
from bridge.routing.records import LostAttempt
from bridge.routing.transitions import Batch

#: How fast a measured service time follows a longer one, and a shorter one.
LEARN_UP = 0.05
LEARN_DOWN = 0.15
#: Characters of an error that a ticket's record keeps.
CAUSE_CHARS = 200


class Settling:
    """``max_attempts`` answers for a task, ``delay_ms`` for a failed attempt, ``parks`` says whether a dead message
    of a task parks its ticket, ``letters_full`` whether there may be no more dead letters now.
    """

    def __init__(
        self,
        lane: Lane,
        *,
        max_attempts: Callable[[str], int],
        delay_ms: Callable[[int], int],
        parks: Callable[[str], bool],
        breakers: Breakers | None = None,
        letters_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self._lane = lane
        self._max_attempts = max_attempts
        self._delay_ms = delay_ms
        self._parks = parks
        self._breakers = breakers or Breakers(lane)
        self._letters_full = letters_full
        self._historical = lane.settings.history > 0

    def settle(self, outcome: Outcome, batch: Batch) -> Ticket | None:
        """Takes one outcome into the picture and the batch; its ticket. None: its fence is not the current one, and
        nothing changes.
        """
        lane = self._lane
        ticket = lane.in_flight.get(outcome.message_id)
        if ticket is None or ticket.fence != outcome.fence or ticket.run[0].id != outcome.message_id:
            batch.count("stale")
            if self._historical and outcome.started_us:
                times = (0, outcome.started_us, outcome.service_ms)
                batch.history.append([outcome.message_id, "", "", "", 0, outcome.fence, *times, What.STALE.value])
            return None
        lane.touch(ticket, batch)
        if outcome.kind is Kind.DONE:
            self._done(ticket, outcome, batch)
        elif outcome.kind is Kind.RETURNED:
            self._returned(ticket, outcome, batch)
        elif outcome.kind is Kind.INTERRUPTED:
            self._interrupted(ticket, outcome, batch)
        else:
            self._failed(ticket, outcome, batch)
        return ticket

    def _done(self, ticket: Ticket, outcome: Outcome, batch: Batch) -> None:
        """It succeeded: the next one of the run is in flight already, or the ticket is ready for another run."""
        lane = self._lane
        message = ticket.run.popleft()
        lane.take_from_flight(ticket, message)
        self._measure(message.task, outcome.service_ms)
        if self._breakers.circuits:
            self._breakers.succeeded(message.task)
        batch.acknowledged.append(message.id)
        batch.count("done")
        if self._historical:
            self.note(batch, ticket, message, What.DONE, outcome)
        ticket.cleared()
        if ticket.run:
            ticket.fence += 1
            return
        lane.run_over(ticket)
        lane.make_ready(ticket)

    def _returned(self, ticket: Ticket, outcome: Outcome, batch: Batch) -> None:
        """It was never begun: it waits again, and is charged nothing."""
        lane = self._lane
        self.note_run(batch, ticket, What.RETURNED, outcome)
        self._take_back(ticket, batch)
        if ticket.begun:
            # What it has behind it must outlive this leader, so the record stays.
            ticket.cause = ticket.cause or "given back"
            lane.hold_back(ticket, lane.now_ms())
        batch.count("returned")
        if ticket.waiting and not ticket.waiting[0].payload and ticket.park_reason is None:
            # Its entry is gone from the stream, and there was a new leader since: nobody can be sent it again.
            self.condemn(ticket, batch, "given back")
            return
        # It had its turn.
        lane.make_ready(ticket, first=True)

    def _interrupted(self, ticket: Ticket, outcome: Outcome, batch: Batch) -> None:
        """It was cut off, for no fault of its own: it comes again at once, with the attempt that it had."""
        lane = self._lane
        consumer = ticket.consumer.name if ticket.consumer is not None else ""
        self.note_run(batch, ticket, What.LOST, outcome)
        ticket.lost = LostAttempt(ticket.attempt, outcome.fence, consumer, outcome.error[:CAUSE_CHARS])
        ticket.cause = outcome.error[:CAUSE_CHARS]
        self._take_back(ticket, batch)
        # What it has behind it must outlive this leader, so the record stays.
        lane.hold_back(ticket, lane.now_ms())
        batch.count("interrupted")
        if not ticket.waiting[0].payload and ticket.park_reason is None:
            self.condemn(ticket, batch, ticket.cause)

    def _failed(self, ticket: Ticket, outcome: Outcome, batch: Batch) -> None:
        """It raised, or was cut off alone: it comes again after its backoff, or is dead."""
        lane = self._lane
        message = ticket.run[0]
        consumer = ticket.consumer.name if ticket.consumer is not None else ""
        batch.count("failed")
        attempt = ticket.attempt
        last = attempt >= self._max_attempts(message.task)
        over = outcome.kind is Kind.DEAD or last or not message.payload
        paused = charged = False
        if outcome.kind is not Kind.DEAD and message.payload:
            charged = self._breakers.failed(message.task, ticket, outcome.error)
            paused = bool(self._breakers.why(message.task))
        # While its task fails for everybody a message does not die of it, nor while there is no room for letters: it
        # keeps the attempt that it had. Only a probe's counts up, but for its last one.
        kept = (paused and (last or not charged)) or (over and message.payload != b"" and self._letters_full())
        over = over and not kept
        lost = outcome.kind is Kind.LOST
        # In the history, what counts for nothing is as an attempt that was cut off.
        what = What.DEAD if over else What.LOST if lost or kept else What.FAILED
        self.note_run(batch, ticket, what, outcome)
        ticket.attempt = attempt if kept else attempt + 1
        # It ended by itself, or alone: it is not what ends its consumers.
        ticket.losses = 0
        if lost:
            ticket.lost = LostAttempt(attempt, outcome.fence, consumer, outcome.error[:CAUSE_CHARS])
        elif outcome.kind is not Kind.UNDO_FAILED:
            ticket.lost = None
        self._take_back(ticket, batch)
        if over:
            self._give_up(ticket, batch, outcome, attempts=attempt, consumer=consumer)
            return
        delay = outcome.delay_ms if outcome.delay_ms is not None else self._delay_ms(attempt)
        lane.hold_back(ticket, lane.now_ms() + delay)
        ticket.cause = outcome.error[:CAUSE_CHARS]
        batch.count("retried")

    def _give_up(
        self, ticket: Ticket, batch: Batch, outcome: Outcome, *, attempts: int, consumer: str, reason: str = ""
    ) -> None:
        """The oldest waiting message of ``ticket`` goes to the dead letters; the ticket goes on, or stands still."""
        lane = self._lane
        message = lane.drop_first(ticket)
        # It may also be among those given back, which does nothing to an entry that was acknowledged in the same step.
        batch.acknowledged.append(message.id)
        if not message.payload:
            reason = Refused.TRIMMED.value
        elif outcome.kind is Kind.DEAD:
            reason = "asked not to come again"
        elif not reason:
            reason = f"gave up after {attempts} attempt{'s' if attempts > 1 else ''}"
        batch.dead.append(
            [
                *("message_id", message.id, "reason", reason, "error", outcome.error),
                *("traceback", outcome.traceback, "attempts", attempts, "at_ms", lane.now_ms()),
                *("ticket_id", ticket.id, "task", message.task, *payload_words(message.payload)),
                *("consumer", consumer, "fence", outcome.fence),
            ]
        )
        batch.count("dead")
        ticket.cleared()
        ticket.due_ms = 0
        if self._parks(message.task) and ticket.park_reason is None:
            ticket.park_reason = f"message {message.id} is dead: {outcome.error[:CAUSE_CHARS]}"
        if ticket.park_reason is None and ticket.waiting and not ticket.waiting[0].payload:
            self.condemn(ticket, batch, outcome.error)
            return
        lane.make_ready(ticket)

    def condemn(self, ticket: Ticket, batch: Batch, error: str, reason: str = "") -> None:
        """The oldest waiting message has had all its attempts, or its entry is gone, or, with a ``reason``, it was not
        to have any more: it is dead without another one.
        """
        lane = self._lane
        lane.touch(ticket, batch)
        lane.unqueue(ticket)
        message = ticket.waiting[0]
        if self._historical:
            self.note(batch, ticket, message, What.DEAD, Outcome(message.id, 0, Kind.LOST))
        attempts = ticket.attempt - 1 if reason else max(1, ticket.attempt - 1)
        outcome = Outcome(message.id, 0, Kind.LOST, error=error)
        self._give_up(ticket, batch, outcome, attempts=attempts, consumer="", reason=reason)

    def exhausted(self, ticket: Ticket) -> bool:
        """Whether the oldest waiting message has no attempt left, or nothing that could be handled."""
        message = ticket.waiting[0]
        return not message.payload or (ticket.begun and ticket.attempt > self._max_attempts(message.task))

    def _take_back(self, ticket: Ticket, batch: Batch) -> None:
        batch.given_back += [message.id for message in ticket.run]
        self._lane.take_back(ticket)

    # -- what the history keeps ------------------------------------------------------------------------------------

    def note(self, batch: Batch, ticket: Ticket, message: Message, what: What, outcome: Outcome) -> None:
        """One row of the history."""
        consumer = ticket.consumer.name if ticket.consumer is not None and ticket.run_fence else ""
        batch.history.append(
            [
                *(message.id, ticket.id, message.task, consumer, ticket.attempt, outcome.fence),
                *(ticket.dispatched_ms if outcome.fence else 0, outcome.started_us, outcome.service_ms, what.value),
            ]
        )

    def note_run(self, batch: Batch, ticket: Ticket, what: What, outcome: Outcome) -> None:
        """Rows for a run that ends here: its oldest message as ``what``, the others were never begun."""
        if not self._historical:
            return
        consumer = ticket.consumer.name if ticket.consumer is not None else ""
        for i, message in enumerate(ticket.run):
            if i == 0:
                self.note(batch, ticket, message, what, outcome)
                continue
            named = (message.id, ticket.id, message.task, consumer, 1, ticket.fence + i, ticket.dispatched_ms)
            batch.history.append([*named, 0, 0, What.RETURNED.value])

    def _measure(self, task: str, ms: float) -> None:
        known = self._lane.service_ms.get(task)
        if known is None:
            self._lane.service_ms[task] = ms
            return
        # Below the mean: on a machine that is short of processors, a wait for one looks like service time. Bundles
        # would shrink, cost more processor time each, and make it shorter still.
        self._lane.service_ms[task] = known + (ms - known) * (LEARN_UP if ms > known else LEARN_DOWN)
