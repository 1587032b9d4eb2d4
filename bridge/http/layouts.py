"""The layout of the stream, as the process of a port goes by it.

`bridge stream repartition` gives the stream another layout, and `bridge stream retire` ends an older version, while
consumers are registered. The next heartbeat of such a consumer tells it to leave (`bridge.http.registering`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from bridge.app.installed import bridge_of
from bridge.app.joining import read_layouts
from bridge.routing.errors import TicketBridgeError

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)

#: Seconds between two reads of the layout. Masters read it as often.
LAYOUT_S = 1.0


async def follow_layout(app: Celery) -> None:
    """Goes by the layouts that are stored, until it is cancelled."""
    while True:
        try:
            await asyncio.to_thread(_look, app)
        except (RedisError, OSError, TicketBridgeError) as exc:
            # A master says what is wrong. Until it is right, the layout stays as it was.
            logger.debug("cannot read the layout of the stream: %s", exc)
        await asyncio.sleep(LAYOUT_S)


def _look(app: Celery) -> None:
    read_layouts(app, bridge_of(app).client, lenient=True)
