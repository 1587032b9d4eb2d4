"""The older versions of a stream that its lanes follow (``bridge_follows``), oldest first.

Each is the name of a stream, or a dict: ``{"stream": "ticket_stream", "task": "shop.apply_v1"}``. In an app with
several subscriptions each may have its own task there: ``"tasks": {"billing": "billing.apply_v1"}``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bridge.routing.errors import ConfigurationError
from bridge.routing.partitions import is_partition
from bridge.settings.lane import LaneSettings

#: The key as messages name it.
SETTING = "bridge_follows"
#: The names of a version's options, as an app writes them.
OPTIONS = ("stream", "task", "tasks")
#: Most older versions of one stream. Each step of its leaders looks at all of them.
MOST = 16


@dataclass(frozen=True)
class OlderVersion:
    """One older version. ``task``: the default task of its messages. ``tasks``: the same, by the subscription."""

    stream: str
    task: str | None = None
    tasks: Mapping[str, str] = field(default_factory=dict)

    def default_task(self, subscription: str, newest: str | None) -> str | None:
        """The default task of ``subscription`` there. ``newest``: its default task in the newest version."""
        return self.tasks.get(subscription, self.task or newest)


def read_follows(given: object) -> tuple[OlderVersion, ...]:
    """The value of ``bridge_follows``. Raises `ValueError`, one line."""
    if given is None:
        return ()
    if not isinstance(given, list | tuple):
        # A `TypeError` would not become the validation's one line.
        raise ValueError(f'must be a list of older streams, oldest first, like ["orders"], not {_shown(given)}')  # noqa: TRY004
    found = tuple(map(_read_one, given))
    names = [version.stream for version in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"names the stream {name!r} twice")
    if len(found) > MOST:
        raise ValueError(f"names {len(found)} older streams, and {MOST} are possible: retire the oldest ones")
    return found


def check_follows(versions: tuple[OlderVersion, ...], lane: LaneSettings) -> None:
    """Raises `ConfigurationError` when the stream of ``lane`` would follow itself, or it is or follows a partition."""
    for key, stream in (("bridge_stream", lane.stream), *((SETTING, version.stream) for version in versions)):
        if is_partition(stream):
            # Its keys, or those of its partitions, would be those of the other stream's lanes.
            raise ConfigurationError(
                f"{key} names {stream!r}, and names that end in :p or :g and a number are those of partitions: name "
                "the whole stream, or choose another name"
            )
    for version in versions:
        if version.stream == lane.stream:
            raise ConfigurationError(
                f"{SETTING} names {lane.stream!r}, which is bridge_stream: a stream cannot follow itself"
            )


def with_version(base: LaneSettings, version: OlderVersion) -> LaneSettings:
    """The settings of the lane of an older version. ``base``: those of the newest one."""
    given: dict[str, Any] = {name: getattr(base, name) for name in base.model_fields_set}
    task = version.default_task(base.group, base.default_task)
    return LaneSettings(**{**given, "stream": version.stream, "default_task": task})


def _read_one(given: object) -> OlderVersion:
    if isinstance(given, str):
        return OlderVersion(_stream(given))
    if not isinstance(given, Mapping):
        raise ValueError(f"each older version is the name of a stream or a dict, not {_shown(given)}")  # noqa: TRY004
    for option in given:
        if option not in OPTIONS:
            near = difflib.get_close_matches(str(option), OPTIONS, n=1, cutoff=0)
            raise ValueError(f"unknown option {option!r} of an older version; did you mean {near[0]!r}?")
    if "stream" not in given:
        raise ValueError(f"{_shown(dict(given))} names no stream")
    if "task" in given and "tasks" in given:
        raise ValueError(f"stream {given['stream']!r}: give task, or tasks by subscription, not both")
    tasks = given.get("tasks", {})
    if not isinstance(tasks, Mapping) or not all(isinstance(name, str) for name in tasks):
        raise ValueError(f"tasks must be a dict from subscription to task, not {_shown(tasks)}")
    task = given.get("task")
    for name in (*([task] if "task" in given else []), *tasks.values()):
        if not isinstance(name, str) or not name:
            raise ValueError(f"a task is given by its name, not {_shown(name)}")
    return OlderVersion(_stream(given["stream"]), task, dict(tasks))


def _stream(name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= 512:
        raise ValueError(f"a stream's name is a text of at most 512 characters, not {_shown(name)}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the stream's name {name!r} cannot be written as UTF-8") from None
    if "{" in name or "}" in name:
        raise ValueError(f"the stream's name {name!r} must not contain {{ or }}")
    return name


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}…"
