"""Serves the application on a thread with an event loop of its own, in the process of the port (`bridge.http.process`).

A connection to Redis that is lost is made again by the next request. When the master stops, no new connection is
accepted, long polls answer at once, and what is left after `STOP_S` is cut off.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from celery.utils.log import get_logger

from bridge.app.installed import bridge_of
from bridge.http import connections
from bridge.http.access import Access
from bridge.http.application import make_application
from bridge.http.connections import IDLE_S, Connection
from bridge.http.layouts import follow_layout
from bridge.http.limits import HEADER_BYTES
from bridge.http.listening import REFUSED, Listening
from bridge.http.options import BACKLOG
from bridge.http.site import Site
from bridge.routing.errors import ConfigurationError

if TYPE_CHECKING:
    from ssl import SSLContext

    from celery import Celery

    from bridge.http.options import HttpOptions

logger = get_logger(__name__)

#: Longest time that requests get to end when the master stops, in seconds.
STOP_S = 3
#: The most bytes that are read from a TLS connection at once: twice a record. With asyncio's 256 KiB, 10,000 long polls
#: take 2.6 GB.
TLS_BYTES = 32 * 1024
#: File descriptors that the process needs beside those of HTTP connections.
OWN_FILES = 256


class HttpServer:
    """The server of ``app``. Listens from `start` on; its address is taken at once.

    Raises `ConfigurationError` and `PortInUse`, one line each.
    """

    def __init__(self, app: Celery, options: HttpOptions) -> None:
        self._app = app
        self._options = options
        #: Called on the server's thread when it has ended.
        self.on_end: Callable[[], None] = lambda: None
        self._access = Access(options.tokens)
        if self._access.is_open and not options.address.is_loopback:
            raise ConfigurationError(
                f"--http: {options.address} can be reached from other machines, so it needs tokens: name a file with "
                "--http-tokens, or set BRIDGE_HTTP_TOKENS"
            )
        #: Read once, by the master. A process that is started again later may find other files, or none.
        self._tls = None if options.certificate is None else options.certificate.load()
        self._socket = options.address.bind()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._socket.getsockname()[1])

    @property
    def is_open(self) -> bool:
        """Whether calls need no token."""
        return self._access.is_open

    @property
    def polls(self) -> int:
        """How many long polls are open."""
        return 0 if self._server is None else self._server.site.polls

    @property
    def url(self) -> str:
        """Where it listens."""
        host, _, _ = str(self._options.address).rpartition(":")
        return f"{self._options.scheme}://{host}:{self.port}"

    def start(self) -> None:
        """Starts to serve."""
        settings = bridge_of(self._app).settings
        most = _raised_limit(settings.http_max_connections)
        site = Site(self._app, self._access)
        if self._tls is not None:
            # Each connection has a buffer of this size, which asyncio fills with zeros. This process is the port's own.
            SSLProtocol.max_size = TLS_BYTES
        self._server = _Server(self._config(site, most), site, most + REFUSED, self._tls)
        # From Python 3.13 on, a thread that was made before a fork cannot be started after it.
        self._thread = threading.Thread(target=self._run, name="bridge-http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Asks the server to stop. Safe in a signal handler."""
        if self._server is not None:
            self._server.should_exit = True

    def reload(self) -> None:
        """Reads the tokens again. Safe in a signal handler of the main thread."""
        self._access.reload()

    def close(self) -> None:
        """Gives the address up in this process. Another one serves, or nobody does."""
        self._socket.close()

    def join(self) -> None:
        """Waits until the server has stopped."""
        if self._thread is None:
            self.close()
        else:
            self._thread.join(STOP_S + 2)

    def _config(self, site: Site, most: int) -> uvicorn.Config:
        return uvicorn.Config(
            make_application(site),
            http=partial(Connection, most=most),  # type: ignore[arg-type]
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            # Below that uvicorn writes lines about each bad request: anybody could fill the log.
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=STOP_S,
            h11_max_incomplete_event_size=HEADER_BYTES,
        )

    def _run(self) -> None:
        assert self._server is not None
        try:
            self._server.run(sockets=[self._socket])
        except BaseException:
            logger.exception("the HTTP server ended")
        finally:
            self.on_end()


class _Server(uvicorn.Server):
    """Follows the layout while it serves. Tells the long polls to answer before it waits for them.

    ``most``: the most connections that are accepted at once.
    """

    def __init__(self, config: uvicorn.Config, site: Site, most: int, tls: SSLContext | None) -> None:
        super().__init__(config)
        self._most = most
        self._tls = tls
        self.site = site
        self._following: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, which has no limit of its own for the time of a TLS handshake: asyncio's is a minute."""
        assert sockets
        await self.lifespan.startup()
        kind: Any = self.config.http_protocol_class
        protocol = partial(kind, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        options: dict[str, Any] = {}
        if self._tls is not None:
            options = {"ssl": self._tls, "ssl_handshake_timeout": connections.HEADERS_S}
        loop = asyncio.get_running_loop()
        options["backlog"] = self.config.backlog
        listening = [Listening(one, self._most) for one in sockets]
        self.servers = [await loop.create_server(protocol, sock=one, **options) for one in listening]
        self.started = True
        self._following = asyncio.create_task(follow_layout(self.site.app))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.site.stop()
        if self._following is not None:
            self._following.cancel()
        await super().shutdown(sockets)


def _raised_limit(wanted: int) -> int:
    """How many connections the process may have, at most ``wanted``. Raises the soft limit of open files for that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OWN_FILES
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < needed:
        logger.warning(
            "this process may open %d files, so HTTP takes %d connections, not %d: raise its limit (ulimit -n)",
            soft,
            max(1, soft - OWN_FILES),
            wanted,
        )
    return min(wanted, max(1, soft - OWN_FILES))
