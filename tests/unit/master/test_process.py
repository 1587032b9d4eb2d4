"""What a master process does before its lanes start."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from bridge.master import process


def test_what_start_up_made_is_no_part_of_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class FakeMaster:
        def __init__(self, *_: Any) -> None:
            calls.append("made")

        def run(self) -> None:
            calls.append("run")

    monkeypatch.setattr(process, "Master", FakeMaster)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    app: Any = None
    process.run(app)
    assert calls == ["made", "freeze", "run"]
