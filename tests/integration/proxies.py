"""A TCP proxy between a lane and its server: it can delay, cut, or add TLS on the side of the clients."""

from __future__ import annotations

import asyncio
import ssl
import threading
from types import TracebackType
from typing import Self

from bridge.stack.ports import HOST


class Proxy:
    """Listens on a port and forwards everything, in its own thread. A context manager.

    ``delay_s``: delay of each piece, in each direction. It may be changed at any time. As on a long line, a piece does
    not wait for the one before it to arrive. ``tls``: the certificate for clients. Without it the connection is plain
    text. ``source``: the address of this machine from which it connects to the server, and by which the server names
    its connections.
    """

    def __init__(
        self, target_port: int, *, delay_s: float = 0.0, tls: ssl.SSLContext | None = None, source: str = HOST
    ) -> None:
        self.delay_s = delay_s
        self.port = 0
        #: Connections since the start.
        self.accepted = 0
        self.source = source
        self._target_port = target_port
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def cut(self) -> None:
        """Resets all connections that are open now."""
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        self._cut()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            there_reader, there_writer = await asyncio.open_connection(
                HOST, self._target_port, local_addr=None if self.source == HOST else (self.source, 0)
            )
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, there_writer}
        try:
            await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))
        except asyncio.CancelledError:
            pass  # the proxy ends
        finally:
            self._open -= {writer, there_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        arrivals = asyncio.create_task(self._deliver(under_way, writer))
        try:
            while data := await reader.read(65536):
                under_way.put_nowait((self._loop.time() + self.delay_s, data))
            under_way.put_nowait((self._loop.time() + self.delay_s, b""))
            await arrivals
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            arrivals.cancel()
            writer.transport.abort()

    async def _deliver(self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        """Writes each piece when its time has come, in order. An empty piece is the end."""
        try:
            while (piece := await under_way.get())[1]:
                if (wait_s := piece[0] - self._loop.time()) > 0:
                    await asyncio.sleep(wait_s)
                writer.write(piece[1])
                await writer.drain()
        except OSError:
            writer.transport.abort()
