"""Carries out operators' orders: park, release, drain, resume, transfer, replay. Those about delayed messages are
carried out by `bridge.leader.duties.delayed_orders`.

Orders come through the outcome stream, in one sequence with the outcomes of workers. Only a leader carries them out.
The step that settles an order's entry also writes the order's changes. If the leader dies before that step, the next
leader reads the order again. If it dies after the step, the order is done, and only the answer is missing.

The operator may withdraw an order until that step. The entry is gone then, so the step changes nothing, and the leader
reads the lane again. `bridge.operate.orders` is the operator's side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson
from celery.utils.log import get_logger
from redis.exceptions import ResponseError

from bridge.leader.duties.delayed_orders import DelayedOrders
from bridge.leader.picture.pieces import Consumer, Ticket
from bridge.protocol.dead_letters import NAMES_NONE, read_letter
from bridge.protocol.drain_orders import DrainOrder
from bridge.protocol.names import WorkerRequest
from bridge.protocol.orders import ChangeDelayed, Drain, Order, Park, Release, Replay, Resume, Transfer, read_order
from bridge.protocol.outcome_entries import EntryKind, Notice
from bridge.routing.batch import Batch
from bridge.routing.history import What, row
from bridge.routing.ids import can_be_id, id_key
from bridge.routing.message_options import HAS_EXPIRED
from bridge.routing.messages import LEFT_OUT_NOW, LeftOut, Message
from bridge.routing.text import one_line
from bridge.routing.transitions import Advanced, unname

if TYPE_CHECKING:
    from bridge.leader.consumers.queues import Queues
    from bridge.leader.picture.lane import Lane
    from bridge.leader.repair.manual_changes import ManualChanges
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term
    from bridge.leader.stream.pending import PendingList

logger = get_logger(__name__)

#: How long an answer is kept for the operator, in seconds.
ANSWER_KEPT_S = 60
#: Why a message is not replayed.
NOT_DEAD = "it is not dead: it waits or runs"

Answer = dict[str, Any]


class OperatorOrders:
    """Carries out orders on one lane, on the leader's thread.

    ``find_consumers``: takes new registrations into the picture.
    """

    def __init__(
        self,
        term: Term,
        lane: Lane,
        steps: Steps,
        pending: PendingList,
        queues: Queues,
        manual_changes: ManualChanges,
        find_consumers: Callable[[], object],
    ) -> None:
        self._term = term
        self._lane = lane
        self._steps = steps
        self._pending = pending
        self._queues = queues
        self._manual_changes = manual_changes
        self._find_consumers = find_consumers
        self._keys = term.keys
        steps.on_notice[EntryKind.ORDER] = self._take
        steps.after_write.append(self._answer)
        self._answers: list[tuple[str, Answer]] = []
        #: Names in the group that have no pending entries any more.
        self._emptied: list[str] = []
        self._known: dict[type[Order], Callable[[Any, Batch], Answer]] = {
            Park: self._park,
            Release: self._release,
            Drain: self._drain,
            Resume: self._resume,
            Transfer: self._transfer,
            Replay: self._replay,
            ChangeDelayed: DelayedOrders(term, lane).carry_out,
        }

    def take(self, order_id: str, text: bytes, batch: Batch) -> None:
        """Carries out the order in the picture and the batch."""
        try:
            order = read_order(text)
            answer = self._known[type(order)](order, batch)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            answer = {"error": f"this master does not understand the order: {exc!r}"}
        # An answer about hundreds of messages names each of them.
        said = {name: len(value) if isinstance(value, list) else value for name, value in answer.items()}
        logger.info("order %s: %s", one_line(text.decode(errors="replace")), one_line(str(said)))
        self._answers.append((order_id, answer))

    def _take(self, notice: Notice, batch: Batch) -> None:
        batch.orders.append(notice.id)
        self.take(notice.who, notice.value, batch)

    def _answer(self, _done: Advanced, _batch: Batch) -> None:
        """Answers the orders of a written batch."""
        answers, self._answers = self._answers, []
        emptied, self._emptied = self._emptied, []
        for name in emptied:
            unname(self._term.redis, self._term.leadership, name)
        for order_id, answer in answers:
            key = self._keys.reply(order_id)
            try:
                with self._term.redis.pipeline(transaction=True) as pipe:
                    pipe.rpush(key, orjson.dumps(answer))
                    pipe.expire(key, ANSWER_KEPT_S)
                    pipe.execute()
            except ResponseError as exc:
                # The server is full. The order is carried out, but the operator gets no answer.
                logger.warning("cannot answer order %s: %s", order_id, exc)

    # -- tickets ---------------------------------------------------------------------------------------------------

    def _park(self, order: Park, batch: Batch) -> Answer:
        lane = self._lane
        name = order.ticket
        if name in lane.parked:
            return _nothing_to_do(f"ticket {name} is parked already")
        ticket = lane.tickets.get(name)
        if ticket is None:
            # The ticket has no undone message. Its next messages will wait.
            ticket = lane.tickets[name] = Ticket(name)
        lane.park(ticket, order.reason, batch)
        return {"ok": True, "in_flight": len(ticket.run)}

    def _release(self, order: Release, batch: Batch) -> Answer:
        lane = self._lane
        name = order.ticket
        ticket = lane.tickets.get(name)
        if ticket is not None and ticket.park_reason is not None:
            # The ticket was to be parked after its run.
            lane.touch(ticket, batch)
            ticket.park_reason = None
            lane.make_ready(ticket)
            return {"ok": True, "messages": 0}
        ticket = lane.parked.get(name)
        if ticket is None:
            return _nothing_to_do(f"ticket {name} is not parked")
        shelf = lane.parked_name(name)
        # Messages that this batch puts aside are not pending there yet.
        fresh = batch.shelved.pop(shelf, [])
        ids = list(self._pending.under(shelf))
        if (short := ticket.shelved - len(fresh) - len(ids)) > 0:
            # Some were removed from the pending list by hand since it was compared.
            self._manual_changes.mend_parked({ticket: short})
            ids = list(self._pending.under(shelf))
        self._pending.claim_back(lane.settings.master, ids, batch, spared={ticket.front_id})
        lane.unpark(ticket, batch)
        self._emptied.append(shelf)
        return {"ok": True, "messages": len(ids) + len(fresh)}

    # -- consumers -------------------------------------------------------------------------------------------------

    def _drain(self, order: Drain, batch: Batch) -> Answer:
        consumer = self._consumer(order.consumer)
        if consumer is None:
            return _nothing_to_do(f"there is no consumer {order.consumer}")
        started = consumer.registration.started if consumer.registration is not None else None
        batch.drains[consumer.name] = DrainOrder(self._lane.clock.server_ms(), started).text()
        consumer.draining = True
        self._queues.empty(consumer, batch)
        return {"ok": True, "in_flight": consumer.messages}

    def _resume(self, order: Resume, batch: Batch) -> Answer:
        consumer = self._consumer(order.consumer)
        if consumer is None:
            return _nothing_to_do(f"there is no consumer {order.consumer}")
        batch.drains[consumer.name] = ""
        consumer.draining = False
        self._lane.stranded.fit()
        return {"ok": True, "in_flight": consumer.messages}

    def _transfer(self, order: Transfer, batch: Batch) -> Answer:
        lane = self._lane
        consumer = self._consumer(order.consumer)
        if consumer is None:
            return _nothing_to_do(f"there is no consumer {order.consumer}")
        to = order.to or ""
        names = None if order.tickets is None else set(order.tickets)
        ready = [ticket for ticket in consumer.ready if names is None or ticket.id in names]
        flying = [ticket for ticket in consumer.tickets if names is None or ticket.id in names]
        if not ready and not flying:
            # The command is about other lanes as well, and those tickets may be there.
            return {"ok": True, "moved": 0, "running": 0}

        def others() -> bool:
            return any(c.open and c is not consumer and to in ("", c.name) for c in lane.consumers.values())

        if not others():
            self._find_consumers()
        if not others():
            return {"error": f"{to or 'no other consumer'} {'takes no tickets' if to else 'can take them'} now"}
        for ticket in ready:
            lane.unqueue(ticket)
            ticket.moving = to
            lane.make_ready(ticket)
        for ticket in flying:
            ticket.moving = to
        moved = len(ready) + self._queues.take_back(consumer, batch)
        if flying:
            self._steps.request(consumer, WorkerRequest.GIVE_BACK, batch)
        return {"ok": True, "moved": moved, "running": sum(1 for ticket in flying if ticket.run)}

    def _consumer(self, name: str) -> Consumer | None:
        """The consumer ``name`` that lives. One that has registered since the last look is taken into the picture."""
        found = self._living(name)
        if not found:
            self._find_consumers()
            found = self._living(name)
        return found[-1] if found else None

    def _living(self, name: str) -> list[Consumer]:
        return [c for c in self._lane.consumers.values() if c.name == name and c.alive]

    # -- dead letters ----------------------------------------------------------------------------------------------

    def _replay(self, order: Replay, batch: Batch) -> Answer:
        refused: list[tuple[str, str]] = []
        named: list[tuple[str, str, int]] = []
        for letter_id in order.letters:
            subject = self._subject(letter_id)
            if subject is None:
                refused.append((letter_id, "there is no such dead letter"))
            elif can_be_id(subject[0]):
                named.append((letter_id, *subject))
            else:
                refused.append((letter_id, NAMES_NONE))
        replayed: list[str] = []
        # Read one message at a time: each may be large.
        for letter_id, message_id, due_ms in sorted(named, key=lambda one: id_key(one[1])):
            message = self._dead_message(message_id)
            if isinstance(message, Message) and message.id in batch.given_back:
                # By another order in the same step. A parked ticket does not know its messages.
                message = NOT_DEAD
            if not isinstance(message, Message):
                refused.append((letter_id, message))
                continue
            replayed.append(letter_id)
            batch.given_back.append(message.id)
            batch.replayed.append(letter_id)
            batch.count("replayed")
            if self._term.settings.history:
                batch.history.append(row(message.id, What.REPLAYED, ticket=message.ticket, task=message.task))
            self._lane.replay(message, batch, due_ms)
        return {"ok": True, "replayed": replayed, "refused": refused}

    def _subject(self, letter_id: str) -> tuple[str, int] | None:
        """The message id in a dead letter, and when the message was due; None: there is no such letter."""
        entries = self._term.wire.call("XRANGE", self._keys.dead, letter_id, letter_id)
        if not entries:
            return None
        letter = read_letter(*entries[0])
        return letter.message_id, letter.due_ms

    def _dead_message(self, id_: str) -> Message | str:
        """The message ``id_`` from its entry in the stream, or why it cannot be replayed."""
        entry = self._term.wire.call("XRANGE", self._keys.stream, id_, id_)
        if not entry:
            return "its entry has left the stream, so it cannot take its place again; push it again"
        # A letter that was written by hand may have it with zeros before it.
        message = self._term.parser.parse(entry[0][0].decode(), entry[0][1])
        if isinstance(message, LeftOut):
            return LEFT_OUT_NOW
        if not isinstance(message, Message):
            return f"it can still not be processed: {message.reason.value}"
        lane = self._lane
        ticket = lane.tickets.get(message.ticket)
        if message.id in lane.in_flight or (ticket is not None and any(m.id == message.id for m in ticket.waiting)):
            return NOT_DEAD
        if message.options is not None and message.options.has_expired(lane.clock.due_ms()):
            return HAS_EXPIRED
        return message


def _nothing_to_do(why: str) -> Answer:
    return {"error": why, "nothing_to_do": True}
