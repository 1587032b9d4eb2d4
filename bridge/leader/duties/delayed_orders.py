"""Carries out operators' orders about delayed messages: cancel, reschedule, now.

An order changes what is not due. A message that was begun, that is done, that is due and waits for a consumer, or that
would be due after it expires is refused by name; the others of the order are changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bridge.leader.stream.by_id import read_messages
from bridge.protocol.orders import ChangeDelayed, DelayedAct
from bridge.routing.history import What, row
from bridge.routing.ids import member_of

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane
    from bridge.leader.picture.pieces import Ticket
    from bridge.leader.step.term import Term
    from bridge.routing.batch import Batch
    from bridge.routing.messages import Message


class DelayedOrders:
    """Orders about the delayed messages of one lane, on the leader's thread."""

    def __init__(self, term: Term, lane: Lane) -> None:
        self._term = term
        self._lane = lane

    def carry_out(self, order: ChangeDelayed, batch: Batch) -> dict[str, Any]:
        """Changes the messages in the picture and the batch. Returns the answer."""
        now_ms = self._term.clock.server_ms()
        due_ms = None if order.act is DelayedAct.CANCEL else max(now_ms, order.due_ms or now_ms)
        refused: list[tuple[str, str]] = []
        delayed: list[str] = []
        holding: list[str] = []
        ids = list(dict.fromkeys(order.ids))
        for id_, is_delayed, held_ms, is_late in self._where(ids):
            if member_of(id_) in batch.over:
                # By another order in the same step.
                refused.append((id_, f"message {id_} is not delayed"))
            elif is_delayed:
                delayed.append(id_)
            elif id_ in self._lane.in_flight or self._lane.has_begun(id_):
                # Also one that is not due, after the server's clock was set back.
                refused.append((id_, f"message {id_} has begun"))
            elif held_ms is not None and held_ms > now_ms:
                holding.append(id_)
            elif is_late or held_ms is not None:
                refused.append((id_, f"message {id_} is due, and waits for its turn"))
            else:
                refused.append((id_, f"message {id_} is not delayed"))
        held = set(holding)
        changed: set[str] = set()
        for message in read_messages(self._term, [("", id_) for id_ in delayed + holding]):
            if order.act is DelayedAct.RESCHEDULE and _expires_by(message, due_ms):
                # It would never begin, and its ticket would wait for it.
                refused.append((message.id, f"message {message.id} would be due after it expires"))
                continue
            changed.add(message.id)
            if message.id in held:
                self._change_held(message, due_ms, batch)
            if due_ms is None:
                self._cancel(message, batch)
            else:
                batch.rescheduled += (due_ms, member_of(message.id))
        if due_ms is not None and not changed.isdisjoint(delayed):
            self._lane.next_due_ms = min(due_ms, self._lane.next_due_ms or due_ms)
        return {"ok": True, "changed": [id_ for id_ in ids if id_ in changed], "refused": refused}

    def _where(self, ids: Sequence[str]) -> list[tuple[str, bool, int | None, bool]]:
        """For each message: its id, whether it is delayed, until when its ticket waits for it, whether it is late."""
        if not ids:
            return []
        keys = self._term.keys
        members = [member_of(id_) for id_ in ids]
        sets = (keys.delayed, keys.holding, keys.late)
        replies = self._term.wire.call_many([("ZMSCORE", key, *members) for key in sets])
        return [
            (id_, delayed is not None, None if held is None else int(float(held)), late is not None)
            for id_, delayed, held, late in zip(ids, *replies, strict=True)
        ]

    def _cancel(self, message: Message, batch: Batch) -> None:
        batch.acknowledged.append(message.id)
        batch.over.append(member_of(message.id))
        batch.count("cancelled")
        if self._term.settings.history:
            batch.history.append(row(message.id, What.CANCELLED, ticket=message.ticket, task=message.task))

    def _change_held(self, message: Message, due_ms: int | None, batch: Batch) -> None:
        """Takes the message out of the picture, or gives it another due time there, if it is in memory."""
        lane = self._lane
        parked = lane.parked.get(message.ticket)
        if parked is not None:
            # It is pending under the ticket's own name, or under the master's if it was spilled when the ticket was
            # parked.
            if due_ms is None:
                lane.unshelve(parked, self._is_on_shelf(message))
            return
        ticket = lane.tickets.get(message.ticket)
        if ticket is None:
            return
        at = next((at for at, one in enumerate(ticket.waiting) if one.id == message.id), None)
        is_first = ticket.front_id == message.id or at == 0
        lane.touch(ticket, batch)
        if is_first:
            lane.end_hold(ticket)
        elif due_ms is None:
            lane.resting.forget(ticket, message.id)
        if at is not None:
            here = ticket.waiting[at]
            if due_ms is None:
                self._remove(ticket, at)
            elif here.options is not None:
                here.options = replace(here.options, due_ms=due_ms)
        lane.make_ready(ticket)

    def _remove(self, ticket: Ticket, at: int) -> None:
        lane = self._lane
        if at == 0:
            lane.unqueue(ticket)
        message = ticket.waiting[at]
        del ticket.waiting[at]
        lane.drop(ticket, message)

    def _is_on_shelf(self, message: Message) -> bool:
        keys, name = self._term.keys, self._lane.parked_name(message.ticket)
        rows = self._term.wire.call("XPENDING", keys.stream, keys.group, message.id, message.id, 1)
        return bool(rows) and rows[0][1] == name.encode(errors="surrogateescape")


def _expires_by(message: Message, due_ms: int | None) -> bool:
    """Whether a message that is due at ``due_ms`` has expired by then."""
    return due_ms is not None and message.options is not None and message.options.has_expired(due_ms)
