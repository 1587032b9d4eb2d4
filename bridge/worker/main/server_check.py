"""Checks the server before a worker starts: it must answer, let the worker in, and be new enough.

- A server that answers and is not fit ends the worker at once, with a one-line error.
- When the stream has another layout than a moment ago, the worker starts again (`bridge.worker.main.new_layout`).
- A server that does not answer ends the worker too, unless Celery is set to wait for its broker at start
  (``broker_connection_retry_on_startup = True``), or the worker has started again. Then the worker waits, and checks
  the server when it answers.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from celery import bootsteps
from celery.apps.worker import Worker
from celery.utils.log import get_logger
from celery.worker import state
from redis import Redis
from redis.exceptions import AuthenticationError, RedisError

from bridge.app.joining import read_layouts, store_layout
from bridge.app.lanes import served_lanes
from bridge.link.connections import check_server, client, is_outage
from bridge.link.failures import translated
from bridge.link.outage import Outage
from bridge.protocol.agreement import arrive, refuse_other
from bridge.routing.errors import ConfigurationError, LaneGone, TicketBridgeError
from bridge.routing.layouts import difference
from bridge.routing.text import printable
from bridge.worker.main.new_layout import can_start_again, has_started_again, start_again_at_end

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)

#: Seconds between two pings, and the timeout of one.
SERVER_CHECK_S = 0.25
TIMEOUT_S = 5.0


class ServerStep(bootsteps.StartStopStep):
    """Waits for the server and checks it, before Celery's consumer connects to it."""

    def start(self, parent: Any) -> None:
        app = parent.app
        outage = Outage(logger, "waiting for it")
        with _client_of(app) as redis:
            while waits_for_server(app) and (sign := outage_error(redis)) is not None:
                outage.met(sign)
                # While this thread waits here, no other code checks for a shutdown.
                state.maybe_shutdown()
                time.sleep(SERVER_CHECK_S)
        outage.over()
        joined = app.bridge.layout
        try:
            check_lane_server(app)
            if app.bridge.layout.all_streams("") != joined.all_streams(""):
                # It joined while the server was away, and by the setting. Or the stream was repartitioned meanwhile.
                if can_start_again(parent):
                    stored = app.bridge.layout.text
                    logger.warning(
                        "the stream %s has another layout, %s: starting again", app.bridge.settings.lane.stream, stored
                    )
                    start_again_at_end()
                    raise SystemExit(os.EX_OK)
                why = difference(app.bridge.layout, app.bridge.settings.partitions, app.bridge.settings.lane.stream)
                raise ConfigurationError(f"{why or 'the partitions of the stream changed'}; start the worker again")
        except TicketBridgeError as exc:
            end_worker(parent, exc)


def waits_for_server(app: Celery) -> bool:
    """Whether a worker of ``app`` waits for a server that is away."""
    return app.conf.broker_connection_retry_on_startup is True or has_started_again()


def check_lane_server(app: Celery) -> None:
    """Raises `TicketBridgeError` when the server is not fit, or when it is away and the app does not wait for it."""
    with _client_of(app) as redis:
        if waits_for_server(app) and outage_error(redis) is not None:
            return
        check_server(redis, app.bridge.settings.redis_url)
        try:
            while True:
                try:
                    _join(app, redis)
                    break
                except LaneGone as exc:
                    logger.info("looking at the layout again: %s", exc)
                    time.sleep(SERVER_CHECK_S)
        except (RedisError, OSError) as exc:
            # The server went away just now. `ServerStep` waits for it, or Celery reports it.
            if not is_outage(exc):
                raise translated(exc) or exc from None


def _join(app: Celery, redis: Redis) -> None:
    read_layouts(app, redis, lenient=True)
    refuse_other(redis, app, *(lane.settings for lane in served_lanes(app)))
    store_layout(app, redis)
    for lane in served_lanes(app):
        arrive(redis, app, lane.settings, lane.in_layout)


def outage_error(redis: Redis) -> Exception | None:
    """The error that shows that the server is away or loading; None when it answers, also with another error."""
    try:
        redis.ping()
    except AuthenticationError:
        # The server answers. In redis-py this error is a subclass of ConnectionError.
        return None
    except (RedisError, OSError) as exc:
        return exc if is_outage(exc) else None
    return None


def end_worker(worker: Any, exc: TicketBridgeError) -> NoReturn:
    """Ends a worker (Celery's) that cannot join the lane. If a program or a test started it, this raises ``exc``."""
    if isinstance(worker, Worker):
        exit_with_error(exc)
    started = getattr(worker, "_on_started", None)
    if started is not None:
        # This is Celery's worker for tests. The code that started it waits for this event, without a limit.
        started.set()
    raise exc


def exit_with_error(exc: Exception) -> NoReturn:
    """Ends a worker of the command line with a one-line error."""
    print(f"Error: {printable(str(exc))}", file=sys.stderr, flush=True)
    raise SystemExit(getattr(exc, "exit_code", 1))


def _client_of(app: Celery) -> Redis:
    return client(app.bridge.settings.redis_url, timeout_s=TIMEOUT_S)
