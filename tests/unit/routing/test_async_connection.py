"""The pool of asyncio clients: connections are given in the order in which they were asked for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Connection
from redis.exceptions import ConnectionError as NoConnection

from bridge.routing.async_connection import FairPool


class Stub(Connection):
    """Needs no server. ``refuses``: how many more times it cannot be connected."""

    refuses = 0

    async def connect(self, *_: Any, **__: Any) -> None:
        if Stub.refuses:
            Stub.refuses -= 1
            raise NoConnection("refused")

    async def can_read_destructive(self, *_: Any, **__: Any) -> bool:
        return False

    async def can_read(self, *_: Any, **__: Any) -> bool:
        return False


def pool_of(timeout: float = 30) -> FairPool:
    return FairPool(max_connections=1, timeout=timeout, connection_class=Stub)


def test_who_comes_again_at_once_waits_behind_those_that_wait() -> None:
    async def ask(pool: FairPool, name: str, got: list[str]) -> None:
        connection = await pool.get_connection()
        got.append(name)
        await pool.release(connection)

    async def main() -> list[str]:
        pool, got = pool_of(), list[str]()
        held = await pool.get_connection()
        waiting = [asyncio.create_task(ask(pool, name, got)) for name in ("first", "second")]
        for _ in range(10):
            # Both wait by then: nothing else runs in this loop.
            await asyncio.sleep(0)
        await pool.release(held)
        await ask(pool, "again", got)
        await asyncio.gather(*waiting)
        return got

    assert asyncio.run(main()) == ["first", "second", "again"]


def test_a_connection_that_cannot_be_made_and_a_wait_that_ends_cost_no_place() -> None:
    async def main() -> None:
        pool = pool_of(timeout=0.01)
        for _ in range(3):
            Stub.refuses = 1
            with pytest.raises(NoConnection, match="refused"):
                await pool.get_connection()
        held = await pool.get_connection()
        with pytest.raises(NoConnection, match="No connection available"):
            await pool.get_connection()
        await pool.release(held)
        await pool.release(await pool.get_connection())

    asyncio.run(main())
