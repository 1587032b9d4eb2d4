"""The printed permissions: their form, and that a stream's name cannot widen them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from hypothesis import example, given
from hypothesis import strategies as st

import bridge
from bridge.operate.permissions import access, literal
from bridge.operate.role_commands import Role, commands_in, commands_of_scripts
from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine


def test_the_commands_of_a_script_are_those_that_it_calls() -> None:
    script = """
    -- redis.call('FLUSHALL')
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {'DEPOSED'} end
    call_chunked({'XACK', KEYS[6], group}, 1, n)
    redis.pcall('XGROUP', 'SETID', KEYS[2])
    local words = {'HSET', KEYS[2]}
    """
    assert commands_in(script) == {"get", "xack", "xgroup|setid", "hset"}


def test_every_script_has_its_commands_granted() -> None:
    assert {"xack", "xclaim", "xreadgroup", "lpush"} <= commands_of_scripts(Role.MASTER)
    assert {"xadd", "del", "hset"} <= commands_of_scripts(Role.WORKER)
    assert "xack" not in commands_of_scripts(Role.WORKER)


@given(name=st.text(min_size=1, max_size=20))
@example(name="*")
@example(name="[a-z]?\\")
@example(name="a b\nc")
@example(name="'\"")
def test_a_user_name_is_valid_in_an_acl_file(name: str) -> None:
    found = literal(name)
    assert found.split() == [found]
    assert not set(found) & set("\"'")


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "*",
        "?",
        "a[b]c",
        "back\\slash",
        "x y",
        "é",
        "new\nline",
        "it's",
        "a\xa0b",
        "\u200b",
        "\u3000x",
        "\ue000",
    ],
)
def test_a_pattern_grants_the_name_and_not_another(name: str, server: EmbeddedServer) -> None:
    with server.client() as admin:
        rules = ["on", "nopass", "resetkeys", f"~{literal(name)}", "-@all", "+get"]
        admin.execute_command("ACL", "SETUSER", "somebody", *rules)
        try:
            with server.client(username="somebody", password="any") as one:
                assert one.get(name) is None
                for other in ("other", f"{name}x", f"x{name}"):
                    with pytest.raises(Exception, match="permission"):
                        one.get(other)
        finally:
            admin.acl_deluser("somebody")


def test_the_printed_command_and_the_line_of_a_file_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bridge = CommandLine(tmp_path, "redis://:sesame@localhost:1/3", bridge_stream="a b*")
    for role in Role:
        command = bridge("acl", role.value, "--user", "u").stdout
        line = bridge("acl", role.value, "--user", "u", "--aclfile").stdout
        assert command.removeprefix("ACL SETUSER ") == line.removeprefix("user ")
        assert "sesame" not in command
        assert "~a?b\\*" in command or role is Role.WORKER
        shown = bridge.json("acl", role.value)
        assert shown["user"] == f"bridge-{role.value}"
        assert shown["rules"] == command.split()[3:]
    assert "~a?b\\*" in bridge("acl", "worker", "--pushes").stdout.split()
    assert "~mine:*" in bridge("acl", "worker", "--own-keys", "mine:*").stdout.split()
    assert "&/3.celeryev/worker.*" in bridge("acl", "master").stdout.split()


@pytest.mark.parametrize(
    "arguments",
    [
        ["acl"],
        ["acl", "king"],
        ["acl", "worker", "--user", "a b"],
        ["acl", "producer", "--own-keys", "x"],
        ["acl", "master", "--pushes"],
        ["acl", "worker", "--own-keys", "a b"],
    ],
)
def test_wrong_usage_is_reported(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CommandLine(tmp_path, "redis://localhost:1/0")(*arguments).exit_code == 2


@pytest.mark.parametrize(("limit", "asked"), [({"bytes": 5}, True), ({"count": 5}, False), ({}, False)], ids=str)
def test_a_master_may_ask_for_the_memory_of_a_stream_where_a_limit_is_in_bytes(limit: Any, asked: bool) -> None:
    made = Celery("shop", broker="redis://127.0.0.1/0", set_as_current=False)
    bridge.install(made)
    made.conf.bridge_max_lag = limit
    found = access(made, [made.bridge.settings.lane], Role.MASTER)
    assert ("memory|usage" in found.commands) is asked
