from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bridge.routing.errors import ConfigurationError
from bridge.settings.lane import LaneSettings
from bridge.stack.stack import Plan, Stack
from bridge.stack.stopping import StopRequest


def test_without_flower_a_stack_says_how_to_get_it_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This makes Python's import of the module fail.
    monkeypatch.setitem(sys.modules, "flower", None)
    folder = tmp_path / "stack"
    stack = Stack(Plan("tasks", folder), [LaneSettings()], StopRequest(), print)
    with pytest.raises(ConfigurationError, match=r"^Flower is not installed: pip install 'ticket-bridge\[flower\]'"):
        stack.start()
    assert not folder.exists()
