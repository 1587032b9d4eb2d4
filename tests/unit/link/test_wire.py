"""A raw connection: whatever the replies are, the next call gets its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from bridge.link.connections import Wire, client, renew
from bridge.stack.embedded import EmbeddedServer

GOOD, WRONG = ("ECHO", "good"), ("INCR", "text")


@pytest.fixture
def wire(server: EmbeddedServer) -> Iterator[Wire]:
    made = Wire(server.url)
    made.call("SET", "text", "no number")
    yield made
    made.close()
    with server.client() as one:
        one.config_set("min-replicas-to-write", "0")


@pytest.mark.parametrize(
    "commands",
    [[WRONG], [WRONG, GOOD], [GOOD, WRONG], [GOOD, WRONG, GOOD, GOOD], [WRONG, GOOD, WRONG, GOOD]],
    ids=lambda commands: "-".join("wrong" if one is WRONG else "good" for one in commands),
)
def test_an_error_among_several_replies_leaves_none_of_them(wire: Wire, commands: list[tuple[str, str]]) -> None:
    number = wire.call("CLIENT", "ID")
    with pytest.raises(redis.ResponseError, match="not an integer"):
        wire.call_many(commands)
    assert not wire.asked
    assert not wire.has_answer
    assert wire.call("ECHO", "next") == b"next"
    assert wire.call("CLIENT", "ID") == number


def test_the_first_of_several_errors_is_raised(wire: Wire) -> None:
    with pytest.raises(redis.ResponseError, match="not an integer"):
        wire.call_many([GOOD, WRONG, ("NOSUCH",)])
    with pytest.raises(redis.ResponseError, match="unknown command"):
        wire.call_many([GOOD, ("NOSUCH",), WRONG])


def test_an_outage_among_several_replies_leaves_none_of_them(wire: Wire, server: EmbeddedServer) -> None:
    with server.client() as one:
        one.config_set("min-replicas-to-write", "1")
    with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
        wire.call_many([GOOD, WRONG, ("SET", "x", "1"), GOOD])
    assert wire.call("ECHO", "next") == b"next"


def test_no_command_has_no_reply(wire: Wire) -> None:
    assert wire.call_many([]) == []
    assert wire.call("ECHO", "next") == b"next"


def test_an_idle_connection_that_the_server_closed_is_renewed_and_another_one_stays(
    wire: Wire, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.link.connections.IDLE_S", 0.0)
    with client(server.url, single=True) as one, server.client() as operator:
        for _ in range(2):
            numbers = wire.call("CLIENT", "ID"), one.client_id()
            wire.renew()
            renew(one)
            assert (wire.call("CLIENT", "ID"), one.client_id()) == numbers
            operator.client_kill_filter(_type="normal", skipme=True)
            wire.renew()
            renew(one)
            assert wire.call("CLIENT", "ID") not in numbers
            assert one.client_id() not in numbers
        # Not before it is idle
        operator.client_kill_filter(_type="normal", skipme=True)
        monkeypatch.setattr("bridge.link.connections.IDLE_S", 1000.0)
        wire.renew()
        with pytest.raises(redis.exceptions.ConnectionError):
            wire.call("CLIENT", "ID")


def test_a_connection_that_is_not_open_needs_no_renewal(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.link.connections.IDLE_S", 0.0)
    with client(server.url, single=True) as one:
        wire = Wire(server.url)
        for _ in range(2):
            wire.renew()
            renew(one)
        one.connection.disconnect()
        renew(one)
        assert one.ping()
        assert wire.call("PING") == b"PONG"
        wire.close()
