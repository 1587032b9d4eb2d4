"""Ticket Bridge: strict per-ticket order for Celery, on the Redis you already run.

::

    app = Celery("shop", broker="redis://…")
    bridge.install(app)
"""

from __future__ import annotations

from bridge.installation import install
from routing.errors import TicketBridgeError

__all__ = ["TicketBridgeError", "install"]
