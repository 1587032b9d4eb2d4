"""Finds the bridge's keys in an app's configuration, under any namespace.

``config_from_object("django.conf:settings", namespace="CELERY")`` makes Celery read ``CELERY_BROKER_URL`` for
``broker_url``, and so ``CELERY_BRIDGE_LEASE`` is ``bridge_lease``. The object may hold other settings, too. Outside
of the namespace only a known name of the bridge is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from bridge.routing.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery

PREFIX = "bridge_"

#: The prefix of Celery's old setting names, which many configurations still use.
OLD_PREFIX = "CELERY_"


def given_settings(app: Celery, known: Collection[str]) -> dict[str, tuple[str, Any]]:
    """Name without prefix -> (key as it was written, value). Raises `ConfigurationError` for an unknown name."""
    conf = app.conf
    keys = [key for key in list(conf) if isinstance(key, str)]
    # `list(conf)` above made Celery read the configuration. `namespace` ends with an underscore.
    namespace = conf.__dict__.get("prefix") or ""
    found = {}
    for key in keys:
        if namespace and key.startswith(namespace):
            name = _name(key.removeprefix(namespace))
        elif not namespace or key.islower():
            # From `app.conf.update`, or a configuration that has no namespace.
            name = _name(key)
            if name is None and key.startswith(OLD_PREFIX) and _name(key.removeprefix(OLD_PREFIX)) in known:
                raise ConfigurationError(
                    f"{key} is not read: name the namespace, config_from_object(…, namespace={OLD_PREFIX[:-1]!r}), "
                    f"or call it {key.removeprefix(OLD_PREFIX).lower()}"
                )
        else:
            name = None
            if _name(key) in known:
                raise ConfigurationError(
                    f"{key} is not read: the configuration has the namespace {namespace[:-1]!r}, "
                    f"so call it {namespace}{key}"
                )
        if name is None:
            continue
        if name not in known:
            [near] = difflib.get_close_matches(name, known, n=1, cutoff=0)
            meant = key[: len(key) - len(name)] + (near.upper() if key.isupper() else near)
            raise ConfigurationError(f"unknown setting {key}; did you mean {meant}?")
        # The lower-case name finds the newest value. Names in capitals are found by their key only.
        found[name] = (key, conf.get(PREFIX + name, conf.get(key)))
    return found


def _name(key: str) -> str | None:
    lowered = key.lower()
    return lowered.removeprefix(PREFIX) if lowered.startswith(PREFIX) else None
