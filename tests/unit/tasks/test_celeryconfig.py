"""The settings of this repository's app, as the environment leaves them."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge.settings.app import NAMES

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "celeryconfig.py"
VARIABLES = sorted({*re.findall(r'"(BRIDGE_[A-Z_]+)"', CONFIG.read_text()), "BRIDGE_FOLLOW_UP_S", "BRIDGE_LEDGER_DIR"})


def settings() -> dict[str, Any]:
    """What ``celeryconfig.py`` sets in this process's environment."""
    found = runpy.run_path(str(CONFIG))
    return {name: value for name, value in found.items() if not name.startswith("_") and name != "os"}


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_variable_that_is_empty_is_not_set(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compose file passes variables on that are not set, as empty ones."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    unset = settings()
    monkeypatch.setenv(variable, "")
    assert settings() == unset


def test_the_app_starts_with_empty_variables() -> None:
    code = "from tasks.incidents import FIRST_DUE_S, app; print(FIRST_DUE_S, app.bridge.settings.lane.lease)"
    env = {**os.environ, **dict.fromkeys(VARIABLES, "")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "0.0 6.0\n"), done.stderr


def test_each_setting_is_set_or_said_to_be_at_its_default() -> None:
    said = set(re.findall(r"^(?:# |    )?bridge_(\w+) = ", CONFIG.read_text(), re.MULTILINE))
    assert set(NAMES) - said == set()
