"""Joins what was read from the partitions of a stream: consumers, and ids that name their partition. No I/O.

A stream that is not split has one lane. Then each function returns what it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bridge.inspect.roster import ConsumerState

if TYPE_CHECKING:
    from bridge.inspect.roster import ConsumerStatus
    from bridge.inspect.scans import Scan
    from bridge.inspect.ticket_facts import TicketFacts
    from bridge.protocol.dead_letters import Letter

#: States of a consumer, the one that needs attention most first.
_WORST = (
    *(ConsumerState.STALLED, ConsumerState.OVER, ConsumerState.LEAVING, ConsumerState.DRAINING, ConsumerState.OPEN),
)


def consumers_of_all(found: Sequence[Sequence[ConsumerStatus]]) -> tuple[ConsumerStatus, ...]:
    """The consumers of all partitions, each once. A consumer has a lease in each of them."""
    by_name: dict[str, list[ConsumerStatus]] = {}
    for some in found:
        for one in some:
            by_name.setdefault(one.name, []).append(one)
    return tuple(_consumer(parts) for _, parts in sorted(by_name.items()))


def _consumer(parts: list[ConsumerStatus]) -> ConsumerStatus:
    if len(parts) == 1:
        return parts[0]
    tickets = [one.tickets for one in parts if one.tickets is not None]
    # A consumer that starts may be registered in one partition and not yet in another.
    newest = min(parts, key=lambda one: (not one.registered, one.up_ms or 0))
    return replace(
        newest,
        state=min((one.state for one in parts), key=_WORST.index),
        alive=all(one.alive for one in parts),
        draining=any(one.draining for one in parts),
        in_flight=sum(one.in_flight for one in parts),
        tickets=sum(tickets) if tickets else None,
        queued=sum(one.queued for one in parts),
        lease_ms=min(one.lease_ms for one in parts),
    )


def name_letter(letter: Letter, suffix: str) -> Letter:
    """``letter`` with ids that name its partition. ``suffix``: what follows the stream ids there."""
    return replace(letter, id=letter.id + suffix, message_id=letter.message_id + suffix) if suffix else letter


def name_ticket(found: TicketFacts, suffix: str) -> TicketFacts:
    """``found`` with ids that name the partition."""
    if not suffix:
        return found
    in_flight, retry, parked = found.in_flight, found.retry, found.parked
    return replace(
        found,
        in_flight=in_flight and replace(in_flight, message_ids=tuple(id_ + suffix for id_ in in_flight.message_ids)),
        retry=retry and replace(retry, message_id=retry.message_id + suffix),
        parked=parked and replace(parked, message_id=parked.message_id and parked.message_id + suffix),
        letters=tuple(name_letter(letter, suffix) for letter in found.letters),
        last_done=found.last_done and found.last_done + suffix,
        waiting=_name_scan(found.waiting, suffix),
        unread=_name_scan(found.unread, suffix),
        delayed=_name_scan(found.delayed, suffix),
        next_delayed=found.next_delayed and replace(found.next_delayed, id=found.next_delayed.id + suffix),
    )


def _name_scan(scan: Scan, suffix: str) -> Scan:
    return replace(scan, ids=tuple(id_ + suffix for id_ in scan.ids))
