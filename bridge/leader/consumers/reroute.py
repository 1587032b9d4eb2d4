"""Moves the tickets of lost consumers, and decides which of their messages is charged with an attempt.

A message that ends its consumers must not do so for ever. Other messages that were in flight must not be charged for
it. The rules:

- A death notice names one running message, and none of another lane: that message is charged with an attempt.
- A death notice names several, or there is none (the whole machine is gone): each message that may have been running
  gets a *loss*.
- A message with `SUSPECT_AFTER` losses is a suspect. It goes out alone, to a consumer that has no other work in this
  lane. When that consumer ends too, the message is charged. Any other outcome clears it.
- A worker may serve several lanes. It takes a suspect while it has nothing of its other lanes, and gives it back
  otherwise (`HEADER_ALONE`). Where the other lanes are busy all the time, a suspect goes out beside them now and then.
  If messages of other lanes ran beside the suspect, or may have, it gets one more loss, and waits for a while that is
  drawn. A suspect with `SURE_AFTER` losses is charged. The message that ends the workers is there each time, so it gets
  so many losses before any other does.

The script that moves the tickets checks in the same step that the lease is gone and that all outcomes were read.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.leader.picture.pieces import APART_MS, SUSPECT_AFTER, Consumer, Ticket
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing import records
from bridge.routing.batch import Batch
from bridge.routing.errors import LaneConflict
from bridge.routing.history import What
from bridge.routing.records import LostAttempt
from bridge.routing.return_codes import ReturnCode
from bridge.routing.transitions import forget, reroute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bridge.leader.consumers.leases import Leases
    from bridge.leader.picture.lane import Lane
    from bridge.leader.picture.settling import Settling
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term
    from bridge.protocol.outcome_entries import GivenUp

logger = get_logger(__name__)

#: Losses after which a suspect is charged although messages of other lanes ran beside it.
SURE_AFTER = 5


class Reroute:
    """Moves tickets in one term, on the leader's thread."""

    def __init__(
        self, term: Term, lane: Lane, steps: Steps, settling: Settling, leases: Leases, *, shares_workers: bool = False
    ) -> None:
        """``shares_workers``: whether the workers of this lane may serve other lanes."""
        self._shares_workers = shares_workers
        self._term = term
        self._lane = lane
        self._steps = steps
        self._settling = settling
        self._leases = leases

    def retire(self, consumers: list[Consumer], given_up: Mapping[str, GivenUp]) -> None:
        """Retires ``consumers``, whose leases are over. ``given_up``: incarnation -> its notice, if there is one.

        All of them are closed first, so that none gets the tickets of another one. Then their outcomes are settled.
        Then their tickets move.
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
        if consumer.registration is not None:
            text = consumer.registration.text
            forget(self._term.redis, self._term.leadership, consumer.name, consumer.incarnation, text)
        del lane.consumers[consumer.incarnation]
        lane.crowded.pop(consumer, None)
        logger.warning("consumer %s is gone (incarnation %s)", consumer.name, consumer.incarnation)

    def _reroute(self, consumer: Consumer, given_up: Mapping[str, GivenUp]) -> ReturnCode:
        lane = self._lane
        now_ms = lane.clock.server_ms()
        end = given_up.get(consumer.incarnation)
        ran = end.ran if end is not None else None
        tickets: list[Ticket] = sorted(consumer.tickets, key=lambda ticket: ticket.run_fence)
        cut_off = {ticket for ticket in tickets if ran is None or ticket.fence in ran}
        cause = f"lost with {consumer.name}"
        # If the clock was set, or the worker was told to end at once, the running messages did not end it.
        blameless = end.asked if end is not None else self._leases.was_ended(consumer.incarnation)
        # Whether messages of other lanes may have ended it.
        among_others = end.beside > 0 if ran is not None and end is not None else self._shares_workers
        notes = Batch()
        moves: list[tuple[str, str, str, int | None]] = []
        verdicts: dict[Ticket, tuple[int, int, LostAttempt | None, str]] = {}
        due_ms = dict.fromkeys(tickets, lane.clock.settled_ms())
        ids: list[str] = []
        for ticket in tickets:
            ids += [message.id for message in ticket.run]
            attempt, losses, lost = ticket.attempt, ticket.losses, ticket.lost
            if ticket in cut_off:
                lost = LostAttempt(attempt, ticket.fence, consumer.name, cause).after(lost)
                alone = len(cut_off) == 1 and (ran is not None or losses > 0)
                if alone and (not among_others or losses >= SURE_AFTER) and not blameless:
                    attempt += 1
                elif not blameless:
                    losses += 1
                if among_others and losses >= SUSPECT_AFTER and not blameless:
                    due_ms[ticket] += random.randint(0, APART_MS << (min(losses, SURE_AFTER) - SUSPECT_AFTER))
            what = What.LOST if ticket in cut_off else What.RETURNED
            self._settling.note_run(notes, ticket, what, Outcome(ticket.run[0].id, ticket.fence, Kind.LOST))
            if ticket.park_reason is not None:
                # In this step: the leader may end before the next one, and no other record names the order.
                begun = [ticket.run[0].id] if attempt > 1 or losses or lost is not None else []
                tail = records.tail("", "", attempt, begun, now_ms, ticket.park_reason, losses, lost)
                record, due = records.record(records.PARKED, tail), None
            else:
                nacked = ticket.cause if ticket.nacked else ""
                why = (cause if lost is not None else nacked, losses, lost)
                tail = records.tail("", "", attempt, [ticket.run[0].id], now_ms, *why)
                record, due = records.record(records.AWAITING, tail), due_ms[ticket]
            verdicts[ticket] = (attempt, losses, lost, record)
            moves.append((ticket.id, ticket.record, record, due))
        code = reroute(
            self._term.redis,
            self._term.leadership,
            consumer.incarnation,
            self._steps.last_outcome,
            moves,
            ids,
            notes.history,
            self._steps.history_cap.with_next() if notes.history else 0,
        )
        if code is not ReturnCode.OK:
            return code
        self._steps.history_cap.wrote(len(notes.history))
        for ticket in tickets:
            # Set the attempts first: they decide whether a replayed message may go before this one.
            ticket.attempt, ticket.losses, ticket.lost, ticket.record = verdicts[ticket]
            lane.take_back(ticket)
            ticket.consumer = None
            if ticket.lost is not None or not ticket.nacked:
                ticket.cause = cause if ticket.lost is not None else ""
            if ticket.park_reason is None:
                lane.hold_back(ticket, due_ms[ticket])
        self._after_reroute(tickets, cause)
        lane.wake()
        # They go out at once, before the rest of the look at the leases, which waits for some replies.
        self._steps.advance(Batch())
        logger.warning(
            "re-routed %d tickets (%d messages, %d may have been running) of %s",
            *(len(tickets), len(ids), len(cut_off), consumer.name),
        )
        return code

    def _after_reroute(self, tickets: list[Ticket], cause: str) -> None:
        """Makes messages without an attempt left dead letters, and puts the messages of parked tickets aside."""
        batch = Batch()
        for ticket in tickets:
            if ticket.park_reason is not None:
                self._lane.park(ticket, ticket.park_reason, batch)
            if ticket.waiting and self._settling.exhausted(ticket):
                self._settling.give_up(ticket, batch, cause)
            elif ticket.suspect:
                batch.count("suspect")
                logger.warning(
                    "ticket %s: %d consumers ended while message %s may have been running: it goes out alone",
                    *(ticket.id, ticket.losses, ticket.waiting[0].id),
                )
        if batch:
            self._steps.advance(batch)
