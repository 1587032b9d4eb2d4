"""Where the states of tickets are kept: under the name of the oldest version of the stream.

A ticket keeps its state when its stream gets a new version, and when the old version is retired. So the keys carry the
name of the stream that was there first. A stream that follows older versions has a key that names it
(`LaneKeys.state_home`), from the first term of a leader on: the app may drop the older versions before any task asks.
Without that key it is the stream itself. Fences in PostgreSQL (`bridge.sql`) have that name, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from bridge.app.installed import bridge_of
from bridge.app.lanes import names_of_subscriptions, unsplit_lane_of
from bridge.app.state import StateDict
from bridge.link.connections import client
from bridge.producer.message_bytes import ticket_bytes
from bridge.routing.errors import PayloadError
from bridge.routing.keys import LaneKeys
from bridge.routing.text import printable

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis

    from bridge.app.lanes import AppLane


def home_in(versions: Sequence[str], homes: Sequence[bytes | None]) -> tuple[str, bool]:
    """(the stream under which the states are kept, whether the newest version must be told so).

    ``versions``: the newest version of the stream, and then the older ones, oldest first. ``homes``: what the key
    `LaneKeys.state_home` of each has.
    """
    own, *older = homes
    if own is not None:
        return own.decode(), False
    if not older:
        return versions[0], False
    return (older[0].decode() if older[0] is not None else versions[1]), True


def versions_of(app: Celery) -> tuple[str, ...]:
    """The app's stream, and then its older versions, oldest first."""
    bridge = bridge_of(app)
    return (bridge.settings.lane.stream, *(version.stream for version in bridge.follows))


def keys_of_states(app: Celery, lane: AppLane) -> tuple[LaneKeys, LaneKeys] | None:
    """The keys of the version of ``lane``, and of the oldest one that the app names; None: that is the same."""
    oldest = (*(version.stream for version in bridge_of(app).follows), lane.version)[0]
    return None if oldest == lane.version else (LaneKeys(lane.version, lane.name), LaneKeys(oldest, lane.name))


def keep_states(redis: Redis, app: Celery) -> None:
    """Notes where the states of the app's stream are kept, unless it was noted before. An older version is about to be
    retired, and no leader of the stream may have begun its term yet.
    """
    versions = (bridge_of(app).settings.lane.stream, *bridge_of(app).settings.older_streams)
    for name in names_of_subscriptions(app):
        home = state_keys(redis, versions, name).stream
        if home != versions[0]:
            redis.set(LaneKeys(versions[0], name).state_home, home, nx=True)


def state_keys(redis: Redis, versions: Sequence[str], group: str) -> LaneKeys:
    """The keys under which the states of the subscription ``group`` are kept."""
    found: list[Any] = list(redis.mget([LaneKeys(stream, group).state_home for stream in versions]))
    return LaneKeys(home_in(versions, found)[0], group)


def state(app: Celery, ticket_id: str | int, *, subscription: str | None = None) -> dict[str, Any]:
    """The state of a ticket as it is now: an empty dict when there is none. Changing the dict changes nothing in Redis.

    ``subscription``: needed when the app has several. Raises `PayloadError` for a ticket that cannot be, or a state
    that is damaged; `ConfigurationError`; redis errors.
    """
    ticket = ticket_bytes(ticket_id).decode()
    bridge = bridge_of(app)
    group = unsplit_lane_of(app, subscription).name
    with client(bridge.settings.redis_url) as redis:
        return read_state(redis, app, group, ticket)


def read_state(redis: Redis, app: Celery, group: str, ticket: str) -> dict[str, Any]:
    """The state of ``ticket`` in the subscription ``group``. Raises `PayloadError` when it is damaged; redis errors."""
    key = state_keys(redis, versions_of(app), group).state(ticket)
    try:
        stored: Any = redis.hgetall(key)
    except ResponseError as exc:
        if not str(exc).startswith("WRONGTYPE"):
            raise
        raise PayloadError(f"the key of the state of ticket {printable(ticket)} is no hash") from None
    return dict(StateDict(stored))
