"""What a worker needs before it begins: a server that answers, lets it in, and is new enough.

Where Celery is told to wait for its broker at start (``broker_connection_retry_on_startup = True``), a server that is
away is waited for; whoever it turns out to be is looked at when it is there. A server that is there and of no use ends
the worker at once, with one line. So does one that is away, where Celery is not told so.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from celery import bootsteps
from celery.apps.worker import Worker
from celery.utils.log import get_logger
from celery.worker import state
from redis import Redis
from redis.exceptions import AuthenticationError, RedisError

from bridge.link.connections import check_server, client, is_outage
from bridge.link.outage import Outage
from bridge.protocol.agreement import arrive
from bridge.routing.errors import TicketBridgeError

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)

#: Seconds between two looks, and for an answer.
SERVER_CHECK_S = 0.25
TIMEOUT_S = 5.0


class ServerStep(bootsteps.StartStopStep):
    """Waits for the server, before Celery's consumer asks for it."""

    def start(self, parent: Any) -> None:
        app = parent.app
        outage = Outage(logger, "waiting for it")
        with _client_of(app) as redis:
            while waits_for_server(app) and (sign := outage_error(redis)) is not None:
                outage.met(sign)
                # Nobody else could tell this thread that the worker shall stop.
                state.maybe_shutdown()
                time.sleep(SERVER_CHECK_S)
        outage.over()
        try:
            check_lane_server(app)
        except TicketBridgeError as exc:
            end_worker(parent, exc)


def waits_for_server(app: Celery) -> bool:
    """Whether a worker of ``app`` waits for a server that is away."""
    return app.conf.broker_connection_retry_on_startup is True


def check_lane_server(app: Celery) -> None:
    """Raises `TicketBridgeError` when the server is of no use, or away and not waited for."""
    with _client_of(app) as redis:
        if waits_for_server(app) and outage_error(redis) is not None:
            return
        check_server(redis, app.bridge.settings.redis_url)
        try:
            arrive(redis, app)
        except (RedisError, OSError) as exc:
            # It went away just now: what waits for it looks again.
            if not is_outage(exc):
                raise


def outage_error(redis: Redis) -> Exception | None:
    """What says that the server is away or loading; None when it answers, with whatever."""
    try:
        redis.ping()
    except AuthenticationError:
        # To redis-py that is a kind of a lost connection.
        return None
    except (RedisError, OSError) as exc:
        return exc if is_outage(exc) else None
    return None


def end_worker(worker: Any, exc: TicketBridgeError) -> NoReturn:
    """Ends a worker (Celery's) that cannot take part. Within somebody else's program it raises ``exc``."""
    if isinstance(worker, Worker):
        exit_with_error(exc)
    started = getattr(worker, "_on_started", None)
    if started is not None:
        # Celery's worker for tests: who started it waits for this, for ever.
        started.set()
    raise exc


def exit_with_error(exc: Exception) -> NoReturn:
    """Ends the worker of the command line with one line."""
    print(f"Error: {exc}", file=sys.stderr, flush=True)
    raise SystemExit(getattr(exc, "exit_code", 1))


def _client_of(app: Celery) -> Redis:
    return client(app.bridge.settings.redis_url, timeout_s=TIMEOUT_S)
