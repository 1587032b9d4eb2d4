"""The leader's picture of its lane: tickets, waiting messages, messages in flight. No I/O.

Everything here can be rebuilt from Redis (invariant I6): messages in flight from the ticket records, waiting messages
from the master's own pending entries. The leader fills a `Batch` from this picture and writes it with one script. Only
then does it take the new fences into the picture (`written`). When the script is refused, or its reply is lost, the
leader throws the whole picture away and reads the lane again. It never repairs the picture by guessing.

The picture has four base classes, one for each thing that it keeps: the messages in memory (`Window`), the messages in
flight (`Flight`), the tickets that can be dispatched (`Ready`), and the records of tickets (`TicketRecords`). They are
base classes, not parts, because every message uses all of them several times. `Lane` adds the messages that come in.

The messages of a ticket are in the order of their places (`Message.place`), with one exception. A message that was
begun stays first, even when an older message is replayed (`replay`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bridge.leader.picture.pieces import Ticket
from bridge.leader.picture.ticket_records import TicketRecords
from bridge.protocol import dead_letters
from bridge.routing.history import What, row
from bridge.routing.ids import IdKey, Place, id_key, id_text, late_place, member_of

if TYPE_CHECKING:
    from bridge.leader.picture.times import Times
    from bridge.routing.batch import Batch
    from bridge.routing.message_options import MessageOptions
    from bridge.routing.messages import Message, Refusal
    from bridge.settings.lane import LaneSettings


class Lane(TicketRecords):
    """The picture of one lane."""

    def __init__(self, settings: LaneSettings, clock: Times) -> None:
        super().__init__(settings, clock)
        #: Whether the history of the lane is kept.
        self._historical = settings.history > 0
        #: Id up to which entries are in the picture. A refill takes no newer ones: they would be handled twice.
        self.read_to: IdKey = (0, 0)
        #: Whether the stream has no unread entries beyond those that are taken in now.
        self.read_all = False
        #: Whether some undone message may be late: it was delayed, and is due.
        self.has_late = False
        #: What is read now and is due before this time (Unix ms) is late at once: newer messages are read with it.
        self.late_before_ms = 0
        #: The earliest due time of a delayed message (Unix ms), as far as it is known; None: there is none.
        self.next_due_ms: int | None = None
        #: While a new leader reads the lane: message for which its ticket waits -> when it is due (Unix ms). It may
        #: have been rescheduled, and the entry still has the first time.
        self.held_until_ms: dict[str, int] = {}
        self._delayed_name = settings.keys.delayed_consumer(settings.master)
        #: Whether some entries that were read before this term are not in the picture yet: those after `read_to`.
        self.behind = False
        #: Names of the HTTP consumers, made with each look at the registrations, since each batch asks.
        self.over_http: frozenset[str] = frozenset()
        #: Measured service time of each task, in ms.
        self.service_ms: dict[str, float] = {}

    def ingest(self, message: Message, batch: Batch) -> None:
        """Takes in a message that is pending under the master's name. The messages of a ticket come in id order."""
        if message.options is not None and self._is_delayed(message, message.options, batch):
            return
        if self.parked and message.ticket in self.parked:
            self.shelve(self.parked[message.ticket], {message.id: id_key(message.id)}, batch)
            return
        ticket = self.tickets.get(message.ticket)
        if ticket is None:
            ticket = self.tickets[message.ticket] = Ticket(message.ticket, since=message.id)
            if self.read_all:
                self.append(ticket, message)
                self.fresh.comes()
                self.make_ready(ticket, fresh=True)
                return
        elif ticket.spilled_from is not None:
            self._keep_spilled(ticket, ticket.spilled_from, message.id)
            return
        elif self.resting.tickets and self.resting.leave(ticket, message.id, id_key(message.id)):
            return
        elif self.has_late and ticket.waiting and ticket.waiting[-1].place > id_key(message.id):
            # A late message was read with it, or the ids have nothing to do with the time.
            self._put_in_place(ticket, message, message.place)
            return
        elif self.has_enough(ticket, message.size):
            self.spill(ticket, id_key(message.id))
            return
        self.append(ticket, message)
        self.make_ready(ticket)

    def note_spilled(self, ticket_id: str, id_: str, batch: Batch) -> None:
        """Notes a message that is pending under the master's name, and leaves it spilled.

        The messages of a ticket come in id order.
        """
        key = id_key(id_)
        if ticket_id in self.parked:
            self.shelve(self.parked[ticket_id], {id_: key}, batch)
            return
        ticket = self.tickets.get(ticket_id)
        if ticket is None:
            ticket = self.tickets[ticket_id] = Ticket(ticket_id, since=id_)
        if ticket.spilled_from is not None:
            self._keep_spilled(ticket, ticket.spilled_from, id_)
        elif not self.resting.leave(ticket, id_, key):
            self.spill(ticket, key)

    def _keep_spilled(self, ticket: Ticket, spilled_from: Place, id_: str) -> None:
        """Counts a message that was just read, and leaves it in Redis. What the ticket has spilled already comes before
        it. There are two exceptions: late messages, and a message that was begun, which stays before a replayed one.
        """
        ticket.waiting_known += 1
        if (key := id_key(id_)) < spilled_from:
            ticket.spilled_from = key
            self._drop_from(ticket, key)

    # -- delayed messages --------------------------------------------------------------------------------------------

    def _is_delayed(self, message: Message, options: MessageOptions, batch: Batch) -> bool:
        """Takes in what the options of a message say of its order. Returns whether nothing is left to do."""
        if options.hold:
            if (due_ms := self.held_until_ms.get(message.id, options.due_ms)) != options.due_ms:
                options = message.options = replace(options, due_ms=due_ms)
            if options.due_ms > self.clock.due_ms():
                batch.holding += (options.due_ms, member_of(message.id))
            return False
        if not options.due_ms:
            return False
        if options.due_ms < self.late_before_ms:
            self.take_late(message, batch)
        else:
            self.delay(message, options.due_ms, batch)
        return True

    def delay(self, message: Message, due_ms: int, batch: Batch) -> None:
        """Others overtake this message until it is due. It costs nothing here until then."""
        batch.delay(self._delayed_name, message.id, due_ms)
        if self._historical:
            batch.history.append(row(message.id, What.DELAYED, ticket=message.ticket, dispatched_ms=due_ms))
        if self.next_due_ms is None or due_ms < self.next_due_ms:
            self.next_due_ms = due_ms

    def take_late(self, message: Message, batch: Batch, *, moved: bool = False) -> None:
        """Takes in a message that was delayed and is due, at its place. ``moved``: Redis knows that it is late."""
        options = message.options
        assert options is not None
        if not moved:
            batch.late += (options.due_ms, member_of(message.id))
        self.has_late = True
        if self._historical and not moved:
            batch.history.append(row(message.id, What.DUE, ticket=message.ticket, dispatched_ms=options.due_ms))
        if self.behind:
            # Its place is further on. It is read when the scan has come past it.
            self.note_late(message.ticket, message.id, options.due_ms, batch)
            return
        place = message.place
        ticket = self.parked.get(message.ticket)
        if ticket is not None:
            self.shelve(ticket, {message.id: place}, batch)
            return
        ticket = self.tickets.get(message.ticket)
        if ticket is None:
            # Messages of it that are not late are younger than all that were read.
            ticket = self.tickets[message.ticket] = Ticket(message.ticket, since=id_text(self.read_to))
        elif ticket.spilled_from is not None and place >= ticket.spilled_from:
            ticket.waiting_known += 1
            return
        self._put_in_place(ticket, message, place)

    def note_late(self, ticket_id: str, id_: str, due_ms: int, batch: Batch) -> None:
        """Notes a late message that is pending under the master's name, and leaves it spilled."""
        place = late_place(due_ms, id_)
        self.has_late = True
        if ticket_id in self.parked:
            self.shelve(self.parked[ticket_id], {id_: place}, batch)
            return
        ticket = self.tickets.get(ticket_id)
        if ticket is None:
            ticket = self.tickets[ticket_id] = Ticket(ticket_id, since=id_)
        if self.resting.leave(ticket, id_, place):
            return
        if ticket.spilled_from is None:
            self.spill(ticket, place)
        else:
            ticket.waiting_known += 1
            ticket.spilled_from = min(ticket.spilled_from, place)

    def has_begun(self, id_: str) -> bool:
        """Whether a message that was begun awaits its next attempt, and is this one."""
        ticket = self.rested.get(id_)
        return ticket is not None and ticket.begun

    def end_hold(self, ticket: Ticket) -> None:
        """The ticket does not wait any more for the message that is not due: another one goes first."""
        if not ticket.holding:
            return
        ticket.holding = False
        ticket.due_ms = 0
        self.unrecorded[ticket] = None
        if self.resting.drop(ticket):
            front, ticket.front_id = id_key(ticket.front_id), ""
            ticket.spilled_from = min(front, ticket.spilled_from or front)
            self.spilled.add(ticket)

    def _put_in_place(self, ticket: Ticket, message: Message, place: Place) -> None:
        """Puts a message that comes late to its place, but not before a message that was begun. It goes before those
        that are spilled.
        """
        # The message may come first, and be of another task.
        self.stranded.free(ticket)
        if ticket.holding and (not ticket.waiting or place < ticket.waiting[0].place):
            front = ticket.front_id
            if not front or place < id_key(front):
                self.end_hold(ticket)
        if self.resting.leave(ticket, message.id, place):
            return
        at = len(ticket.waiting)
        if at:
            first = 1 if ticket.begun and not (ticket.run or ticket.front_id) else 0
            while at > first and ticket.waiting[at - 1].place > place:
                at -= 1
        if self.full or self.has_enough(ticket, message.size):
            # This message and all after it are spilled, so that many of them do not fill the memory.
            self._drop_from(ticket, place)
            self.spill(ticket, place)
            return
        if ticket.queued and not at:
            # Its queue was chosen for another message, whose task may be another one.
            turn = ticket.turn
            self.unqueue(ticket)
            ticket.waiting.appendleft(message)
            self.keep(ticket, message)
            self.queue_with_turn(ticket, turn)
            return
        ticket.own_waiting().insert(at, message)
        self.keep(ticket, message)
        self.make_ready(ticket)

    def replay(self, message: Message, batch: Batch, due_ms: int = 0) -> None:
        """Takes in a dead message that is pending again, under the master's name. ``due_ms``: when it was due, as its
        letter says; 0: it does not say that.

        It goes to its place, but not before a message that was begun.
        """
        options = message.options
        if options is not None and options.due_ms:
            # Its delay is over. The entry has the first time, and an operator may have made it due before that.
            pushed_ms = id_key(message.id)[0] or 1
            if options.overtakes:
                # One that was refused has no such time. From its push on, it goes before all that has not begun.
                known = 0 < due_ms <= self.clock.due_ms()
                options = message.options = replace(options, due_ms=due_ms if known else pushed_ms)
                batch.late += (options.due_ms, member_of(message.id))
                self.has_late = True
            elif options.due_ms > self.clock.due_ms():
                options = message.options = replace(options, due_ms=pushed_ms)
                batch.holding += (options.due_ms, member_of(message.id))
        ticket = self.parked.get(message.ticket)
        if ticket is not None:
            self.shelve(ticket, {message.id: id_key(message.id)}, batch)
            return
        key = id_key(message.id)
        if key > self.read_to:
            # A new leader has not read up to this id yet. It takes the message in when it gets there.
            return
        if self.behind and options is not None and options.overtakes and message.place > self.read_to:
            # Its place is further on. It is read when the scan has come past it.
            self.note_late(message.ticket, message.id, options.due_ms, batch)
            return
        ticket = self.tickets.get(message.ticket)
        if ticket is None:
            ticket = self.tickets[message.ticket] = Ticket(message.ticket)
        self.older.add(ticket)
        if ticket.spilled_from is not None and message.place >= ticket.spilled_from:
            self.stranded.free(ticket)
            # It is read with the spilled messages, in its place. Taken in here as well, it would be there twice.
            return
        self._put_in_place(ticket, message, message.place)

    def _drop_from(self, ticket: Ticket, place: Place) -> None:
        """Removes the waiting messages from ``place`` on from memory, but not one that was begun."""
        first = 1 if ticket.begun and not (ticket.run or ticket.front_id) else 0
        while len(ticket.waiting) > first and ticket.waiting[-1].place > place:
            self.drop(ticket, ticket.waiting.pop())
        if not ticket.waiting:
            self.unqueue(ticket)

    def refuse(self, refusal: Refusal, batch: Batch) -> None:
        """Makes an entry that can never be processed a dead letter at once. Its ticket does not wait for it."""
        batch.dead.append(dead_letters.refused(refusal, at_ms=self.clock.server_ms()))
        batch.acknowledged.append(refusal.id)
        # It may have been delayed before its entry was deleted, or the lane's settings were changed.
        batch.over.append(member_of(refusal.id))
        batch.count("dead")
        if self._historical:
            batch.history.append(row(refusal.id, What.REFUSED))

    def leave_out(self, id_: str, batch: Batch) -> None:
        """Acknowledges a message that the lane does not want. Its ticket does not wait for it."""
        batch.acknowledged.append(id_)
        if self.behind:
            # An earlier leader wanted it, and may have delayed it.
            batch.over.append(member_of(id_))
        batch.count("left_out")
        if self._historical:
            batch.history.append(row(id_, What.LEFT_OUT))

    def skip(self, id_: str, batch: Batch) -> None:
        """Acknowledges a message that the lane does not handle, since it is too far behind."""
        batch.acknowledged.append(id_)
        batch.count("skipped")
        if self._historical:
            batch.history.append(row(id_, What.SKIPPED))
