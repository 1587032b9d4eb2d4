"""A master on a server that has disabled a command, known at start or met later, ends with one line that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

import bridge.operate.server_commands
from bridge.stack.embedded import EmbeddedServer
from tests.commands import command_line


@pytest.mark.parametrize("binary", ["valkey_binary", "redis6_binary"])
@pytest.mark.parametrize("may_ask", [True, False])
@pytest.mark.parametrize("name", ["xpending", "xclaim", "incr", "xreadgroup", "hscan"])
def test_a_master_does_not_lead_without_a_command_and_names_it(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    binary: str,
    name: str,
    may_ask: bool,
) -> None:
    if not may_ask:
        if name == "xclaim":
            pytest.skip("it is met when a message is dispatched")
        monkeypatch.setattr(bridge.operate.server_commands, "refuse_without_commands", lambda *_: None)
    configuration = tmp_path / "more.conf"
    configuration.write_text(f'rename-command {name} ""\n')
    server = EmbeddedServer(
        binary=request.getfixturevalue(binary),
        data_dir=tmp_path / "server",
        append_only=False,
        options={"include": str(configuration)},
    )
    with server, command_line(tmp_path, monkeypatch, server.url) as shell:
        said = shell("run")
        assert said.exit_code == 1
        lines = [line for line in said.stderr.splitlines() if line.startswith("Error: ")]
        assert len(lines) == 1
        assert lines[0].startswith("Error: the server has n")
        # Of what a script calls the server does not say the name.
        assert name.upper() in lines[0] or (not may_ask and "of a script" in lines[0])
        assert " acl` prints" in lines[0]
        assert "Traceback" not in said.stderr
        assert said.stderr.count("\n") == 1 or not may_ask
