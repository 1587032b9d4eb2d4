"""The pool of asyncio clients: connections are given in the order in which they were asked for."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from redis.asyncio import Connection
from redis.exceptions import ConnectionError as NoConnection

from bridge.routing.async_connection import FairPool
from bridge.routing.server_errors import was_not_sent


class Stub(Connection):
    """Needs no server. ``refuses``: how many more times it cannot be connected."""

    refuses = 0
    is_connected = True

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


class Skipping(selectors.DefaultSelector):
    """Lets an event loop skip the times in which it would wait: its clock jumps."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += timeout or 0
        return super().select(0)


def run_skipping(main: Callable[[Callable[[], float]], Coroutine[Any, Any, None]]) -> None:
    """Runs ``main``, which gets the clock, in such a loop."""
    selector = Skipping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        loop.run_until_complete(main(loop.time))
    finally:
        loop.close()


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
    async def main(time: Callable[[], float]) -> None:
        del time
        pool = pool_of(timeout=5)
        for _ in range(3):
            Stub.refuses = 1
            with pytest.raises(NoConnection, match="refused"):
                await pool.get_connection()
        held = await pool.get_connection()
        with pytest.raises(NoConnection, match="No connection available: none became free in 5 s"):
            await pool.get_connection()
        waiting = asyncio.create_task(pool.get_connection())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        # One that is cancelled when its turn has come passes it on
        waiting = asyncio.create_task(pool.get_connection())
        await asyncio.sleep(0)
        await pool.release(held)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await pool.release(await pool.get_connection())

    run_skipping(main)


def test_who_waits_goes_on_waiting_while_others_are_served() -> None:
    async def main(time: Callable[[], float]) -> None:
        pool, got = pool_of(timeout=5), list[int]()

        async def ask(n: int) -> None:
            connection = await pool.get_connection()
            await asyncio.sleep(3)
            got.append(n)
            await pool.release(connection)

        await asyncio.gather(*(ask(n) for n in range(20)))
        assert got == list(range(20))
        assert time() >= 60

    run_skipping(main)


def test_who_waits_gives_up_when_nobody_is_served_and_has_sent_nothing() -> None:
    async def main(time: Callable[[], float]) -> None:
        pool = pool_of(timeout=5)
        held: Any = await pool.get_connection()

        async def lose(connection: Any) -> None:
            connection = connection or await pool.get_connection()
            await asyncio.sleep(3)
            connection.is_connected = False
            await pool.release(connection)

        # A connection that was lost is no answer of the server
        losing = [asyncio.create_task(lose(connection)) for connection in (held, None)]
        await asyncio.sleep(0)
        with pytest.raises(NoConnection, match="No connection available: none became free in 5 s") as error:
            await pool.get_connection()
        assert was_not_sent(error.value)
        assert 5 <= time() < 6
        await asyncio.gather(*losing)

    run_skipping(main)
