"""Arguments that click accepts and Python does not, and output that cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, Lane, command_line, letter

HUGE = "9" * 30


@pytest.fixture
def shell(valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with command_line(tmp_path, monkeypatch, valkey.url) as made:
        yield made


@pytest.fixture
def lane(valkey: EmbeddedServer) -> Iterator[Lane]:
    made = Lane(valkey)
    made.make_group()
    made.lead()
    yield made
    made.redis.close()


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "--watch", "--interval", "nan"],
        ["consumer", "drain", "w1", "--timeout", "nan"],
        ["audit", "--clock-skew", "nan"],
        ["dead", "list", "--limit", HUGE],
        ["ticket", "list", "--limit", HUGE],
        ["ticket", "park", "A", "--reason", "\udcff"],
        ["ticket", "park", "A", "--reason", ""],
        ["dead", "list", "--reason", ""],
        ["acl", "worker", "--user", ""],
        ["acl", "worker", "--own-keys", ""],
        ["acl", "worker", "--own-keys", "\udcff"],
    ],
)
def test_an_argument_that_cannot_work_is_wrong_usage(shell: CommandLine, arguments: list[str]) -> None:
    result = shell(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: Invalid value for" in result.stderr


@pytest.mark.parametrize("verb", ["replay", "drop"])
def test_a_reason_from_an_unset_variable_does_not_choose_every_letter(
    shell: CommandLine, lane: Lane, verb: str
) -> None:
    lane.redis.execute_command("XADD", lane.keys.dead, "*", *letter("A", message_id="5-1"))
    result = shell("dead", verb, "--reason", "", "--yes")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'--reason': it is empty" in result.stderr
    assert lane.redis.xlen(lane.keys.dead) == 1


def ran(shell: CommandLine, *arguments: str, stdout: int, **env: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "bridge", "-A", shell.app, *arguments]
    path = os.pathsep.join([str(shell.folder), str(Path(__file__).parents[3])])
    # As users run it: with a buffer, of which Python writes the rest when it ends
    env = {"PYTHONUNBUFFERED": "", **env}
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path, **env}, check=False
    )


@pytest.mark.parametrize("arguments", [["status"], ["status", "--json"], ["acl", "worker"]])
def test_a_full_disk_behind_the_output_is_an_error_of_one_line(shell: CommandLine, arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        result = ran(shell, *arguments, stdout=full.fileno())
    assert result.stderr == b"Error: the output cannot be written: No space left on device\n"
    assert result.returncode == 1


def test_a_terminal_that_has_no_such_character_gets_it_written_out(shell: CommandLine, lane: Lane) -> None:
    lane.redis.execute_command("XADD", lane.keys.dead, "*", *letter("\u7968", message_id="5-1"))
    shown = ran(shell, "dead", "list", stdout=subprocess.PIPE, PYTHONIOENCODING="ascii")
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert rb"\u7968" in shown.stdout
    document = ran(shell, "dead", "list", "--json", stdout=subprocess.PIPE, PYTHONIOENCODING="ascii")
    assert (document.returncode, document.stderr) == (0, b"")
    # JSON is UTF-8, whatever the terminal is.
    assert '"\u7968"' in document.stdout.decode()
