"""The subscriptions of an app: one lane's settings for each, made of ``bridge_subscriptions`` and the app's own.

What a subscription does not set is as the app sets it. A name that comes here is a consumer group on the stream.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from bridge.routing.errors import ConfigurationError
from bridge.routing.filters import Filter
from bridge.settings.lane import DICTS, LaneSettings

#: The key of ``bridge_subscriptions`` as messages name it.
SETTING = "bridge_subscriptions"
#: What a subscription may set of its own. The other settings are those of the stream, or of a process.
OWN = (
    *("max_attempts", "backoff", "breaker", "on_dead", "dead_max", "unknown_after", "policy", "bundle_ms", "history"),
    *("window", "window_bytes", "max_lag"),
)
#: The names of a subscription's options, as an app writes them.
OPTIONS = ("task", "filter", *OWN)
#: The form of a name: it is shown in commands, and is a part of key names.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,99}")


def check_name(name: object, where: str) -> str:
    """``name``, when it can name a subscription. Raises `ConfigurationError`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{where}: {name!r} cannot name a subscription; use letters, digits, '_', '.', '-' or '@', at most 100"
        )
    return name


def check_task(task: str, name: str, known: Mapping[str, object]) -> None:
    """Refuses a task that names a subscription which ``bridge_subscriptions`` does not have: it is probably misspelt.

    ``known``: the subscriptions of the setting; empty: it is not set. Raises `ConfigurationError`.
    """
    if known and name not in known:
        raise ConfigurationError(f"task {task}: there is no subscription {name!r}; {SETTING} has: {', '.join(known)}")


def read_subscriptions(given: object, base: LaneSettings) -> dict[str, LaneSettings]:
    """Name -> settings of its lane. ``given``: the value of ``bridge_subscriptions``. Raises `ConfigurationError`."""
    if not isinstance(given, Mapping) or not given:
        raise ConfigurationError(f"{SETTING} must be a dict of at least one subscription, not {_shown(given)}")
    return {check_name(name, SETTING): _read_one(str(name), options, base) for name, options in given.items()}


def with_group(base: LaneSettings, name: str) -> LaneSettings:
    """The settings of a subscription that sets nothing of its own."""
    return _made(base, {"group": name})


def _read_one(name: str, options: object, base: LaneSettings) -> LaneSettings:
    where = f"{SETTING}[{name!r}]"
    if not isinstance(options, Mapping):
        raise ConfigurationError(f"{where} must be a dict, not {_shown(options)}")
    changed: dict[str, Any] = {"group": name}
    for option, value in options.items():
        if option not in OPTIONS:
            near = difflib.get_close_matches(str(option), OPTIONS, n=1, cutoff=0)
            if option in LaneSettings.model_fields:
                raise ConfigurationError(f"{where}: {option} is the same for all subscriptions: set bridge_{option}")
            raise ConfigurationError(f"{where}: unknown option {option!r}; did you mean {near[0]!r}?")
        if option == "task":
            if not isinstance(value, str) or not value:
                raise ConfigurationError(f"{where}: task must be the name of a task, not {_shown(value)}")
            changed["default_task"] = value
        elif option == "filter":
            try:
                changed["filter"] = Filter.read(value)
            except ValueError as exc:
                raise ConfigurationError(f"{where}: {exc}") from None
        else:
            changed[option] = value
    try:
        return _made(base, changed)
    except ValidationError as exc:
        error = exc.errors(include_url=False, include_context=False)[0]
        parts = [str(part) for part in error["loc"]]
        inner = ".".join(parts)
        if error["type"] == "extra_forbidden":
            fields: Mapping[str, Any] = DICTS[parts[0]].model_fields
            [near] = difflib.get_close_matches(parts[-1], fields, n=1, cutoff=0)
            raise ConfigurationError(
                f"{where}: unknown option {inner!r}; did you mean {f'{parts[0]}.{near}'!r}?"
            ) from None
        message = error["msg"].removeprefix("Value error, ")
        raise ConfigurationError(f"{where}: {inner}: {message[0].lower()}{message[1:]}") from None


def _made(base: LaneSettings, changed: Mapping[str, Any]) -> LaneSettings:
    # Only what the app set: a default must not look as if it was set.
    given = {name: getattr(base, name) for name in base.model_fields_set}
    return LaneSettings(**{**given, "default_task": None, **changed})


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}…"
