"""A connection between one process and the server that can be cut: ``python -m tests.chaos.link LISTEN_PORT
SERVER_PORT``.

Frozen (SIGSTOP), it is a network that carries nothing: connections stay open, new ones are accepted and never answered,
and what was on its way arrives when it goes on, long after its sender has given it up.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from bridge.stack.ports import HOST

READY = "the line is open"


async def carry(listen_port: int, server_port: int) -> None:
    """Passes everything on, for ever."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection(HOST, server_port)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(pump(reader, to_server), pump(from_server, writer))

    server = await asyncio.start_server(serve, HOST, listen_port)
    print(READY, flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(carry(int(sys.argv[1]), int(sys.argv[2])))
