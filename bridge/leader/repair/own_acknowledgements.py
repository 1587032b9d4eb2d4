"""Messages that an HTTP consumer acknowledged in the stream itself (XACK), as services without the bridge do: done.

Such a message was given to the consumer, which holds its lease, and is pending nowhere. The leader writes the outcome
for it, which is then settled like any other. An XACK of anybody else's message makes nothing done
(`bridge.leader.repair.manual_changes`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.protocol.outcome_entries import EntryKind, notice_fields
from bridge.protocol.outcomes import Kind, Outcome

if TYPE_CHECKING:
    from bridge.leader.picture.pieces import Ticket
    from bridge.leader.step.term import Term

logger = get_logger(__name__)


def take_own_acknowledgements(term: Term, suspects: Iterable[tuple[str, Ticket]], names: Iterable[str]) -> list[str]:
    """Writes outcomes for those of ``suspects`` (message in flight, its ticket) that their consumer acknowledged.

    ``names``: the consumers that the group has. (XGROUP DELCONSUMER of a name is no acknowledgement.) Returns the ids.
    """
    keys, wire, there = term.keys, term.wire, set(names)
    found = []
    for id_, ticket in suspects:
        consumer = ticket.consumer
        if consumer is None or consumer.takes_bundles or not consumer.alive or consumer.name not in there:
            continue
        if not wire.call("HEXISTS", keys.given(consumer.incarnation), ticket.fence):
            continue
        if wire.call("XPENDING", keys.stream, keys.group, id_, id_, 1):
            continue
        done = b"[%b]" % Outcome(id_, ticket.fence, Kind.DONE).encode()
        wire.call("XADD", keys.outcomes, "*", *notice_fields(EntryKind.OUTCOMES, consumer.incarnation, done))
        found.append(id_)
    if found:
        logger.info("%d messages were acknowledged in the stream by the HTTP consumers that had them", len(found))
    return found
