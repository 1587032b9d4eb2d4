"""The consumers of a lane: the state of each, and what it has in flight. Never writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from bridge.protocol.drain_orders import read_drain_order
from bridge.protocol.held_runs import read_held_runs
from bridge.protocol.names import HEADER_REQUEST, WorkerRequest
from bridge.protocol.registration import Registration, read_registration
from bridge.protocol.unreadable import UNREADABLE, Skip, read_all
from bridge.routing.errors import InputError
from bridge.routing.groups import pending_summary, raw_name, unless_missing
from bridge.routing.ids import id_key
from bridge.routing.text import printable

if TYPE_CHECKING:
    from redis import Redis

    from bridge.routing.keys import LaneKeys
    from bridge.settings.lane import LaneSettings


T = TypeVar("T")


class ConsumerState(Enum):
    """Whether a consumer takes new work. `bridge status` shows the value."""

    #: It takes new work.
    OPEN = "open"
    #: It takes nothing new, by an operator's order.
    DRAINING = "draining"
    #: It shuts down.
    LEAVING = "leaving"
    #: Its lease holds, and it takes nothing from its queue. The leader's probe is still in its queue.
    STALLED = "stalled"
    #: Its lease is over: it is gone, or will register as a new incarnation.
    OVER = "lease over"


@dataclass(frozen=True)
class ConsumerStatus:
    """One consumer of the lane. None: not known."""

    name: str
    state: ConsumerState
    #: Its lease holds.
    alive: bool
    #: Whether it is registered. If not, the group still has its name, with the messages that it had in flight.
    registered: bool
    #: Whether an operator ordered that it takes nothing new.
    draining: bool
    #: Pool processes.
    slots: int | None
    pool: str | None
    pid: int | None
    incarnation: str | None
    #: Messages pending under its name.
    in_flight: int
    #: Tickets that it held when it last renewed its lease; None before the first renewal, or its report cannot be read.
    tickets: int | None
    #: Celery messages in its queue.
    queued: int
    #: Milliseconds until its lease ends.
    lease_ms: int
    #: Milliseconds since it registered.
    up_ms: int | None
    #: Version of this package.
    version: str | None = None
    #: Celery queues that it consumes beside its own.
    queues: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Pending:
    """How many entries are pending in the group, by consumer name."""

    first_ms: int | None
    of_master: int
    of_consumers: dict[str, int]
    #: Parked ticket -> its shelved messages.
    of_parked: dict[str, int]
    #: Messages that others overtake until they are due.
    of_delayed: int = 0
    #: Those that were due, and are not done.
    of_late: int = 0

    @classmethod
    def of(cls, reply: Any, lane: LaneSettings, registered: Collection[str], late: int = 0) -> Pending:
        """From the reply of XPENDING without a range. None: there is no group. ``late``: how many undone messages were
        delayed.
        """
        summary = pending_summary(reply)
        aside = lane.keys.parked_consumer(lane.master, "")
        delayed = lane.keys.delayed_consumer(lane.master)
        of_master, of_delayed, of_consumers, of_parked = 0, 0, {}, {}
        for raw, number in summary.under.items():
            name = raw.decode(errors="replace")
            if name == lane.master:
                of_master = number
            elif name == delayed and name not in registered:
                of_delayed = number
            elif name.startswith(aside) and name not in registered:
                of_parked[name.removeprefix(aside)] = number
            else:
                of_consumers[name] = number
        first_ms = None if summary.oldest is None else id_key(summary.oldest)[0]
        return cls(first_ms, of_master, of_consumers, of_parked, of_delayed, late)


def registrations_of(keys: LaneKeys, reply: dict[bytes, bytes], skip: Skip) -> dict[str, Registration]:
    """Consumer -> its registration, from the reply of HGETALL. ``skip`` gets what cannot be read, as of `read_all`."""
    found = read_all(keys.consumers, reply, lambda _name, text: read_registration(text), skip)
    return {name.decode(): registration for name, registration in found.items()}


def draining(registration: Registration, order: bytes | None) -> bool:
    """Whether ``order``, a value of the hash ``drains``, holds for the process that registered. One that cannot be read
    does not: the leader skips it.
    """
    found = _read_or_none(read_drain_order, order)
    return found is not None and found.is_for(registration)


def _read_or_none(read: Callable[[bytes], T], text: bytes | None) -> T | None:
    """What ``read`` makes of ``text``; None: there is none, or it cannot be read."""
    try:
        return read(text) if text else None
    except UNREADABLE:
        return None


def request_consumers(pipe: Any, keys: LaneKeys, registrations: dict[str, Registration]) -> None:
    """Adds commands to ``pipe``. `consumers` takes their replies."""
    for name, registration in registrations.items():
        pipe.pttl(keys.lease(registration.incarnation))
        pipe.get(keys.held(registration.incarnation))
        pipe.llen(keys.queue(name))
        # The oldest, which the consumer takes next.
        pipe.lindex(keys.queue(name), -1)


def consumers(
    registrations: dict[str, Registration],
    replies: Sequence[Any],
    drains: dict[bytes, bytes],
    pending: Pending,
    now_ms: int,
) -> tuple[ConsumerStatus, ...]:
    """All consumers in the order of their names, also unregistered ones that have messages in flight. ``replies``: of
    the commands that `request_consumers` added.
    """
    found = []
    for i, (name, registration) in enumerate(registrations.items()):
        lease_ms, held, queued, oldest = replies[4 * i : 4 * i + 4]
        since = registration.since
        ordered = draining(registration, drains.get(name.encode()))
        state = ConsumerState.DRAINING if ordered else ConsumerState.OPEN
        if lease_ms <= 0:
            state = ConsumerState.OVER
        elif registration.leaving:
            state = ConsumerState.LEAVING
        elif _is_probe(oldest):
            state = ConsumerState.STALLED
        found.append(
            ConsumerStatus(
                name=name,
                state=state,
                alive=lease_ms > 0,
                registered=True,
                draining=ordered,
                slots=registration.slots,
                pool=registration.pool,
                pid=registration.pid,
                incarnation=registration.incarnation,
                in_flight=pending.of_consumers.get(name, 0),
                tickets=None if (report := _read_or_none(read_held_runs, held)) is None else len(report.fences),
                queued=queued,
                lease_ms=max(0, lease_ms),
                up_ms=None if since is None else max(0, now_ms - int(since * 1000)),
                version=registration.facts.get("version"),
                queues=registration.queues,
            )
        )
    for name, number in pending.of_consumers.items():
        if name not in registrations and number:
            gone = (ConsumerState.OVER, False, False, False, None, None, None, None)
            found.append(ConsumerStatus(name, *gone, number, None, 0, 0, None))
    return tuple(sorted(found, key=lambda consumer: consumer.name))


def _is_probe(text: bytes | None) -> bool:
    """Whether a Celery message is the leader's probe: it shows whether the consumer reads its queue."""
    if text is None or HEADER_REQUEST.encode() not in text:
        return False
    message: Any = _read_or_none(orjson.loads, text)
    headers = message.get("headers") if isinstance(message, dict) else None
    return isinstance(headers, dict) and headers.get(HEADER_REQUEST) == WorkerRequest.PROBE.value


def full_name(redis: Redis, lanes: Sequence[LaneKeys], name: str) -> str:
    """The name of the consumer that ``name`` means, registered in one of ``lanes``. ``name`` is the whole name, or its
    part before the @. Raises `InputError` when no consumer matches, or more than one does.
    """
    names = _registered(redis, lanes)
    if (found := _meant(names, name)) is not None:
        return found
    there = f"there are {printable(', '.join(names))}" if names else "none is registered"
    raise InputError(f"there is no consumer {printable(name)} ({there})")


def name_of_pending(redis: Redis, lanes: Sequence[LaneSettings], name: str) -> str:
    """The name in the group that ``name`` means: itself, if it is the master's or messages are pending under it in one
    of ``lanes``, or a consumer, as of `full_name`. Any other name stays as it is.
    """
    with redis.pipeline(transaction=False) as pipe:
        for lane in lanes:
            pipe.execute_command("XPENDING", lane.stream, lane.group, "-", "+", 1, raw_name(name))
        pages = [unless_missing(reply) for reply in pipe.execute(raise_on_error=False)]
    if any(pages) or any(name == lane.master for lane in lanes):
        return name
    return _meant(_registered(redis, [lane.keys for lane in lanes]), name) or name


def _registered(redis: Redis, lanes: Sequence[LaneKeys]) -> list[str]:
    found: list[Any] = [redis.hkeys(keys.consumers) for keys in lanes]
    return sorted({raw.decode(errors="replace") for some in found for raw in some})


def _meant(names: Sequence[str], name: str) -> str | None:
    """That of ``names`` which ``name`` means; None: no one. Raises `InputError` when it may be several."""
    if name in names:
        return name
    matching = [one for one in names if one.partition("@")[0] == name]
    if len(matching) > 1:
        raise InputError(f"{printable(name)} may be any of {printable(', '.join(matching))}: give the whole name")
    return matching[0] if matching else None
