"""Moves the tickets of consumers that are over to others, and says which of their messages is charged for it.

**The culprit.** A message that ends its consumer must not do so for ever, and what was in flight beside it must not be
charged for it. When a death notice names the one message that was running, that one is charged with an attempt. When it
names several, or when nobody can know what ran (the whole machine is gone), each that may have been running gets a
*loss* instead. A message with `SUSPECT_AFTER` losses is a suspect, and goes out alone to a consumer that has nothing
else; when that one ends, too, the message is convicted, and charged. One that ends in any other way is cleared.

The script that moves the tickets checks once more, in the same step, that the lease is gone and that every outcome was
read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from celery.utils.log import get_logger

from bridge.leader.picture.pieces import Consumer, Ticket
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing import records
from bridge.routing.errors import LaneConflict
from bridge.routing.history import What
from bridge.routing.records import LostAttempt
from bridge.routing.return_codes import ReturnCode
from bridge.routing.transitions import Batch, forget, reroute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bridge.leader.consumers.leases import Leases
    from bridge.leader.picture.lane import Lane
    from bridge.leader.picture.settling import Settling
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term

logger = get_logger(__name__)


class GivenUp(NamedTuple):
    """What a consumer was running when its lease ended, by its own word or its watcher's; and whether it was told to
    end at once.
    """

    ran: frozenset[int]
    asked: bool


class Reroute:
    """Of one term, on the leader's thread."""

    def __init__(self, term: Term, lane: Lane, steps: Steps, settling: Settling, leases: Leases) -> None:
        self._term = term
        self._lane = lane
        self._steps = steps
        self._settling = settling
        self._leases = leases

    def retire(self, consumers: list[Consumer], given_up: Mapping[str, GivenUp]) -> None:
        """The leases of ``consumers`` are over. None of them is given what another one had: first all are closed, then
        what they wrote is settled, then their tickets move. ``given_up``: incarnation -> what it said of its end.
        """
        for consumer in consumers:
            consumer.alive = False
        self._lane.stranded.fit()
        for consumer in consumers:
            self._lane.free_ready(consumer)
        self._steps.settle_all()
        for consumer in consumers:
            self._retire(consumer, given_up)

    def _retire(self, consumer: Consumer, given_up: Mapping[str, GivenUp]) -> None:
        """Moves the tickets of ``consumer``, and forgets it."""
        lane = self._lane
        while consumer.tickets:
            code = self._reroute(consumer, given_up)
            if code is ReturnCode.UNREAD:
                self._steps.settle_all()
            elif code is ReturnCode.ALIVE:
                consumer.alive = True
                lane.stranded.fit()
                return
            elif code is not ReturnCode.OK:  # a record, or the group, is not as it was
                raise LaneConflict(f"the tickets of {consumer.name} are not where this master thought they were")
        if consumer.registration:
            forget(self._term.redis, self._term.leadership, consumer.name, consumer.incarnation, consumer.registration)
        del lane.consumers[consumer.incarnation]
        logger.warning("consumer %s is gone (incarnation %s)", consumer.name, consumer.incarnation)

    def _reroute(self, consumer: Consumer, given_up: Mapping[str, GivenUp]) -> ReturnCode:
        lane = self._lane
        now_ms = self._lane.now_ms()
        end = given_up.get(consumer.incarnation)
        ran = end.ran if end is not None else None
        tickets: list[Ticket] = sorted(consumer.tickets, key=lambda ticket: ticket.run_fence)
        cut_off = {ticket for ticket in tickets if ran is None or ticket.fence in ran}
        cause = f"lost with {consumer.name}"
        # What ran when somebody set the clock, or told its worker to end at once, did not end it.
        blameless = end.asked if end is not None else self._leases.was_ended(consumer.incarnation)
        notes = Batch()
        moves = []
        verdicts: dict[Ticket, tuple[int, int, LostAttempt | None, str]] = {}
        ids: list[str] = []
        for ticket in tickets:
            ids += [message.id for message in ticket.run]
            attempt, losses, lost = ticket.attempt, ticket.losses, ticket.lost
            if ticket in cut_off:
                lost = LostAttempt(attempt, ticket.fence, consumer.name, cause)
                if len(cut_off) == 1 and (ran is not None or losses > 0) and not blameless:
                    attempt += 1
                elif not blameless:
                    losses += 1
            what = What.LOST if ticket in cut_off else What.RETURNED
            self._settling.note_run(notes, ticket, what, Outcome(ticket.run[0].id, ticket.fence, Kind.LOST))
            why = (cause if lost is not None else "", losses, lost)
            tail = records.tail("", "", attempt, [ticket.run[0].id], now_ms, *why)
            verdicts[ticket] = (attempt, losses, lost, records.record(records.AWAITING, tail))
            moves.append((ticket.id, ticket.record, verdicts[ticket][3], now_ms))
        code = reroute(
            self._term.redis,
            self._term.leadership,
            consumer.incarnation,
            self._steps.last_outcome,
            moves,
            ids,
            notes.history,
            self._steps.learn_history_cap(len(notes.history)),
        )
        if code is not ReturnCode.OK:
            return code
        for ticket in tickets:
            # First what it has behind it, which says whether a message that was put back may go before it.
            ticket.attempt, ticket.losses, ticket.lost, ticket.record = verdicts[ticket]
            lane.take_back(ticket)
            ticket.consumer = None
            ticket.cause = cause if ticket.lost is not None else ""
            lane.hold_back(ticket, now_ms)
        self._after_reroute(tickets, cause)
        lane.wake(now_ms)
        logger.warning(
            "re-routed %d tickets (%d messages, %d may have been running) of %s",
            *(len(tickets), len(ids), len(cut_off), consumer.name),
        )
        return code

    def _after_reroute(self, tickets: list[Ticket], cause: str) -> None:
        """What cannot come again is dead; a ticket that was to be parked stands still."""
        batch = Batch()
        for ticket in tickets:
            if ticket.park_reason is not None:
                self._lane.park(ticket, ticket.park_reason, batch)
            if ticket.waiting and self._settling.exhausted(ticket):
                self._settling.condemn(ticket, batch, cause)
            elif ticket.suspect:
                batch.count("suspect")
                logger.warning(
                    "ticket %s: %d consumers ended while message %s may have been running: it goes out alone",
                    *(ticket.id, ticket.losses, ticket.waiting[0].id),
                )
        if batch:
            self._steps.advance(batch)
