"""Every program names a key of the lane with a wrong type or form, and says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.connection import AbstractConnection

import bridge
from bridge.link.key_types import LANES, refuse_misplaced, types_of
from bridge.protocol.agreement import refuse_other
from bridge.routing.errors import ConfigurationError
from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, command_line

KEYS = LaneKeys("ticket_stream", "concurrency_stream_group")
TYPES = types_of(KEYS)
COMMANDS = (
    "status",
    "status --watch",
    "pending",
    "delayed list",
    "delayed show 1-1",
    "delayed cancel 1-1",
    "dead list",
    "dead show 1-1",
    "dead drop --all --yes",
    "ticket list",
    "ticket show T",
    "ticket park T",
    "consumer list",
    "audit",
    "run",
)


@pytest.fixture
def shell(server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with command_line(tmp_path, monkeypatch, server.url) as made:
        yield made


#: What other programs and hands write into a string. Each is neither a number, nor a stream id, nor a leader's token.
TEXTS = st.one_of(
    st.sampled_from([b"", b"abc", b"1.5", b"-1", b"1e3", b"0x10", b" 7", b"07", b"nan", b"inf", b"9" * 400, b"1\n"]),
    st.integers(min_value=2**53).map(lambda number: str(number).encode()),
    st.integers(max_value=-1).map(lambda number: str(number).encode()),
    st.floats().map(lambda number: repr(number).encode()),
    st.binary(max_size=60).filter(lambda value: not re.fullmatch(rb"[0-9]+([ -].*)?", value, re.DOTALL)),
)


@pytest.mark.parametrize(
    "key", [KEYS.leader, KEYS.term, KEYS.fence, KEYS.floor], ids=lambda key: key.rpartition(":")[2]
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(value=TEXTS)
def test_status_and_masters_name_a_string_of_another_form(
    shell: CommandLine, server: EmbeddedServer, key: str, value: bytes
) -> None:
    with server.client() as client:
        client.set(key, value)
        try:
            for command in ("status", "run"):
                result = shell(command)
                assert (result.exit_code, result.stdout) == (2, ""), (command, result.stdout, result.stderr)
                assert result.stderr.startswith(f"Error: the key {key} holds "), result.stderr
                assert result.stderr.count("\n") == 1
                assert "delete it" in result.stderr or "set it" in result.stderr
            assert (client.dbsize(), client.get(key)) == (1, value), "nothing was changed"
        finally:
            client.delete(key)


@given(st.integers(0, 2**53 - 2))
def test_each_number_that_lua_counts_is_a_term_and_a_fence(number: int) -> None:
    values = {
        KEYS.term: number,
        KEYS.fence: number,
        KEYS.leader: f"{number} host:1:abc",
        KEYS.floor: f"{number}-{number}",
    }

    class Client:
        def pipeline(self, **_: Any) -> Any:
            return nullcontext(self)

        def __init__(self) -> None:
            self.asked: list[bytes | None] = []

        def type(self, _key: str) -> None:
            self.asked.append(b"none")

        def get(self, key: str) -> None:
            self.asked.append(str(values[key]).encode())

        def execute(self, *, raise_on_error: bool) -> list[bytes | None]:
            assert not raise_on_error
            found, self.asked = self.asked, []
            return found

    client: Any = Client()
    refuse_misplaced(client, KEYS)


@pytest.mark.parametrize("key", TYPES, ids=lambda key: key.rpartition(":")[2])
def test_every_command_names_a_key_of_another_type(shell: CommandLine, server: EmbeddedServer, key: str) -> None:
    with server.client() as client:
        if TYPES[key] == "string":
            client.lpush(key, "x")
        else:
            client.set(key, "x")
        before = client.dump(key)
        there = "list" if TYPES[key] == "string" else "string"
        for command in COMMANDS:
            result = shell(*command.split())
            assert (result.exit_code, result.stdout) == (2, ""), command
            assert result.stderr == (
                f"Error: the key {key} is a {there}, not a {TYPES[key]}; rename or delete it, or name another "
                "lane with bridge_stream or bridge_group\n"
            ), command
        assert (client.dbsize(), client.dump(key)) == (1, before), "nothing was changed"


def test_several_keys_are_named_at_once(shell: CommandLine, server: EmbeddedServer) -> None:
    with server.client() as client:
        client.set(KEYS.dead, "x")
        client.set(KEYS.history, "x")
    said = shell("dead", "list").stderr
    assert f"the key {KEYS.dead} is a string, not a stream, the key {KEYS.history} is a string, not a stream" in said
    assert "rename or delete them" in said


def test_a_user_without_permission_for_type_is_not_stopped(shell: CommandLine, server: EmbeddedServer) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-type")
        try:
            assert shell("status").exit_code == 0
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+type")


def test_the_types_are_those_of_all_keys_with_a_fixed_name() -> None:
    assert all(KEYS.owner_of(key) for key in TYPES)
    named = {value for name in dir(KEYS) if isinstance(value := getattr(KEYS, name), str) and not name.startswith("_")}
    assert set(TYPES) == named - {KEYS.group, KEYS.prefix}


MANY = [LaneKeys(f"ticket_stream:p{number}", "concurrency_stream_group") for number in range(2 * LANES + 1)]


def _in_another_type(client: Any, keys: LaneKeys) -> str:
    client.set(keys.tickets, "x")
    return keys.tickets


def _in_another_form(client: Any, keys: LaneKeys) -> str:
    client.set(keys.floor, "x")
    return keys.floor


def _newer(client: Any, keys: LaneKeys) -> str:
    client.hset(keys.about, "format", 99)
    return keys.stream


def _of_another_app(client: Any, keys: LaneKeys) -> str:
    client.hset(keys.about, "app", "bakery")
    return keys.stream


@pytest.mark.parametrize("place", [0, LANES - 1, LANES, 2 * LANES])
@pytest.mark.parametrize("spoil", [_in_another_type, _in_another_form, _newer, _of_another_app])
def test_lanes_are_checked_together_and_each_of_them(
    spoil: Callable[[Any, LaneKeys], str], place: int, valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = bridge.install(Celery("shop", broker=valkey.url, set_as_current=False))
    lanes = [app.bridge.settings.lane.on_stream(keys.stream) for keys in MANY]
    sent: list[int] = []
    send: Any = AbstractConnection.send_packed_command

    def counting(connection: Any, *words: Any, **options: Any) -> Any:
        sent.append(1)
        return send(connection, *words, **options)

    def check(client: Any) -> None:
        refuse_misplaced(client, *MANY)
        refuse_other(client, app, *lanes)

    with valkey.client() as client:
        client.ping()
        with monkeypatch.context() as patch:
            patch.setattr(AbstractConnection, "send_packed_command", counting)
            check(client)
        # A round trip for the keys of so many lanes, one for all formats, and one for all apps
        assert len(sent) == 3 + 1 + 1
        named = spoil(client, MANY[place])
        with pytest.raises(ConfigurationError, match=rf" {re.escape(named)}[ ,]"):
            check(client)
