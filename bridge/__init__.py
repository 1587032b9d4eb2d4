"""Ticket Bridge: strict per-ticket order for Celery, on the Redis you already run.

::

    app = Celery("shop", broker="redis://…")
    bridge.install(app)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bridge.routing.errors import (
    ConfigurationError,
    PayloadError,
    ServerUnavailable,
    StaleFence,
    TicketBridgeError,
    Unanswered,
)

if TYPE_CHECKING:
    from bridge.app.context import TicketContext
    from bridge.app.installation import install
    from bridge.app.refusing import Dead, Drop, Nack
    from bridge.app.state_home import state
    from bridge.app.task import TicketTask
    from bridge.routing.records import LostAttempt

__all__ = [
    "ConfigurationError",
    "Dead",
    "Drop",
    "LostAttempt",
    "Nack",
    "PayloadError",
    "ServerUnavailable",
    "StaleFence",
    "TicketBridgeError",
    "TicketContext",
    "TicketTask",
    "Unanswered",
    "install",
    "state",
]

# Loaded when they are asked for: the watcher beside each worker is of this package, and has no use for Celery.
_LATE = {
    "Dead": "bridge.app.refusing",
    "Drop": "bridge.app.refusing",
    "LostAttempt": "bridge.routing.records",
    "Nack": "bridge.app.refusing",
    "TicketContext": "bridge.app.context",
    "TicketTask": "bridge.app.task",
    "install": "bridge.app.installation",
    "state": "bridge.app.state_home",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
