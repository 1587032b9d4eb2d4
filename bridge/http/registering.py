"""HTTP consumers register, renew their leases, and leave.

A consumer serves all lanes of one subscription, with one incarnation: it registers in all of them in one step, and when
the lease of one lane is over, the incarnation is over. A name has one living incarnation, as among Celery workers. A
registration under a name whose lease holds waits until the lease is over. It is refused when the lease is renewed
meanwhile.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import RedisError
from starlette.requests import ClientDisconnect

from bridge.app.installed import bridge_of
from bridge.app.lanes import AppLane, subscriptions_of
from bridge.consumer.lease import PATIENCE
from bridge.http.incarnations import Incarnation, lease_over
from bridge.http.problems import Problem, unavailable
from bridge.protocol.agreement import facts, leads_http
from bridge.protocol.drain_orders import read_drain_order
from bridge.protocol.health_url import checked_health_url
from bridge.protocol.registration import HTTP, ChangingFacts, Profile, RunnableTasks, readable_or_none
from bridge.protocol.unreadable import read_one
from bridge.routing.http_consumers import Enlisting, Heartbeat, enlist, heartbeat, leave
from bridge.routing.membership import NO_LIFE
from bridge.routing.return_codes import ReturnCode

if TYPE_CHECKING:
    from bridge.http.consumer_forms import Registering
    from bridge.http.incarnations import Incarnations
    from bridge.http.site import Site
    from bridge.protocol.drain_orders import DrainOrder
    from bridge.protocol.registration import Registration
    from bridge.routing.keys import LaneKeys

#: Longest time between two looks at the lease of another consumer of the same name, in seconds.
OTHER_LEASE_S = 0.25

GO_ON, QUIET, LEAVE = "go on", "quiet", "leave"


class _There(NamedTuple):
    """What a lane has of a name."""

    text: bytes | None
    #: The registration of that text; None: there is none, or it cannot be read. Then it is replaced.
    other: Registration | None
    drain: DrainOrder | None

    @property
    def registered(self) -> tuple[bytes, str] | None:
        """The registration that is there, and its incarnation."""
        return (self.text, NO_LIFE if self.other is None else self.other.incarnation) if self.text else None

    @property
    def order(self) -> DrainOrder | None:
        """The order that drains the HTTP consumer that had the name last."""
        if self.drain is None or self.other is None or (self.other.kind == HTTP and self.drain.is_for(self.other)):
            return self.drain
        return None

    @property
    def lease_ms(self) -> int | None:
        """The length of the lease of the incarnation that is there. None: it did not say."""
        return None if self.other is None else self.other.lease_ms


class Registry:
    """The registrations of a server. For its event loop."""

    def __init__(self, site: Site, incarnations: Incarnations) -> None:
        self._site = site
        self._incarnations = incarnations
        #: The layout and the versions that `_of_layout` was made of.
        self._made_of: tuple[object, ...] = ()
        self._of_layout: Mapping[str, Sequence[AppLane]] = {}

    def subscriptions(self) -> Mapping[str, Sequence[AppLane]]:
        """The subscriptions of the app, each with its lanes."""
        bridge = bridge_of(self._site.app)
        if (made_of := (bridge.layout, bridge.follows)) != self._made_of:
            self._of_layout, self._made_of = subscriptions_of(self._site.app), made_of
        return self._of_layout

    async def register(
        self, asked: Registering, lanes: Sequence[AppLane], is_gone: Callable[[], Awaitable[bool]]
    ) -> Incarnation:
        """Begins an incarnation in ``lanes``. ``is_gone``: whether the client has closed its connection. Raises
        `Problem`, redis errors, and `ClientDisconnect` when the client went while the call waited.
        """
        self._check(asked, lanes)
        if asked.health_url is not None:
            networks = self._site.settings.http_health_networks
            # It resolves the name.
            await asyncio.to_thread(checked_health_url, asked.health_url, networks)
        lease_ms = lanes[-1].settings.lease_ms
        began = time.monotonic()
        while True:
            there = await self._look(asked.name, lanes)
            incarnation = Incarnation(
                id=uuid.uuid4().hex,
                name=asked.name,
                subscription=lanes[0].name,
                streams=_streams_of(lanes),
                slots=asked.concurrency,
                lease_ms=lease_ms,
                started=_started(there),
            )
            try:
                code, left_ms = await self._enlist(asked, lanes, incarnation, there)
            except (RedisError, OSError):
                await self._end(incarnation)
                raise
            if code is ReturnCode.OK:
                self._incarnations.add(incarnation)
                return incarnation
            if code is ReturnCode.LAYOUT:
                raise unavailable("this master does not know the layout of the stream yet: try again")
            # By the length of the lease that holds, as workers do: it was longer before a deploy that shortened it.
            longest_ms = max(one.lease_ms or lease_ms for one in there)
            if code is ReturnCode.HELD and time.monotonic() - began > PATIENCE * longest_ms / 1000:
                raise Problem(
                    409,
                    "another consumer of this name is registered and renews its lease: give this one a name of its own",
                )
            if self._site.stopping.is_set():
                raise unavailable("this master stops; use another one")
            if code is ReturnCode.HELD:
                await asyncio.sleep(min(OTHER_LEASE_S, left_ms / 1000 + 0.01))
                if await is_gone():
                    # Nobody would renew the lease, and messages would be dispatched to nobody until it is over.
                    raise ClientDisconnect

    async def _end(self, incarnation: Incarnation) -> None:
        """Ends an incarnation that may have begun, though no reply says so. Nobody would renew its lease, and the next
        registration of the name would wait for its end.
        """
        with suppress(RedisError, OSError):
            redis = await self._site.redis()
            await leave(redis, incarnation.lanes, incarnation.name, incarnation.id, ends_drain=False)

    async def _look(self, name: str, lanes: Sequence[AppLane]) -> list[_There]:
        """What each of the lanes has of the name. Raises `Problem` (503) when an older master leads one of them."""
        redis = await self._site.redis()
        async with redis.pipeline(transaction=False) as pipe:
            for lane in lanes:
                pipe.hget(lane.settings.keys.consumers, name)
                pipe.hget(lane.settings.keys.drains, name)
                pipe.hget(lane.settings.keys.about, "master")
            # An error that it raises by itself has lost the server's words, before redis-py 7.
            replies: list[Any] = await pipe.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        if not all(map(_leads_http, lanes, replies[2::3])):
            raise unavailable("a master of an older version leads this subscription: upgrade the masters first")
        return [
            _There(text, readable_or_none(text), _order_of(lane.settings.keys, name, order))
            for lane, text, order in zip(lanes, replies[::3], replies[1::3], strict=True)
        ]

    async def _enlist(
        self, asked: Registering, lanes: Sequence[AppLane], incarnation: Incarnation, there: Sequence[_There]
    ) -> tuple[ReturnCode, int]:
        redis = await self._site.redis()
        enlisting = [
            Enlisting(
                lane.settings.keys,
                lane.in_layout,
                incarnation.lease_ms,
                self._profile(asked, lane, incarnation).text(incarnation.id, incarnation.started, incarnation.lease_ms),
                found.registered,
            )
            for lane, found in zip(lanes, there, strict=True)
        ]
        record = (incarnation.text(), incarnation.record_ms)
        return await enlist(redis, incarnation.name, incarnation.id, incarnation.records, record, enlisting)

    def _profile(self, asked: Registering, lane: AppLane, incarnation: Incarnation) -> Profile:
        tasks = lane.tasks if asked.tasks is None else asked.tasks
        of_kind = {"kind": HTTP}
        if asked.health_url is not None:
            of_kind["health_url"] = asked.health_url
        return Profile(
            queue=lane.settings.keys.queue(asked.name),
            changing=ChangingFacts(asked.concurrency, RunnableTasks(sorted(set(tasks)), [], {}, {})),
            pool="http",
            pid=None,
            started=incarnation.started,
            facts=facts(self._site.app, lane.settings, master=False),
            of_kind=of_kind,
        )

    def _check(self, asked: Registering, lanes: Sequence[AppLane]) -> None:
        master = lanes[0].settings.master
        if asked.name == master:
            raise Problem(400, f"name: {master!r} is the name of the masters; choose another one")
        if asked.tasks is None and not lanes[0].tasks:
            raise Problem(400, "tasks: the app has no task of this subscription: name the tasks that it can run")
        if not lanes[0].is_subscription:
            return
        foreign = sorted(lanes[0].elsewhere.intersection(asked.tasks or ()))
        if foreign:
            raise Problem(400, f"tasks: {foreign[0]!r:.200} belongs to another subscription")

    async def heartbeat(self, incarnation: Incarnation, asked: Sequence[tuple[str, int]] = ()) -> Heartbeat:
        """Renews the leases. ``asked``: messages to ask about. Raises `Problem` (410), and redis errors."""
        redis = await self._site.redis()
        record = (incarnation.records, incarnation.record_ms)
        facts_ = (incarnation.lanes, incarnation.name, incarnation.id, record, incarnation.lease_ms, asked)
        found = await heartbeat(redis, *facts_)
        if found is None:
            raise lease_over()
        return found

    def wants(self, incarnation: Incarnation, found: Heartbeat) -> str:
        """What the masters want of a consumer: to go on, to take nothing new, or to leave and register again."""
        lanes = self.subscriptions().get(incarnation.subscription, ())
        if not _serves(incarnation.streams, _streams_of(lanes)):
            return LEAVE
        by_lane = zip(incarnation.lanes, found.drains, strict=True)
        orders = (_order_of(keys, incarnation.name, text or None) for keys, text in by_lane)
        drained = any(order is not None and order.started == incarnation.started for order in orders)
        return QUIET if drained else GO_ON

    async def leave(self, incarnation: Incarnation) -> None:
        """Ends the leases, and an order that drains the consumer. Raises `Problem` (410), and redis errors."""
        redis = await self._site.redis()
        code = await leave(redis, incarnation.lanes, incarnation.name, incarnation.id, ends_drain=True)
        if code is ReturnCode.LATE:
            raise lease_over()


def _order_of(keys: LaneKeys, name: str, text: bytes | None) -> DrainOrder | None:
    """An order that drains a consumer. One that cannot be read is skipped, as the leader skips it."""
    return read_one(keys.drains, name.encode(), text, read_drain_order)


def _started(there: Sequence[_There]) -> float:
    """When the consumer started, for its registration. A drain order is for one process, and names it by this time.

    Nobody knows whether the program that registers is the one that lost its lease. So an order for that one is for this
    one, too: it holds until it is lifted, or the consumer leaves.
    """
    orders = [order for one in there if (order := one.order) is not None]
    newest = max(orders, key=lambda order: order.at_ms, default=None)
    return time.time() if newest is None or newest.started is None else newest.started


def _leads_http(lane: AppLane, text: bytes | None) -> bool:
    """`leads_http` of a lane. What cannot be read is not from a master: it says nothing, and the next leader writes it
    again.
    """
    return read_one(lane.settings.keys.about, b"master", text, leads_http) is not False


def _serves(serves: Mapping[str, Sequence[str]], wanted: Mapping[str, Sequence[str]]) -> bool:
    """Whether an incarnation serves what an app wants. Both: version -> the streams of its lanes, oldest version first.

    A version that is newer than those of the app is not this master's to judge: a deploy has begun on other masters. An
    older one was dropped from the app.
    """
    versions = list(serves)
    while versions and versions[-1] not in wanted:
        versions.pop()
    return {version: set(serves[version]) for version in versions} == {
        version: set(streams) for version, streams in wanted.items()
    }


def _streams_of(lanes: Sequence[AppLane]) -> dict[str, list[str]]:
    """Version of the stream -> the streams of those of the lanes that are on it. Oldest version first."""
    found: dict[str, list[str]] = {}
    for lane in lanes:
        found.setdefault(lane.version, []).append(lane.settings.stream)
    return found
