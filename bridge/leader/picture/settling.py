"""Takes outcomes into the leader's picture of its lane: a message is done, comes again, or is dead. No I/O.

When a message is charged with an attempt:

- It raised, or was cut off alone (its process died, its time limit struck): it is charged.
- Its task refused it (`bridge.Nack`): it is charged, unless the task asked not to.
- It was not started: it is not charged.
- It was cut off because its worker was told to end at once: it is not charged. What it began is rolled back.
- Its consumer ended: see `bridge.leader.consumers.reroute`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from bridge.leader.picture.breaker import Breakers
from bridge.leader.picture.lane import Lane
from bridge.leader.picture.pieces import APART_MS, Ticket
from bridge.protocol import dead_letters
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing import records
from bridge.routing.batch import Batch
from bridge.routing.history import What, done_row, row
from bridge.routing.ids import member_of
from bridge.routing.message_options import EXPIRED
from bridge.routing.messages import Message, Refused
from bridge.routing.records import LostAttempt

#: Weight of a new service time that is longer than the measured one, and of one that is shorter.
LEARN_UP = 0.05
LEARN_DOWN = 0.15
#: Most characters of an error that a ticket's record keeps.
CAUSE_CHARS = 200


class Settling:
    """Settles the outcomes of one lane.

    ``max_attempts``: task -> its number of attempts. ``delay_ms``: failed attempt -> backoff. ``parks``: task ->
    whether its dead message parks the ticket. ``letters_full``: whether there is no room for dead letters now.
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
        id_suffix: str = "",
    ) -> None:
        self._lane = lane
        self._max_attempts = max_attempts
        self._delay_ms = delay_ms
        self._parks = parks
        self._breakers = breakers or Breakers(lane)
        self._letters_full = letters_full
        #: What follows a stream id where people read it.
        self._id_suffix = id_suffix
        self._historical = lane.settings.history > 0

    def settle(self, outcome: Outcome, batch: Batch) -> Ticket | None:
        """Takes one outcome into the picture and the batch. Returns its ticket.

        Returns None, and changes nothing, when the outcome's fence is not the current one.
        """
        lane = self._lane
        ticket = lane.in_flight.get(outcome.message_id)
        if ticket is None or ticket.fence != outcome.fence or ticket.run[0].id != outcome.message_id:
            # A message that never began may be given back twice: by its pool process, and by the worker for all that
            # this process held. That is no late work.
            if outcome.started_us or outcome.kind is not Kind.RETURNED:
                batch.count("stale")
            if self._historical and outcome.started_us:
                batch.history.append(
                    row(
                        outcome.message_id,
                        What.STALE,
                        fence=outcome.fence,
                        started_us=outcome.started_us,
                        service_ms=outcome.service_ms,
                    )
                )
            return None
        lane.touch(ticket, batch)
        if outcome.kind is Kind.DONE or outcome.kind is Kind.DROPPED:
            self._done(ticket, outcome, batch)
        elif outcome.kind is Kind.NACKED or outcome.kind is Kind.NACKED_OWING:
            self._nacked(ticket, outcome, batch)
        elif outcome.kind is Kind.RETURNED:
            self._returned(ticket, outcome, batch)
        elif outcome.kind is Kind.INTERRUPTED:
            self._interrupted(ticket, outcome, batch)
        else:
            self._failed(ticket, outcome, batch)
        return ticket

    def _done(self, ticket: Ticket, outcome: Outcome, batch: Batch) -> None:
        """The message succeeded, or its task dropped it. The next one of the run is in flight already, or the ticket is
        ready for a new run.
        """
        lane = self._lane
        message = ticket.run.pop(0)
        lane.take_from_flight(ticket, message)
        if (parcel := ticket.parcel) is not None:
            if not parcel.began_us:
                parcel.began_us = outcome.started_us
            elif not parcel.left:
                parcel.ended(outcome.started_us)
        if ticket.consumer is None or ticket.consumer.takes_bundles:
            # The time of an HTTP consumer has its calls in it. It would make the bundles of Celery workers small.
            self._measure(message.task, outcome.service_ms)
        if self._breakers.circuits:
            self._breakers.succeeded(message.task)
        if (message.options is not None and message.options.due_ms) or not message.payload:
            batch.over.append(member_of(message.id))
        batch.acknowledged.append(message.id)
        dropped = outcome.kind is Kind.DROPPED
        batch.count("dropped" if dropped else "done")
        if self._historical:
            if dropped:
                self.note(batch, ticket, message, What.DROPPED, outcome)
            else:
                batch.history.append(
                    done_row(
                        message.id,
                        ticket.id,
                        message.task,
                        ticket.consumer.name if ticket.consumer is not None else "",
                        ticket.attempt,
                        outcome.fence,
                        ticket.dispatched_ms,
                        outcome.started_us,
                        outcome.service_ms,
                    )
                )
        ticket.cleared()
        if ticket.run:
            ticket.fence += 1
            return
        lane.run_over(ticket)
        if ticket.waiting and not ticket.waiting[0].payload and ticket.park_reason is None:
            # It was in a run that ended, and a new leader has no copy of it: its entry is gone.
            self.give_up(ticket, batch, "its entry was deleted while it waited")
            return
        lane.make_ready(ticket)

    def _returned(self, ticket: Ticket, outcome: Outcome, batch: Batch) -> None:
        """The message was not started. It waits again, and is not charged."""
        lane = self._lane
        self.note_run(batch, ticket, What.RETURNED, outcome)
        self._take_back(ticket, batch)
        if ticket.begun:
            # Its attempts and losses must outlive this leader, so the record stays.
            ticket.cause = ticket.cause or "given back"
            # Its consumer may have work of other lanes.
            lane.back_off(ticket, random.randint(0, APART_MS) if ticket.suspect else 0)
        batch.count("returned")
        if ticket.waiting and not ticket.waiting[0].payload and ticket.park_reason is None:
            # Its entry is gone from the stream, and a new leader has no copy of it: it cannot be sent again.
            self.give_up(ticket, batch, "given back")
            return
        # It has waited for its turn before.
        lane.make_ready(ticket, first=True)

    def _nacked(self, ticket: Ticket, outcome: Outcome, batch: Batch) -> None:
        """The task refused the message, and did not want it charged. It comes again with the same attempt number."""
        lane = self._lane
        task = ticket.run[0].task
        self.note_run(batch, ticket, What.NACKED, outcome)
        if not ticket.nacked:
            ticket.nacked_since_ms = lane.clock.server_ms()
        ticket.nacked += 1
        why = outcome.error[:CAUSE_CHARS]
        ticket.cause = records.nacked_cause(ticket.nacked, ticket.nacked_since_ms, why)
        # The consumer survived.
        ticket.losses = 0
        if outcome.kind is not Kind.NACKED_OWING:
            ticket.lost = None
        self._breakers.nacked(task, ticket)
        self._take_back(ticket, batch)
        batch.count("nacked")
        if not ticket.waiting[0].payload and ticket.park_reason is None:
            self.give_up(ticket, batch, ticket.cause)
            return
        # Without a delay of the task: the wait grows with each refusal, although the attempt does not.
        delay_ms = outcome.delay_ms if outcome.delay_ms is not None else self._delay_ms(ticket.nacked)
        lane.back_off(ticket, delay_ms)

    def _interrupted(self, ticket: Ticket, outcome: Outcome, batch: Batch) -> None:
        """The message was cut off and is not to blame. It comes again at once, with the same attempt number."""
        lane = self._lane
        consumer = ticket.consumer.name if ticket.consumer is not None else ""
        self.note_run(batch, ticket, What.LOST, outcome)
        lost = LostAttempt(ticket.attempt, outcome.fence, consumer, outcome.error[:CAUSE_CHARS])
        ticket.lost = lost.after(ticket.lost)
        ticket.cause = outcome.error[:CAUSE_CHARS]
        self._take_back(ticket, batch)
        # Its attempts and losses must outlive this leader, so the record stays.
        lane.back_off(ticket, 0)
        batch.count("interrupted")
        if not ticket.waiting[0].payload and ticket.park_reason is None:
            self.give_up(ticket, batch, ticket.cause)

    def _failed(self, ticket: Ticket, outcome: Outcome, batch: Batch) -> None:
        """The message raised, or was cut off alone. It comes again after its backoff, or is dead."""
        lane = self._lane
        message = ticket.run[0]
        consumer = ticket.consumer.name if ticket.consumer is not None else ""
        batch.count("failed")
        attempt = ticket.attempt
        last = attempt >= self._attempts_of(message)
        over = outcome.kind is Kind.DEAD or last or not message.payload
        circuit_open = charged = False
        if outcome.kind is not Kind.DEAD and message.payload:
            charged = self._breakers.failed(message.task, ticket, outcome.error)
            circuit_open = bool(self._breakers.why(message.task))
        # A message does not die while its circuit breaker is open, or while there is no room for dead letters: it keeps
        # its attempt number. Only a trial's number grows, and never beyond the last attempt.
        kept = (circuit_open and (last or not charged)) or (over and message.payload != b"" and self._letters_full())
        over = over and not kept
        lost = outcome.kind is Kind.LOST
        # The history shows an attempt that is not charged as one that was cut off.
        what = What.DEAD if over else What.LOST if lost or kept else What.FAILED
        self.note_run(batch, ticket, what, outcome)
        ticket.attempt = attempt if kept else attempt + 1
        # The consumer survived, so this message does not end consumers.
        ticket.losses = 0
        ticket.nacked = 0
        if lost:
            cut_off = LostAttempt(attempt, outcome.fence, consumer, outcome.error[:CAUSE_CHARS])
            ticket.lost = cut_off.after(ticket.lost)
        elif outcome.kind is not Kind.FAILED_OWING:
            ticket.lost = None
        self._take_back(ticket, batch)
        if over:
            self._give_up(ticket, batch, outcome, attempts=attempt, consumer=consumer)
            return
        delay = outcome.delay_ms if outcome.delay_ms is not None else self._delay_ms(attempt)
        lane.back_off(ticket, delay)
        ticket.cause = outcome.error[:CAUSE_CHARS]
        batch.count("retried")

    def _give_up(
        self, ticket: Ticket, batch: Batch, outcome: Outcome, *, attempts: int, consumer: str, reason: str = ""
    ) -> None:
        """Moves the oldest waiting message of ``ticket`` to the dead letters. The ticket goes on, or is parked."""
        lane = self._lane
        message = lane.drop_first(ticket)
        # The message may be given back in the same step. That does nothing to an acknowledged entry.
        if (message.options is not None and message.options.due_ms) or not message.payload:
            batch.over.append(member_of(message.id))
        batch.acknowledged.append(message.id)
        if not message.payload:
            reason = Refused.TRIMMED.value
        elif outcome.kind is Kind.DEAD and outcome.error == EXPIRED:
            # Its consumer found that out, and did not begin it.
            reason, attempts = EXPIRED, attempts - 1
            batch.count("expired")
        elif outcome.kind is Kind.DEAD:
            reason = "asked not to come again"
        elif not reason:
            reason = f"gave up after {attempts} attempt{'s' if attempts > 1 else ''}"
        batch.dead.append(
            dead_letters.given_up(
                message,
                reason=reason,
                error=outcome.error,
                traceback=outcome.traceback,
                attempts=attempts,
                at_ms=lane.clock.server_ms(),
                consumer=consumer,
                fence=outcome.fence,
            )
        )
        batch.count("dead")
        ticket.cleared()
        ticket.due_ms = 0
        if self._parks(message.task) and ticket.park_reason is None:
            ticket.park_reason = f"message {message.id}{self._id_suffix} is dead: {outcome.error[:CAUSE_CHARS]}"
        if ticket.park_reason is None and ticket.waiting and not ticket.waiting[0].payload:
            self.give_up(ticket, batch, outcome.error)
            return
        lane.make_ready(ticket)

    def give_up(self, ticket: Ticket, batch: Batch, error: str, reason: str = "") -> None:
        """Moves the oldest waiting message to the dead letters without a further attempt.

        Its attempts are used up, or its entry is gone. ``reason``: another reason to give it up.
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
        """Whether the oldest waiting message has no attempt left, or no payload: its entry is gone."""
        message = ticket.waiting[0]
        return not message.payload or (ticket.begun and ticket.attempt > self._attempts_of(message))

    def expire(self, ticket: Ticket, batch: Batch) -> None:
        """The oldest waiting message has not begun, and has expired: it goes to the dead letters."""
        batch.count("expired")
        self.give_up(ticket, batch, "", EXPIRED)

    def _attempts_of(self, message: Message) -> int:
        own = None if message.options is None else message.options.max_attempts
        return self._max_attempts(message.task) if own is None else own

    def _take_back(self, ticket: Ticket, batch: Batch) -> None:
        batch.given_back += [message.id for message in ticket.run]
        self._lane.take_back(ticket)

    # -- rows for the history --------------------------------------------------------------------------------------

    def note(self, batch: Batch, ticket: Ticket, message: Message, what: What, outcome: Outcome) -> None:
        """Adds one row to the history."""
        consumer = ticket.consumer.name if ticket.consumer is not None and ticket.run_fence else ""
        batch.history.append(
            row(
                message.id,
                what,
                ticket=ticket.id,
                task=message.task,
                consumer=consumer,
                attempt=ticket.attempt,
                fence=outcome.fence,
                dispatched_ms=ticket.dispatched_ms if outcome.fence else 0,
                started_us=outcome.started_us,
                service_ms=outcome.service_ms,
                why=outcome.error if what is What.DROPPED else "",
            )
        )

    def note_run(self, batch: Batch, ticket: Ticket, what: What, outcome: Outcome) -> None:
        """Adds rows for a run that ends here: ``what`` for its oldest message. The others were not started."""
        if not self._historical:
            return
        consumer = ticket.consumer.name if ticket.consumer is not None else ""
        for i, message in enumerate(ticket.run):
            if i == 0:
                self.note(batch, ticket, message, what, outcome)
                continue
            batch.history.append(
                row(
                    message.id,
                    What.RETURNED,
                    ticket=ticket.id,
                    task=message.task,
                    consumer=consumer,
                    attempt=1,
                    fence=ticket.fence + i,
                    dispatched_ms=ticket.dispatched_ms,
                )
            )

    def _measure(self, task: str, ms: float) -> None:
        known = self._lane.service_ms.get(task)
        if known is None:
            self._lane.service_ms[task] = ms
            return
        # The estimate stays below the mean. On a machine with too few processors, waiting for one looks like service
        # time. Bundles would then shrink, cost more processor time for each message, and shrink further.
        self._lane.service_ms[task] = known + (ms - known) * (LEARN_UP if ms > known else LEARN_DOWN)
