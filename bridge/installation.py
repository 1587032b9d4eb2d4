"""`install`: makes an existing Celery app one whose messages are handled in order, ticket by ticket."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from redis import Redis

from bridge.adoption import adopt_from_now_on
from bridge.connect import client, require_fit
from bridge.eager import Eager
from bridge.names import BUNDLE_TASK, PUSH_TASK
from bridge.producer import push
from bridge.results import keep_apart
from bridge.settings import Settings, read_settings
from bridge.worker.joining import hook
from routing.async_connection import async_client
from routing.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery
    from redis.asyncio import Redis as AsyncRedis

    from bridge.typed import TicketApp


class Bridge:
    """What `install` puts on an app, as ``app.bridge``."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._async_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncRedis] = WeakKeyDictionary()

    @cached_property
    def settings(self) -> Settings:
        """The validated settings; read late, so that the app may be configured after `install`."""
        return read_settings(self._app)

    @cached_property
    def eager(self) -> Eager:
        """Handles messages here and now, where Celery runs tasks eagerly."""
        return Eager(self._app)

    @cached_property
    def client(self) -> Redis:
        """The client that producers of this process share. Raises `ServerUnfit`, and redis errors: asked once."""
        made = client(self.settings.redis_url)
        require_fit(made, self.settings.redis_url)
        return made

    async def async_client(self) -> AsyncRedis:
        """The client that producers share in the event loop that runs: its connections are bound to that loop.

        Raises as `client` does.
        """
        if "client" not in self.__dict__:
            # It asks whether the server is fit, and waits for the answer.
            await asyncio.to_thread(lambda: self.client)
        loop = asyncio.get_running_loop()
        found = self._async_clients.get(loop)
        if found is None:
            found = self._async_clients[loop] = async_client(self.settings.redis_url)
        return found

    async def aclose(self) -> None:
        """Closes the connections of `apush` in the event loop that runs: for the end of a server's lifespan."""
        found = self._async_clients.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.aclose(close_connection_pool=True)


def install(app: Celery) -> TicketApp:
    """Adds the bridge to ``app``; an existing app needs no more than this. Tasks may have been declared before.

    Returns ``app``. For type checkers ``app = bridge.install(Celery(…))`` has tasks that can ``push``.
    """
    if not hasattr(app, "bridge"):
        _install(app)
    return cast("TicketApp", app)


def _install(app: Celery) -> None:
    app.bridge = Bridge(app)
    adopt_from_now_on(app)
    keep_apart(app)

    # shared=False: other apps of the process, which may know nothing of the bridge, shall not get it.
    @app.task(name=BUNDLE_TASK, ignore_result=True, shared=False, bridge_bundle=False)
    def bundle() -> None:
        """Carries runs of several tickets to one pool process; never called as a task."""
        raise ConfigurationError("a bundle reached a worker without bridge.install(app)")

    # An ordinary task, whichever worker takes it. Delivered twice (a worker died), it pushes once, by its own id.
    @app.task(name=PUSH_TASK, bind=True, shared=False, acks_late=True, bridge_bundle=False)
    def push_message(self: Any, task: str, ticket_id: str, payload: Any = None) -> str:
        """Pushes a message for ``task``; returns its id."""
        return push(app, task, ticket_id, payload, delay=None, idempotency_key=self.request.id)

    hook(app)


def bridge_of(app: Celery) -> Bridge:
    """The bridge of ``app``. Raises `ConfigurationError` when it has none."""
    found = getattr(app, "bridge", None)
    if not isinstance(found, Bridge):
        raise ConfigurationError(
            f"the Celery app {app.main or app!r} has no bridge: call bridge.install(app) where it is made"
        )
    return found
