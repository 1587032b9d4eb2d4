"""Every command that reads or changes a lane refuses one of a newer format, in one line, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, Lane, command_line

COMMANDS = [
    ("status",),
    ("ticket", "show", "T"),
    ("ticket", "list"),
    ("ticket", "park", "T"),
    ("ticket", "release", "T"),
    ("consumer", "list"),
    ("consumer", "drain", "w1@here"),
    ("consumer", "resume", "w1@here"),
    ("consumer", "transfer", "w1@here"),
    ("dead", "list"),
    ("dead", "show", "1-0"),
    ("dead", "replay", "--all", "--yes"),
    ("dead", "drop", "--all", "--yes"),
    ("audit",),
]


@pytest.fixture
def shell(valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with command_line(tmp_path, monkeypatch, valkey.url) as made:
        yield made


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_newer_format_is_refused(shell: CommandLine, valkey: EmbeddedServer, arguments: tuple[str, ...]) -> None:
    lane = Lane(valkey)
    lane.make_group()
    lane.redis.hset(lane.keys.about, "format", "2")
    lane.redis.xadd(lane.keys.dead, {"message_id": "1-0"})
    said = shell(*arguments)
    assert said.exit_code == 2
    (line,) = said.stderr.splitlines()
    assert "is kept by a newer Ticket Bridge, in format 2; this version" in line
    assert lane.redis.xlen(lane.keys.dead) == 1
    lane.redis.close()
