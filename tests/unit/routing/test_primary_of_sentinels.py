"""The primary that sentinels name: what their clients say when there is none, and what they do when it is read-only."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from inspect import isawaitable
from typing import Any

import pytest
import redis.asyncio.sentinel
import redis.sentinel
from celery import Celery

import bridge
from bridge.link.connections import Wire, check_server, client
from bridge.routing.async_connection import async_client
from bridge.routing.errors import ServerUnavailable, Unanswered
from bridge.routing.server_errors import was_not_sent
from bridge.settings.address import address_of
from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST

SECRET = "pw-sentinel"
URL = 'sentinel://{host}/0?master_name=mine&sentinel={{"password":"' + SECRET + '"}}'


@pytest.fixture
def asked(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names that the sentinels were asked for. They answer with ``server``."""
    found: list[str] = []

    def discover(_self: Any, name: str) -> tuple[str, int]:
        found.append(name)
        return HOST, server.port

    async def discover_async(_self: Any, name: str) -> tuple[str, int]:
        return discover(_self, name)

    monkeypatch.setattr(redis.sentinel.Sentinel, "discover_master", discover)
    monkeypatch.setattr(redis.asyncio.sentinel.Sentinel, "discover_master", discover_async)
    yield found
    with server.client() as one:
        one.execute_command("REPLICAOF", "NO", "ONE")


async def result_of(found: Any) -> Any:
    return await found if isawaitable(found) else found


#: How a client is made and asked, by its name.
CLIENTS: dict[str, Callable[[str], Any]] = {"client": client, "async client": async_client}


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("kind", CLIENTS)
def test_sentinels_that_name_no_primary_are_told_in_one_line(
    kind: str, secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"No master found for 'mine' : <redis.client.Redis(<redis.ConnectionPool(password={SECRET})>)> - refused"

    def fail(_self: Any, _name: str) -> tuple[str, int]:
        raise redis.sentinel.MasterNotFoundError(text)

    async def fail_async(_self: Any, _name: str) -> tuple[str, int]:
        raise redis.asyncio.sentinel.MasterNotFoundError(text)

    monkeypatch.setattr(redis.sentinel.Sentinel, "discover_master", fail)
    monkeypatch.setattr(redis.asyncio.sentinel.Sentinel, "discover_master", fail_async)
    url = URL.format(host=HOST) + ("&ssl_cert_reqs=none" if secure else "")

    async def main() -> None:
        made = CLIENTS[kind](url)
        with pytest.raises(redis.exceptions.ConnectionError, match=r"^no sentinel names a primary 'mine': ") as found:
            await result_of(made.ping())
        assert was_not_sent(found.value)
        assert SECRET not in str(found.value)
        assert found.value.__cause__ is None
        assert found.value.__suppress_context__

    asyncio.run(main())


def test_a_command_and_a_push_say_the_same() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    app = Celery("shop", broker=f"sentinel://{HOST}:{port}", set_as_current=False)
    app.conf.broker_transport_options = {"master_name": "mine", "sentinel_kwargs": {"password": SECRET}}
    bridge.install(app)

    @app.task(bind=True, name="shop.task")
    def task(self: Any, ticket_id: str, payload: Any) -> None:
        """Is only pushed."""

    url = address_of(app)
    with pytest.raises(ServerUnavailable) as of_command:
        check_server(client(url), url)
    with pytest.raises(ServerUnavailable) as of_push:
        task.push("T1", {})
    assert type(of_push.value) is ServerUnavailable
    for said in map(str, (of_command.value, of_push.value)):
        assert "no sentinel names a primary 'mine'" in said
        assert SECRET not in said
        assert "Redis(" not in said


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_sentinel_that_hangs_up_is_asked_once(kind: str) -> None:
    came: list[int] = []
    with socket.create_server((HOST, 0)) as listener:

        def hang_up() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                came.append(1)
                connection.close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()

        async def main() -> None:
            made = CLIENTS[kind](URL.format(host=f"{HOST}:{listener.getsockname()[1]}"))
            with pytest.raises(redis.exceptions.ConnectionError):
                await result_of(made.ping())

        asyncio.run(main())
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    assert len(came) == 1


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_primary_that_is_read_only_is_told_as_such_and_asked_for_again(
    kind: str, server: EmbeddedServer, asked: list[str]
) -> None:
    async def main() -> None:
        made = CLIENTS[kind](URL.format(host=HOST))
        await result_of(made.set("x", 1))
        before = len(asked)
        with server.client() as one:
            one.execute_command("REPLICAOF", HOST, "1")
        with pytest.raises(redis.exceptions.ReadOnlyError) as found:
            await result_of(made.set("x", 2))
        assert was_not_sent(found.value)
        assert len(asked) == before
        with server.client() as one:
            one.execute_command("REPLICAOF", "NO", "ONE")
        await result_of(made.set("x", 3))
        assert asked[before:] == ["mine"]
        await result_of(made.aclose() if kind == "async client" else made.close())

    asyncio.run(main())


def test_a_raw_connection_asks_for_the_primary_again(server: EmbeddedServer, asked: list[str]) -> None:
    wire = Wire(URL.format(host=HOST))
    # There is a stream, so that it is written to
    wire.call("XADD", "s", "*", "a", "b")
    with server.client() as one:
        one.execute_command("REPLICAOF", HOST, "1")
    with pytest.raises(redis.exceptions.ReadOnlyError):
        wire.call_many([("GET", "x"), ("XADD", "s", "*", "a", "b"), ("GET", "x")])
    before = len(asked)
    with server.client() as one:
        one.execute_command("REPLICAOF", "NO", "ONE")
    wire.call("XADD", "s", "*", "a", "b")
    assert len(asked) > before
    wire.close()


def test_a_push_to_a_primary_that_is_read_only_is_not_in(server: EmbeddedServer, asked: list[str]) -> None:
    app = Celery("shop", broker=f"sentinel://{HOST}", set_as_current=False)
    app.conf.broker_transport_options = {"master_name": "mine"}
    bridge.install(app)

    @app.task(bind=True, name="shop.task")
    def task(self: Any, ticket_id: str, payload: Any) -> None:
        """Is only pushed."""

    async def apush() -> None:
        await task.apush("T1", {})

    def run_apush() -> None:
        asyncio.run(apush())

    def push() -> None:
        task.push("T1", {})

    for one in (push, run_apush):
        one()
        with server.client() as operator:
            operator.execute_command("REPLICAOF", HOST, "1")
        with pytest.raises(ServerUnavailable, match="the message is not in") as found:
            one()
        assert not isinstance(found.value, Unanswered)
        with server.client() as operator:
            operator.execute_command("REPLICAOF", "NO", "ONE")


def test_more_callers_than_connections_wait_for_one(server: EmbeddedServer, asked: list[str]) -> None:
    del server

    async def main() -> None:
        made = async_client(URL.format(host=HOST))
        calls: list[Awaitable[Any]] = [result_of(made.ping()) for _ in range(300)]
        assert await asyncio.gather(*calls) == [True] * 300
        assert len(asked) <= 10
        await made.aclose()

    asyncio.run(main())
