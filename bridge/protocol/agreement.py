"""What the members of a lane, workers and masters, must agree on: whose lane it is, its format, versions and settings.

- The **format** of a lane's data in Redis is a number. A member that finds a newer format than it knows stops, with one
  line: it could not read the data. All versions of Ticket Bridge with one format work together.
- The **app**: a lane belongs to the Celery app whose member came first. Another one stops: each would take the other's
  messages. The name is ``bridge_app``, or the app's own; an app without a name says nothing.
- **Versions and settings** that differ are logged once, on both sides and by `bridge status`; the lane goes on.

They are kept in the lane's hash ``about``, and each consumer registers its own (`bridge.protocol.registration`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import orjson

from bridge.protocol.registration import HTTP
from bridge.protocol.unreadable import Skip, read_one, skip
from bridge.routing.errors import ConfigurationError, LaneGone
from bridge.routing.membership import meet
from bridge.routing.return_codes import ReturnCode

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis

    from bridge.routing.keys import LaneKeys
    from bridge.routing.layouts import InLayout
    from bridge.settings.lane import LaneSettings


#: The format of what a lane keeps in Redis. Raise it with each change that an older version could not read.
LANE_FORMAT = 1
#: Settings that workers use as masters do.
SHARED = ("lease", "max_attempts", "max_payload", "bundle_ms")
#: Settings that only masters use, which may take each other's place.
OF_MASTERS = (
    *("master", "default_task", "policy", "leader_lease", "on_dead", "unknown_after", "history", "retention", "window"),
    *("window_bytes", "filter", "backoff", "breaker", "dead_max", "max_deliveries", "max_lag"),
)
#: Names of an app that say nothing.
NAMELESS = (None, "", "__main__")


@cache
def package_version() -> str:
    """The version of this package; 'unknown' where it is not installed."""
    try:
        return version("ticket-bridge")
    except PackageNotFoundError:
        return "unknown"


def app_name(app: Celery) -> str:
    """The name under which ``app`` takes part; '' when it has none."""
    name = app.bridge.settings.app or app.main
    return "" if name in NAMELESS else str(name)


def arrive(redis: Redis, app: Celery, settings: LaneSettings, layout: InLayout) -> None:
    """Notes format and app in the lane, if nobody has, before a member of ``app`` begins. ``layout``: what the lane's
    stream belongs to. Raises `ConfigurationError`, one line, when the lane is not for it, `LaneGone` when its stream
    was retired or left, and redis errors.
    """
    keys, name = settings.keys, app_name(app)
    code, found = meet(redis, keys, LANE_FORMAT, name, layout)
    if code is ReturnCode.LAYOUT:
        raise LaneGone(f"the stream {keys.stream} was retired or repartitioned")
    if code is ReturnCode.NEWER:
        raise _newer(keys, found)
    if code is ReturnCode.OTHER:
        raise _of_another_app(keys, found, name)


def refuse_newer(redis: Redis, *lanes: LaneKeys) -> None:
    """Checks the format of lanes, before a command reads or changes them. Raises `ConfigurationError`, one line, when
    one is newer than this version knows, and redis errors. Writes nothing. One round trip.
    """
    for keys, found in zip(lanes, _noted(redis, "format", lanes), strict=True):
        if found is not None and not (found.isascii() and found.isdigit() and int(found) <= LANE_FORMAT):
            raise _newer(keys, found)


def refuse_other(redis: Redis, app: Celery, *lanes: LaneSettings, nameless: bool = False) -> None:
    """Checks lanes as `arrive` does, before a command of ``app`` makes, changes or deletes them. Writes nothing. Two
    round trips.

    ``nameless``: also refuses an app without a name, when a lane belongs to one.
    """
    all_keys, name = [settings.keys for settings in lanes], app_name(app)
    refuse_newer(redis, *all_keys)
    for keys, owner in zip(all_keys, _noted(redis, "app", all_keys), strict=True):
        if owner and owner != name and (name or nameless):
            raise _of_another_app(keys, owner, name)


def _noted(redis: Redis, what: str, lanes: Sequence[LaneKeys]) -> list[str | None]:
    """A field of the hash ``about`` of each lane."""
    with redis.pipeline(transaction=False) as pipe:
        for keys in lanes:
            pipe.hget(keys.about, what)
        replies = pipe.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return [None if reply is None else reply.decode(errors="replace") for reply in replies]


def _newer(keys: LaneKeys, found: str) -> ConfigurationError:
    return ConfigurationError(
        f"{_named(keys)} is kept by a newer Ticket Bridge, in format {found}; this version, {package_version()}, knows "
        f"format {LANE_FORMAT}: upgrade it"
    )


def _of_another_app(keys: LaneKeys, owner: str, name: str) -> ConfigurationError:
    whose = f"is {name!r}" if name else "has no name"
    return ConfigurationError(
        f"{_named(keys)} belongs to the app {owner!r}, and this {whose}: give it a stream or a group of its own "
        f"(bridge_stream, bridge_group, the name in bridge_subscriptions), or, if it is the same app under a new name, "
        f"set bridge_app = {owner!r}"
    )


def _named(keys: LaneKeys) -> str:
    return f"the lane of stream {keys.stream}, group {keys.group},"


def facts(app: Celery, settings: LaneSettings, *, master: bool) -> dict[str, Any]:
    """What a member of ``app`` says of itself."""
    names = (*SHARED, *OF_MASTERS) if master else SHARED
    compared = settings.model_dump(mode="json", include=set(names))
    said = {"app": app_name(app), "version": package_version(), "format": LANE_FORMAT, "settings": compared}
    # A master of an older version says nothing: it would send bundles to an HTTP consumer.
    return {**said, "kinds": [HTTP]} if master else said


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What differs between two members' facts, as far as both tell it: ``bridge_lease is 6.0 (there 3.0)``."""
    found = []
    if theirs.get("version") and mine.get("version") != theirs["version"]:
        found.append(f"the version is {mine.get('version')} (there {theirs['version']})")
    ours, others = mine.get("settings") or {}, theirs.get("settings") or {}
    both = [name for name in ours if name in others]
    found += [f"bridge_{name} is {ours[name]} (there {others[name]})" for name in both if ours[name] != others[name]]
    return found


def leads_http(text: bytes | None) -> bool:
    """Whether the master that led last knows HTTP consumers. ``text``: as for `leaders_facts`."""
    return text is None or HTTP in leaders_facts(text).get("kinds", ())


def leaders_facts(text: bytes | None) -> dict[str, Any]:
    """The facts in the field ``master`` of the hash ``about``; empty when nobody has led. Raises where they cannot be
    read.
    """
    found = {} if text is None else dict(orjson.loads(text))
    if not isinstance(found.get("settings") or {}, dict):
        raise TypeError("a value of another type")
    return found


def readable_facts(keys: LaneKeys, text: bytes | None, skip: Skip = skip) -> dict[str, Any]:
    """As `leaders_facts`; also empty where they cannot be read. The next leader writes them again."""
    return read_one(keys.about, b"master", text, leaders_facts, skip) or {}
