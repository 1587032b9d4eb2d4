"""Reads new entries and the master's own pending entries of the stream, and takes them into the picture."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from bridge.leader.picture.faults import MessageAtFault, fault_of
from bridge.routing.batch import Batch
from bridge.routing.errors import LaneConflict
from bridge.routing.ids import id_before, id_key, member_of
from bridge.routing.message_options import NAMES, BadOptionError, MessageOptions, read_options
from bridge.routing.messages import LeftOut, Message, ticket_of, unreadable
from bridge.routing.transitions import READ_BYTES, Read, read

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane
    from bridge.leader.step.term import Term

logger = get_logger(__name__)

#: Most entries in one read of the stream.
READ_COUNT = 500
#: The same for a subscription: the server and this process stand still for the others while it reads.
SUBSCRIPTION_READ_COUNT = 100
#: Most bytes of the fields other than the payload. A larger entry is not returned whole.
BESIDE_BYTES = 64 * 1024
#: Most bytes of an entry that is returned whole when only the names are needed.
NAMES_BYTES = 4096
#: Fields of which the beginnings are returned of an entry that is not returned whole.
SHOWN_FIELDS = 16


class Reading:
    """Reads in one term, on the leader's thread."""

    def __init__(self, term: Term, lane: Lane, *, has_company: bool = False) -> None:
        """``has_company``: the lane is that of one of several subscriptions."""
        self._term = term
        self._lane = lane
        self._most = SUBSCRIPTION_READ_COUNT if has_company else READ_COUNT
        #: Bytes of the largest entry of the last read. At first: the most that is possible.
        self._largest = READ_BYTES
        filtered = () if term.settings.filter is None else tuple(raw for raw, _, _ in term.settings.filter.wanted)
        #: Fields of a large entry that are returned, beside the ticket, the task and the payload.
        self.names = (*sorted(NAMES), *filtered)

    def read_on(self, read_to: str = "", *, after: str = ">", names: bool = False, most: int = READ_COUNT) -> Read:
        """Reads with `bridge.routing.transitions.read`. The sizes of the last read decide how many entries come first.

        ``names``: return only the beginnings of large entries. ``most``: entries, and
        no more than the lane reads at once.
        """
        term = self._term
        first = 16 if self._largest <= BESIDE_BYTES else 1
        limit = NAMES_BYTES if names else term.settings.max_payload + BESIDE_BYTES
        found = read(
            *(term.redis, term.leadership, min(most, self._most, READ_COUNT), read_to),
            after=after,
            limit=limit,
            first=first,
            names=self.names,
        )
        if found.entries:
            self._largest = found.largest
        return found

    def ingest(self, entry: Any, batch: Batch) -> None:
        """Takes one pending entry, in the form that a read returns, into the picture."""
        id_ = entry[0].decode()
        fault = fault_of(self._term.keys, id_)
        try:
            found = self._term.parser.parse_entry(entry) if fault is None else unreadable(entry, fault)
            if isinstance(found, Message):
                self._lane.ingest(found, batch)
            elif isinstance(found, LeftOut):
                self._lane.leave_out(found.id, batch)
            else:
                self._lane.refuse(found, batch)
        except LaneConflict:
            raise
        except Exception as exc:
            logger.exception("cannot take in message %s", id_)
            raise MessageAtFault(self._term.keys, id_, exc) from exc

    def overtaken(self, entry: Any, now_ms: float) -> Message | None:
        """The message of an entry that is not to be handled, if it is due after ``now_ms`` and others overtake it.

        It has no payload: it is parsed when it is due.
        """
        id_ = entry[0].decode()
        if len(entry) > 2 and entry[3] > SHOWN_FIELDS:
            # The field `due` may be behind those that were returned.
            entry = self.read_on(after=id_before(id_key(id_)), most=1).entries[0]
        fields = entry[1] or ()
        names = fields[::2]
        ticket = ticket_of(fields) if b"due" in names else None
        if ticket is None:
            return None
        try:
            options = read_options(id_key(id_)[0], fields, has_payload=b"payload" in names)
        except BadOptionError:
            return None
        later = options is not None and options.overtakes and options.due_ms > now_ms
        return Message(id_, ticket, "", b"", options) if later else None

    def take_late(self, entry: Any, due_ms: int, batch: Batch) -> None:
        """Takes an entry that was delayed, and was moved because it was due at ``due_ms``, into the picture."""
        id_ = entry[0].decode()
        fault = fault_of(self._term.keys, id_)
        try:
            found = self._term.parser.parse(id_, entry[1]) if fault is None else unreadable(entry, fault)
            if isinstance(found, Message):
                options = found.options
                if options is None or options.due_ms != due_ms or options.hold:
                    found.options = replace(options or MessageOptions(), due_ms=due_ms, hold=False)
                self._lane.take_late(found, batch, moved=True)
                return
            # Its entry was deleted, or the lane's settings are others than when it was read.
            if isinstance(found, LeftOut):
                batch.over.append(member_of(id_))
                self._lane.leave_out(id_, batch)
            else:
                self._lane.refuse(found, batch)
        except LaneConflict:
            raise
        except Exception as exc:
            logger.exception("cannot take in message %s", id_)
            raise MessageAtFault(self._term.keys, id_, exc) from exc
