"""The rooms of the code: few at the top, each described. `make lint` checks which room may import which."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from bridge.testing.nodes.process import ROOT

TOPS = ("bridge", "spark")
#: Most entries of a top folder. With more, it is hard to see where a thing belongs.
ENTRIES = 20
#: Files where nothing can belong: compiled modules, the mark for type checkers, and the name for ``python -m``.
NO_PLACES = ("__pycache__", "py.typed", "__main__.py")
ROOMS = sorted(
    path.parent.relative_to(ROOT)
    for top in TOPS
    for path in (ROOT / top).rglob("__init__.py")
    if path.parent != ROOT / top and ROOT / "bridge" / "spark" not in path.parents
)


@pytest.mark.parametrize("top", TOPS)
def test_the_top_stays_small(top: str) -> None:
    entries = {path.name for path in (ROOT / top).iterdir() if path.name not in NO_PLACES}
    assert len(entries) <= ENTRIES, sorted(entries)


@pytest.mark.parametrize("room", ROOMS, ids=str)
def test_a_room_says_what_it_may_import_and_holds_no_code_itself(room: Path) -> None:
    tree = ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8"))
    text = ast.get_docstring(tree)
    assert text is not None
    # `bridge.testing` is what users import.
    if room != Path("bridge/testing"):
        assert "mport" in text
        # From these they import names.
        assert len(tree.body) == 1 or room in (Path("bridge/consumer"), Path("bridge/sql"))


def test_no_module_stands_outside_of_a_room() -> None:
    modules = {path.stem for path in (ROOT / "bridge").glob("*.py")}
    assert modules == {"__init__", "__main__"}
