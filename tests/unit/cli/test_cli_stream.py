"""`bridge stream retire`: --dry-run writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, command_line


@pytest.fixture
def shell(valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with command_line(tmp_path, monkeypatch, valkey.url, bridge_stream="orders:v2") as made:
        yield made


@pytest.fixture
def redis(valkey: EmbeddedServer) -> Iterator[Any]:
    with valkey.client() as connected:
        yield connected


def test_a_dry_run_does_not_undo_a_retirement(shell: CommandLine, redis: Any) -> None:
    redis.xdel("orders", redis.xadd("orders", {"ticket_id": "A", "payload": "{}"}))
    assert shell("stream", "retire", "orders", "--yes").exit_code == 0
    before = {key: redis.dump(key) for key in redis.scan_iter()}
    looked = shell("stream", "retire", "orders", "--undo", "--dry-run")
    assert looked.stdout == "would let the name orders be used again\n"
    assert {key: redis.dump(key) for key in redis.scan_iter()} == before
    undone = shell("stream", "retire", "orders", "--undo", "--json")
    assert json.loads(undone.stdout) == {"dry_run": False, "stream": "orders", "undo": True}
    assert "was not retired" in shell("stream", "retire", "orders", "--undo", "--dry-run").stderr
