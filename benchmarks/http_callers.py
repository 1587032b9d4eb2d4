"""Load on a master's port, from one process: ``python -m benchmarks.http_callers REDIS_URL PORT KIND COUNT``.

KIND is ``polls`` (COUNT registered consumers, each with an open long poll), ``busy`` (COUNT consumers that receive and
renew, one call after the other, as fast as they are answered) or ``slow`` (COUNT clients that send their headers byte
by byte, or do not read the answer). What the consumers can run is in no message, so the lane's work is the same with
and without them. When the load is there, the key `READY` is set.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from redis import Redis

from bridge.stack.ports import HOST

READY = "benchmark:load"
#: How many calls register at the same time.
AT_ONCE = 16
WAIT_S = 60
#: Seconds between two bytes of a slow client.
BYTE_S = 1.0


class Connection:
    """One connection of one client."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(HOST, self._port)

    def send(self, method: str, path: str, body: Any = None) -> None:
        text = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)

    def write(self, raw: bytes) -> None:
        self._writer.write(raw)

    async def answer(self) -> Any:
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        body = json.loads(await self._reader.readexactly(int(length)))
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise RuntimeError(f"{head!r} {body}")
        return body

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        self.send(method, path, body)
        return await self.answer()


async def register(port: int, name: str) -> tuple[Connection, str]:
    """A connection, and the path of a receive without its wait."""
    connection = Connection(port)
    await connection.open()
    asked = {"name": name, "concurrency": 1, "tasks": ["elsewhere"]}
    found = await connection.call("POST", "/api/consumers/register", asked)
    return connection, f"/api/messages/next?consumer={name}&incarnation={found['incarnation']}&wait="


async def poll(connection: Connection, path: str) -> None:
    """Receives, again and again. The lease outlasts the run."""
    while True:
        await connection.call("GET", f"{path}{WAIT_S}")


async def be_busy(connection: Connection, path: str) -> None:
    """Receives nothing, again and again."""
    while True:
        await connection.call("GET", f"{path}0")


async def be_slow(port: int, number: int) -> None:
    """Sends slowly, or reads nothing. Comes again when it is cut off."""
    while True:
        connection = Connection(port)
        try:
            await connection.open()
            if number % 2:
                for _ in range(200):
                    connection.send("GET", "/api/openapi.json")
                await asyncio.sleep(WAIT_S)
            else:
                for byte in b"GET /api/health HTTP/1.1\r\nX: " + b"a" * 1000:
                    connection.write(bytes([byte]))
                    await asyncio.sleep(BYTE_S)
        except OSError:
            await asyncio.sleep(BYTE_S)


async def main(url: str, port: int, kind: str, count: int) -> None:
    """Runs until it is killed."""
    if kind == "slow":
        tasks = [asyncio.create_task(be_slow(port, n)) for n in range(count)]
        await asyncio.sleep(2 * BYTE_S)
    else:
        places = asyncio.Semaphore(AT_ONCE)

        async def begin(number: int) -> tuple[Connection, str]:
            async with places:
                return await register(port, f"load{number}")

        begun = await asyncio.gather(*map(begin, range(count)))
        does = poll if kind == "polls" else be_busy
        tasks = [asyncio.create_task(does(*one)) for one in begun]
    with Redis.from_url(url) as redis:
        redis.set(READY, 1)
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
