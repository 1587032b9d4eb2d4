"""Ticket Bridge: strict per-ticket order for Celery, on the Redis you already run.

::

    app = Celery("shop", broker="redis://…")
    bridge.install(app)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from routing.errors import TicketBridgeError

if TYPE_CHECKING:
    from bridge.installation import install

__all__ = ["TicketBridgeError", "install"]


def __getattr__(name: str) -> Any:
    # Loaded when it is asked for: the watcher beside each worker is of this package, and has no use for Celery.
    if name == "install":
        from bridge.installation import install

        return install
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
