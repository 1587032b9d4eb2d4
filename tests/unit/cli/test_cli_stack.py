"""``bridge up`` and ``bridge demo``: what they refuse before they start anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import command_line


@pytest.mark.parametrize("command", ["up", "demo"])
def test_a_lease_that_the_app_would_not_have_is_refused(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BRIDGE_AUDIT_TRAIL", "BRIDGE_NOTICES"):
        # The command sets them, for its children: they are restored after the test.
        monkeypatch.setenv(name, "")
    with command_line(tmp_path, monkeypatch, "redis://127.0.0.1:1/0", bridge_lease=6) as shell:
        done = shell(command, "--lease", "2")
    why = f"the app {shell.app} has a lease of 6 s whatever BRIDGE_LEASE says; set its bridge_lease"
    assert (done.exit_code, done.stderr) == (2, f"Error: --lease: {why}\n")
    assert not (tmp_path / "run").exists()
