"""Adds a subscription to a stream, and removes one with all its keys.

A subscription that was added misses nothing, even while all its masters and workers are down: the stream has its
consumer group, so entries stay until it is done with them. Where a subscription is only declared in
``bridge_subscriptions``, the first master makes the group. It begins with the oldest entry that the stream still has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError

from bridge.app.lanes import layout_with
from bridge.app.state_home import state_keys, versions_of
from bridge.inspect.roster import registrations_of
from bridge.link.key_types import types_of
from bridge.operate.deleting import literally, refuse_unreadable
from bridge.protocol.agreement import arrive, refuse_other
from bridge.routing.errors import ConfigurationError, InputError, OrderFailed
from bridge.routing.groups import group_in
from bridge.routing.ids import can_be_id, id_before, id_key
from bridge.routing.keys import LaneKeys
from bridge.routing.leadership import read_token
from bridge.routing.numbers import count
from bridge.routing.partitions import stream_id, suffix_of
from bridge.routing.return_codes import ReturnCode
from bridge.routing.subscribing import make_group, unsubscribe
from bridge.routing.text import one_line, printable
from bridge.routing.versions import followed_by, newer_versions

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis

    from bridge.settings.lane import LaneSettings

#: How often a deletion is tried while consumers of the lane change.
TRIES = 5
#: Keys that a step looks at, of those of the whole server, to find states of tickets.
PAGE = 1000


def check_position(text: str) -> str:
    """``start``, ``now`` or an id of a message, as ``--from`` takes it. Raises `ConfigurationError`."""
    if suffix_of(text) and can_be_id(stream_id(text), whole=False):
        raise ConfigurationError(
            f"--from {printable(text)}: this message is the start in its own partition only; give its time "
            f"{stream_id(text)}, which is one in all partitions"
        )
    if text not in ("start", "now") and not can_be_id(text, whole=False):
        raise ConfigurationError(
            f"--from {one_line(text)}: it must be start, now, or the id of a message such as 1700000000000-0"
        )
    return text


def add(redis: Redis, app: Celery, lanes: Sequence[LaneSettings], position: str, *, declared: bool) -> None:
    """Makes the groups of a subscription. It begins at ``position`` (`check_position`) on each of its streams.

    ``declared``: the app names it, so its lanes become the app's. Raises `ConfigurationError` and `InputError`, one
    line, before anything was changed, `LaneGone` when the stream got another layout just now, and redis errors.
    """
    refuse_other(redis, app, *lanes)
    if all(_group(redis, lane) is not None for lane in lanes):
        raise InputError(f"there is a subscription {lanes[0].group} on {_streams(lanes)} already; see `bridge status`")
    for lane, start in zip(lanes, _starts(redis, lanes, position), strict=True):
        # An earlier run may have been interrupted. Then the group exists on some of the streams.
        layout = layout_with(app, lane.stream)
        make_group(redis, lane.keys, start, layout)
        if declared:
            arrive(redis, app, lane, layout)


def left_before(redis: Redis, lanes: Sequence[LaneSettings], position: str) -> int:
    """At most how many messages from ``position`` on were removed already, because all other groups had done them. For
    an id it may be too high: the server does not know how many of the removed ones were older.

    0 with Redis 6.2, which does not count the entries that were added.
    """
    if position == "now":
        return 0
    found = 0
    for lane in lanes:
        info: Any = redis.execute_command("XINFO", "STREAM", lane.stream)
        facts = info if isinstance(info, dict) else dict(zip(info[::2], info[1::2], strict=True))
        added, length = facts.get(b"entries-added", facts.get("entries-added")), redis.xlen(lane.stream)
        first: Any = redis.execute_command("XRANGE", lane.stream, "-", "+", "COUNT", 1)
        is_there = position != "start" and first and id_key(position) >= id_key(first[0][0].decode())
        if added is not None and not is_there:
            found += max(0, int(added) - length)
    return found


class States:
    """The states of tickets of a subscription. All partitions and versions of the stream share them, so they go with
    its last lane.
    """

    def __init__(self, redis: Redis, app: Celery, lanes: Sequence[LaneSettings]) -> None:
        self._redis = redis
        group = lanes[0].group
        versions = versions_of(app)
        keys = state_keys(redis, versions, group)
        self._match = f"{literally(keys.state(''))}*"
        #: Keys of the whole stream, also where it is split.
        self._home_keys = [LaneKeys(stream, group).state_home for stream in versions]
        #: A version that these lanes do not have, where the subscription goes on; "": there is none.
        self.needed_by = _beside(redis, lanes, versions)
        #: How many there are; None: they stay, since they are needed, or this user may not look for them.
        self.count = None if self.needed_by else self._each(len)
        #: Whether there is anything to delete.
        self.is_left = bool(self.count or redis.exists(*self._home_keys))

    def delete(self) -> int:
        """Deletes them. Returns how many."""
        deleted = None if self.count is None else self._each(lambda page: int(self._redis.unlink(*page)))
        if deleted is not None or self.needed_by:
            # Last: a removal that is cut off finds the states again by them.
            self._redis.unlink(*self._home_keys)
        return deleted or 0

    def _each(self, take: Callable[[list[bytes | str]], int]) -> int | None:
        """The sum of what ``take`` says of each page of keys."""
        cursor, found = 0, 0
        try:
            while True:
                cursor, page = self._redis.scan(cursor, self._match, PAGE)
                found += take(page) if page else 0
                if not cursor:
                    return found
        except NoPermissionError:
            return None


def _beside(redis: Redis, lanes: Sequence[LaneSettings], versions: Sequence[str]) -> str:
    """A stream with a lane of the same subscription that ``lanes`` do not have; "": there is none."""
    known = {lane.stream for lane in lanes}
    for stream in {*known, *versions}:
        for other in sorted({*newer_versions(redis, stream), *followed_by(redis, stream)} - known):
            lane = lanes[0].on_stream(other)
            if _group(redis, lane) is not None or redis.exists(*_fixed(lane)):
                return other
    return ""


def check_removal(redis: Redis, app: Celery, lanes: Sequence[LaneSettings], states: States) -> None:
    """Raises `ConfigurationError` or `InputError`, one line, when the subscription is another app's, is not there, or
    has live workers or masters.
    """
    refuse_other(redis, app, *lanes, nameless=True)
    is_there = (_group(redis, lane) is not None or redis.exists(*_fixed(lane)) for lane in lanes)
    if not states.is_left and not any(is_there):
        raise InputError(f"there is no subscription {lanes[0].group} on {_streams(lanes)}; `bridge subscription list`")
    for lane in lanes:
        token: Any = redis.get(lane.keys.leader)
        if token is not None:
            raise InputError(f"{_led(lane, token.decode())}; nothing was changed")
        for name, registration in registrations_of(lane.keys, _registered(redis, lane), refuse_unreadable).items():
            if redis.exists(lane.keys.lease(registration.incarnation)):
                raise InputError(f"{_alive(lane, name)}; nothing was changed")


def remove(redis: Redis, lanes: Sequence[LaneSettings]) -> int:
    """Deletes lanes, each with its group and all its keys in one step. Returns how many of both were deleted.

    Raises `InputError` when a master leads one or a worker serves it; redis errors.
    """
    deleted = 0
    for lane in lanes:
        keys = lane.keys
        for _ in range(TRIES):
            registered = _registered(redis, lane)
            known = registrations_of(keys, registered, refuse_unreadable)
            incarnations = {name: registration.incarnation for name, registration in known.items()}
            fixed = [key for key in _fixed(lane) if key != keys.state_home]
            doomed = [*fixed, *(keys.queue(name) for name in known), *map(keys.held, incarnations.values())]
            consumers = {name: (text, incarnations[name.decode()]) for name, text in registered.items()}
            code, detail = unsubscribe(redis, keys, consumers, doomed)
            if code is not ReturnCode.CHANGED:
                break
        if code is ReturnCode.OK:
            deleted += int(detail)
            continue
        so_far = "nothing was changed"
        if deleted:
            so_far = f"what other lanes have is deleted ({count(deleted, 'key')}): run this again to finish"
        if code is ReturnCode.HELD:
            raise InputError(f"{_led(lane, detail)}; {so_far}")
        if code is ReturnCode.ALIVE:
            raise InputError(f"{_alive(lane, detail)}; {so_far}")
        raise OrderFailed(f"consumers of {keys.group} come and go: stop its workers, then try again; {so_far}")
    return deleted


def _starts(redis: Redis, lanes: Sequence[LaneSettings], position: str) -> list[str]:
    """For each lane, the id after which a group reads when it begins at ``position``."""
    if position in ("start", "now"):
        return ["0" if position == "start" else "$"] * len(lanes)
    wanted = id_key(position)
    lasts = [_last_id(redis, lane) for lane in lanes]
    newest = max(lasts, key=lambda id_: id_key(id_ or "0"))
    if newest is None or wanted > id_key(newest):
        there = f"its last message is {newest}" if newest else "it is empty"
        raise InputError(f"{_streams(lanes)} has no message {position} yet ({there}): use --from now")
    first = id_before(wanted) if wanted > (0, 0) else "0"
    # A partition whose messages are all older begins with its next one.
    return ["$" if last is None or wanted > id_key(last) else first for last in lasts]


def _last_id(redis: Redis, lane: LaneSettings) -> str | None:
    found: Any = redis.execute_command("XREVRANGE", lane.stream, "+", "-", "COUNT", 1)
    return found[0][0].decode() if found else None


def _group(redis: Redis, lane: LaneSettings) -> Any:
    if not redis.exists(lane.stream):
        return None
    return group_in(redis.execute_command("XINFO", "GROUPS", lane.stream), lane.group)


def _fixed(lane: LaneSettings) -> list[str]:
    """The keys of the lane that have fixed names."""
    return [key for key in types_of(lane.keys) if key != lane.stream]


def _registered(redis: Redis, lane: LaneSettings) -> Any:
    return redis.hgetall(lane.keys.consumers)


def _streams(lanes: Sequence[LaneSettings]) -> str:
    return ", ".join(lane.stream for lane in lanes)


def _led(lane: LaneSettings, token: str) -> str:
    return (
        f"{lane.group} on {lane.stream} is led by the master {read_token(token).holder}: take it out of the app "
        "(bridge_subscriptions) and start its masters again, or stop them"
    )


def _alive(lane: LaneSettings, name: str) -> str:
    return (
        f"{lane.group} on {lane.stream} is served by the worker {printable(name)}: stop it, or start it without this "
        "subscription (bridge_serve)"
    )
