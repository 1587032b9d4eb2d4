"""The tables of a report take their places all or none, and an earlier table is lost at no moment."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from bridge.spark.reporting.results import _Writer

NAMES = ("totals", "tasks", "tickets")


def table(folder: Path, what: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_text(what)
    return folder


def content(folder: Path) -> str | None:
    file = folder / "part-0.parquet"
    return file.read_text() if file.exists() else None


def tables_in(folder: Path) -> dict[str, str | None]:
    return {one.name: content(one) for one in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An earlier report."""
    for name in NAMES:
        table(tmp_path / name, "old")
    return tmp_path


def written(folder: Path) -> _Writer:
    """A writer that has written all tables."""
    session: Any = None
    writer = _Writer(session, folder, None)
    writer._made = {name: table(folder / f".{name}.new", "new") for name in NAMES}
    return writer


def test_new_tables_take_the_places_of_earlier_ones(folder: Path) -> None:
    writer = written(folder)
    writer.put_in_place()
    writer.clear()
    assert tables_in(folder) == dict.fromkeys(NAMES, "new")


@pytest.mark.parametrize("moves", range(2 * len(NAMES)))
def test_a_report_that_cannot_move_its_tables_leaves_the_earlier_ones(
    folder: Path, moves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename
    turns = count()

    def fails_once(self: Path, target: Path) -> Path:
        if next(turns) == moves:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails_once)
    writer = written(folder)
    with pytest.raises(OSError, match="No space"):
        writer.put_in_place()
    writer.clear()
    assert tables_in(folder) == dict.fromkeys(NAMES, "old")


def test_a_report_that_is_killed_loses_no_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename
    moves = []

    def looks(self: Path, target: Path) -> Path:
        """What there is now is left by a kill."""
        moves.append(self.name)
        there = tables_in(folder)
        assert all(there.get(name) or there.get(f".{name}.old") for name in NAMES), there
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", looks)
    written(folder).put_in_place()
    assert moves


@pytest.mark.parametrize("place_is_taken", [False, True])
def test_what_a_killed_report_left_is_gone_after_the_next_one(folder: Path, place_is_taken: bool) -> None:
    (folder / "tasks").rename(folder / ".tasks.old")
    if place_is_taken:
        table(folder / "tasks", "killed")
    writer = written(folder)
    writer.put_in_place()
    assert tables_in(folder) == dict.fromkeys(NAMES, "new")
