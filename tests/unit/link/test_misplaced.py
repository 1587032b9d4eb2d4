"""Every program names a key of the lane with a wrong type, and says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.link.key_types import types_of
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
