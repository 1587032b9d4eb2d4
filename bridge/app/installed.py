"""``app.bridge``: the settings of an app, and the clients that the producers of this process share."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING

from celery.utils.log import get_logger
from redis import Redis
from redis.exceptions import NoPermissionError

from bridge.app.eager import Eager
from bridge.link.connections import client, require_fit
from bridge.routing.async_connection import async_client, drop
from bridge.routing.errors import ConfigurationError
from bridge.routing.layouts import difference, retired_among
from bridge.routing.partitions import Layout
from bridge.settings.app import Settings, read_settings

if TYPE_CHECKING:
    from celery import Celery
    from redis.asyncio import Redis as AsyncRedis

    from bridge.settings.versions import OlderVersion

logger = get_logger(__name__)


class Bridge:
    """The object that `install` sets as ``app.bridge``."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._async_clients: dict[asyncio.AbstractEventLoop, AsyncRedis] = {}

    @cached_property
    def settings(self) -> Settings:
        """The validated settings. They are read at first use, so the app may be configured after `install`."""
        return read_settings(self._app)

    @cached_property
    def layout(self) -> Layout:
        """How the stream is split, as far as this process knows: as the app sets it, until `take_layout`."""
        return Layout(self.settings.partitions)

    #: Whether this process has imported all modules with tasks of the app.
    knows_tasks = False

    #: Whether this process has looked how the stream is split.
    knows_layout = False

    def take_layout(self, stored: Layout) -> Layout:
        """Goes by the ``stored`` layout from now on. Logs a warning when the app sets another one."""
        known = vars(self).get("layout")
        self.knows_layout = True
        vars(self)["layout"] = stored
        settings = self.settings
        if stored != known and (why := difference(stored, settings.partitions, settings.lane.stream)) is not None:
            logger.warning("%s", why)
        return stored

    @property
    def may_be_split(self) -> bool:
        """Whether the stream may be split, and this process has seen no stored layout: a push must store it first."""
        layout = self.layout
        if layout.text:
            return False
        # Versions that the stream follows may have one partition of a later layout than the first one.
        return layout.is_split or (not self.knows_layout and bool(self.settings.follows))

    @cached_property
    def retired(self) -> frozenset[str]:
        """The older versions that the app names although they are retired, as far as this process knows."""
        return frozenset()

    @property
    def follows(self) -> tuple[OlderVersion, ...]:
        """The older versions that the app names, without those that are retired."""
        return tuple(version for version in self.settings.follows if version.stream not in self.retired)

    def learn_retired(self, redis: Redis) -> None:
        """Learns which of the older versions are retired, and logs a warning for each. Raises redis errors."""
        try:
            found = retired_among(redis, [version.stream for version in self.settings.follows])
        except NoPermissionError:
            return
        for name in found.keys() - self.retired:
            logger.warning("bridge_follows names %r: %s; it is left out, take it out", name, found[name].sentence(name))
        vars(self)["retired"] = frozenset(found)

    @cached_property
    def eager(self) -> Eager:
        """Handles pushed messages in this process, in Celery's eager mode."""
        return Eager(self._app)

    @cached_property
    def client(self) -> Redis:
        """The client that producers of this process share. Raises `ConfigurationError`, `ServerUnfit` and redis errors,
        at first use only.
        """
        if not self.settings.redis_url:
            # They were read while the app was eager, and its broker could not be used.
            vars(self)["settings"] = read_settings(self._app)
        made = client(self.settings.redis_url)
        require_fit(made, self.settings.redis_url)
        return made

    async def async_client(self) -> AsyncRedis:
        """The client that producers share in the running event loop. Its connections are bound to that loop.

        Raises as `client` does.
        """
        if "client" not in self.__dict__:
            # This checks whether the server is fit. It blocks, so it runs on a thread.
            await asyncio.to_thread(lambda: self.client)
        loop = asyncio.get_running_loop()
        found = self._async_clients.get(loop)
        if found is None:
            self._drop_those_of_closed_loops()
            found = self._async_clients[loop] = async_client(self.settings.redis_url)
        return found

    def _drop_those_of_closed_loops(self) -> None:
        # Each `asyncio.run` has a loop of its own. Another thread may do the same at this moment.
        for loop in [one for one in list(self._async_clients) if one.is_closed()]:
            client = self._async_clients.pop(loop, None)
            if client is not None:
                drop(client)

    def exchange_async_clients(
        self, clients: dict[asyncio.AbstractEventLoop, AsyncRedis]
    ) -> dict[asyncio.AbstractEventLoop, AsyncRedis]:
        """Uses ``clients``, by their event loops, from now on, and returns those before."""
        before, self._async_clients = self._async_clients, clients
        return before

    async def aclose(self) -> None:
        """Closes the connections of `apush` in the running event loop. Call it at the end of a server's lifespan."""
        found = self._async_clients.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.aclose(close_connection_pool=True)


def bridge_of(app: Celery) -> Bridge:
    """The bridge of ``app``. Raises `ConfigurationError` when it has none."""
    found = getattr(app, "bridge", None)
    if not isinstance(found, Bridge):
        raise ConfigurationError(
            f"the Celery app {app.main or app!r} has no bridge: call bridge.install(app) where it is made"
        )
    return found
