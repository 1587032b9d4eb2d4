"""The rooms of the code: few at the top, each described. `make lint` checks which room may import which."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
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
#: The names that a room's text has after "imports", up to what it says that the room does not import.
NAMED = re.compile(r"\bimports?\s(.*?)(?:, but not|, and nothing|, and no |\.\s|\.$)", re.IGNORECASE | re.DOTALL)


def layers() -> dict[str, int]:
    """Each module that the contracts of import-linter name -> its floor in what holds it; higher is larger."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    return {
        f"{container}.{module.strip()}": floor
        for contract in contracts
        for container in contract.get("containers", ())
        for floor, layer in enumerate(reversed(contract.get("layers", ())))
        for module in layer.split("|")
    }


LAYERS = layers()


def place(module: str) -> tuple[int, ...]:
    """The floors of ``module`` and of what holds it, outermost first; comparable."""
    parts = module.split(".")
    names = (".".join(parts[:count]) for count in range(2, len(parts) + 1))
    return tuple(LAYERS[name] for name in names if name in LAYERS)


def imported(room: Path) -> Iterator[str]:
    """What the files of ``room`` and of the rooms in it import of `bridge`, without what is their own."""
    own = ".".join(("bridge", *room.parts) if room.parts[0] == "spark" else room.parts)
    for path in (ROOT / room).rglob("*.py"):
        yield from (name for name in imported_by(path) if not f"{name}.".startswith(f"{own}."))


@cache
def imported_by(path: Path) -> list[str]:
    """What a file imports of `bridge`. Cached: a file is in its room, and in each room around that."""
    modules: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            modules += [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            modules += [name.name for name in node.names]
    return [name for name in modules if name.startswith("bridge.")]


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


@pytest.mark.parametrize("room", ROOMS, ids=str)
def test_the_highest_room_that_is_named_is_the_highest_that_is_imported(room: Path) -> None:
    text = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8"))) or ""
    sentence = NAMED.search(text)
    assert sentence is not None, text
    named = re.findall(r"`(bridge\.[\w.]+)`", sentence[1].replace("`routing`", "`bridge.routing`"))
    highest = max(map(place, named))
    modules = sorted(set(imported(room)), key=place)
    assert place(modules[-1])[: len(highest)] == highest, modules


def test_no_module_stands_outside_of_a_room() -> None:
    modules = {path.stem for path in (ROOT / "bridge").glob("*.py")}
    assert modules == {"__init__", "__main__"}
