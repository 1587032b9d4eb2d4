"""A leader that stops leaves no done entry in the stream: the next one may sleep at once, and looks minutes later."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from tests.commands import command_line
from tests.integration.operate.operators_world import SETTINGS, World


def test_what_was_done_just_before_its_leader_stops_is_removed(
    valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        shell = stack.enter_context(command_line(tmp_path, monkeypatch, valkey.url, **SETTINGS))
        world = World(valkey, shell, stack)
        world.start_master()
        world.join("w1@h", 3)
        for _ in range(3):
            # A leader removes what is done once in a second.
            world.push("T", "shop.update", None, hold=False)
            world.settle()
            [message] = world.take("w1@h", 1)
            world.end(message["message_id"], "done")
            world.settle()
            world.stop_master()
            assert world.redis.xlen("ticket_stream") == 0
            world.start_master()
