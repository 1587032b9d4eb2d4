"""The health file, by which a supervisor sees that a loop runs."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from bridge.link.health import EVERY_S, Health
from bridge.routing.errors import ConfigurationError

LONG_AGO = 1_000_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("bridge.link.health.time.monotonic", lambda: now[0])
    return now


def test_it_is_touched_once_in_a_while_as_the_loop_turns(tmp_path: Path, clock: list[float]) -> None:
    file = tmp_path / "health"
    health = Health(str(file))
    assert file.exists()
    ages = []
    for _ in range(3):
        os.utime(file, (LONG_AGO, LONG_AGO))
        health.turn()
        ages.append(file.stat().st_mtime == LONG_AGO)
        clock[0] += EVERY_S * 0.6
    assert ages == [False, True, False]


def test_a_file_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    file = tmp_path / "health"
    health = Health(str(file))
    file.unlink()
    health.turn()
    assert file.exists()


def test_a_place_that_cannot_be_written_is_refused_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^bridge_health_file: cannot write .*: No such file or directory$"):
        Health(str(tmp_path / "nowhere" / "health"))


def test_a_file_that_cannot_be_written_later_is_logged_once_and_the_loop_goes_on(
    tmp_path: Path, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    health = Health(str(folder / "health"))
    (folder / "health").unlink()
    folder.rmdir()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            health.turn()
            clock[0] += EVERY_S
    assert len(caplog.records) == 1


def test_without_a_file_nothing_is_done() -> None:
    Health(None).turn()
