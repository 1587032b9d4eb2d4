"""Which of the lanes of a subscription, one for each partition, a ticket or a message belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.producer.message_bytes import ticket_bytes
from bridge.routing.errors import InputError
from bridge.routing.ids import can_be_id
from bridge.routing.partitions import partition_of, stream_id, suffix_of
from bridge.routing.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bridge.app.lanes import AppLane


def lane_of_ticket(lanes: Sequence[AppLane], ticket_id: str) -> AppLane:
    """The lane of the partition of a ticket. Raises `PayloadError` for what cannot be a ticket."""
    # While the stream is repartitioned, the older partitions come first.
    found = {(lane.partition or 0, lane.partitions): lane for lane in lanes}
    count = lanes[-1].partitions
    return found[partition_of(ticket_bytes(ticket_id), count), count]


def lanes_with_ticket(lanes: Sequence[AppLane], ticket_id: str) -> tuple[AppLane, ...]:
    """The lanes that may have messages of a ticket. Raises as `lane_of_ticket` does."""
    ticket = ticket_bytes(ticket_id)
    # While the stream is repartitioned, a ticket's older messages are in a partition of the older layout.
    return tuple(lane for lane in lanes if (lane.partition or 0) == partition_of(ticket, lane.partitions))


def lane_of_message(lanes: Sequence[AppLane], message_id: str) -> AppLane:
    """The lane of the partition that a message id names. Raises `InputError`."""
    suffix = suffix_of(message_id)
    for lane in lanes:
        if lane.id_suffix == suffix:
            return lane
    shown = printable(message_id)
    if suffix:
        raise InputError(f"{shown} names a partition that the stream does not have")
    some = f"{shown}{lanes[0].id_suffix}"
    raise InputError(f"the stream has {len(lanes)} partitions: name that of {shown} too, such as {some}")


def checked_id(message_id: str, *, whole: bool = True) -> str:
    """``message_id``, when it can be one. Raises `InputError`. ``whole``: the number behind its time may not be left
    out.
    """
    if not can_be_id(stream_id(message_id), whole=whole):
        raise InputError(f"{message_id!r:.80} is no message id, such as 1717171717171-0")
    return message_id
