"""The scripts of HTTP consumers: one typed function for each. One call serves all lanes of a consumer, in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from redis.asyncio import Redis

from bridge.routing.keys import LaneKeys
from bridge.routing.layouts import InLayout
from bridge.routing.membership import NO_LIFE
from bridge.routing.return_codes import ReturnCode, code_of
from bridge.routing.scripts import Argument, Script

_ENLIST = Script("enlist")
_TAKE = Script("take")
_ACKNOWLEDGE = Script("acknowledge")
_HEARTBEAT = Script("heartbeat")
_LEAVE = Script("leave")

#: How many acknowledged messages of an incarnation are remembered in each lane, at least all of one call.
REMEMBERED = 1000


class Enlisting(NamedTuple):
    """What an incarnation registers with in one lane."""

    keys: LaneKeys
    #: What the lane's stream belongs to.
    layout: InLayout
    lease_ms: int
    registration: bytes
    #: The registration that is there under this name, and its incarnation; None: there is none.
    found: tuple[bytes, str] | None


class Given(NamedTuple):
    """A message that was given."""

    #: The number of its lane, from 0.
    lane: int
    #: The Celery message.
    text: bytes


class Taken(NamedTuple):
    """What an HTTP consumer is given."""

    #: ms until the first of its leases ends.
    left_ms: int
    #: Unix time in ms, by the server's clock.
    now_ms: int
    messages: list[Given]


class Answer(NamedTuple):
    """An outcome that an HTTP consumer sends. ``rest``: what follows the start time in an outcome (JSON)."""

    message_id: str
    fence: int
    kind: str
    rest: str


class Heartbeat(NamedTuple):
    """The answer to a heartbeat."""

    #: Unix time in ms, by the server's clock.
    now_ms: int
    #: The drain order of each lane; b"": there is none.
    drains: list[bytes]
    #: Of each message that was asked about: whether it is the consumer's.
    is_own: list[bool]


async def enlist(
    client: Redis,
    consumer: str,
    incarnation: str,
    records: Sequence[str],
    record: tuple[bytes, int],
    lanes: Sequence[Enlisting],
) -> tuple[ReturnCode, int]:
    """Begins an incarnation in all ``lanes``. ``records``: the keys of the copies of its record. ``record``: its value,
    and its lifetime in ms.

    Returns OK, HELD with the ms that the other lease has left, CHANGED, or LAYOUT: the stream of a lane was retired or
    left.
    """
    keys: list[Argument] = [*records]
    args: list[Argument] = [consumer, incarnation, *record, len(records)]
    for lane in lanes:
        old_registration, old_incarnation = lane.found or (b"", NO_LIFE)
        of = lane.keys
        keys += (of.consumers, of.lease(incarnation), of.lease(old_incarnation), of.queue(consumer), of.outcomes)
        keys.append(lane.layout.key)
        args += (lane.lease_ms, lane.registration, old_registration, lane.layout.generation)
    reply = await _ENLIST.arun(client, keys, args)
    code = code_of(reply[0])
    return code, int(reply[1]) if code is ReturnCode.HELD else 0


async def take(
    client: Redis,
    lanes: Sequence[LaneKeys],
    consumer: str,
    incarnation: str,
    *,
    most: int,
    slots: int,
    most_bytes: int,
    first: int,
    has: Sequence[int],
) -> Taken | None:
    """Gives a consumer its unacknowledged messages, without those whose fences it ``has``, and then new ones.

    ``slots``: most unacknowledged messages. ``first``: number of the lane whose queue is first. None: a lease is over.
    """
    keys: list[Argument] = []
    for of in lanes:
        keys += (of.lease(incarnation), of.queue(consumer), of.given(incarnation), of.acknowledged(incarnation))
        keys += (of.tickets, of.outcomes)
    reply = await _TAKE.arun(client, keys, [incarnation, most, slots, most_bytes, first, *has])
    if code_of(reply[0]) is ReturnCode.LATE:
        return None
    _, left_ms, now_ms, pairs = reply
    return Taken(left_ms, now_ms, [Given(*pair) for pair in zip(pairs[::2], pairs[1::2], strict=True)])


async def acknowledge(
    client: Redis, lanes: Sequence[LaneKeys], incarnation: str, answers: Sequence[Answer]
) -> list[ReturnCode]:
    """Writes outcomes. Returns a code for each."""
    keys: list[Argument] = []
    for of in lanes:
        keys += (of.lease(incarnation), of.given(incarnation), of.acknowledged(incarnation), of.tickets, of.outcomes)
    args: list[Argument] = [incarnation, REMEMBERED, len(answers)]
    for answer in answers:
        args += answer
    return [code_of(code) for code in await _ACKNOWLEDGE.arun(client, keys, args)]


async def heartbeat(
    client: Redis,
    lanes: Sequence[LaneKeys],
    consumer: str,
    incarnation: str,
    record: tuple[Sequence[str], int],
    lease_ms: int,
    asked: Sequence[tuple[str, int]] = (),
) -> Heartbeat | None:
    """Renews the leases. ``record``: the keys of the copies of the incarnation's record, and their lifetime in ms.
    ``asked``: (message id, fence) of messages that the caller asks about. None: a lease is over, or the incarnation is
    not registered any more.
    """
    records, lifetime_ms = record
    keys: list[Argument] = [*records]
    for of in lanes:
        keys += (of.lease(incarnation), of.held(incarnation), of.given(incarnation), of.acknowledged(incarnation))
        keys += (of.drains, of.tickets, of.consumers)
    args: list[Argument] = [consumer, incarnation, lease_ms, lifetime_ms, len(records)]
    for one in asked:
        args += one
    reply = await _HEARTBEAT.arun(client, keys, args)
    if code_of(reply[0]) is ReturnCode.LATE:
        return None
    _, now_ms, drains, own = reply
    return Heartbeat(now_ms, drains, [one == 1 for one in own])


async def leave(
    client: Redis, lanes: Sequence[LaneKeys], consumer: str, incarnation: str, *, ends_drain: bool
) -> ReturnCode:
    """Ends the leases of an incarnation. ``ends_drain``: also an order that drains the consumer. LATE: all leases were
    over.
    """
    keys: list[Argument] = []
    for of in lanes:
        keys += (of.lease(incarnation), of.held(incarnation), of.given(incarnation), of.acknowledged(incarnation))
        keys += (of.outcomes, of.drains)
    return code_of(await _LEAVE.arun(client, keys, [consumer, incarnation, int(ends_drain)]))
