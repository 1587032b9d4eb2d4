"""The rooms of ``spark/``: imports run one way, late ones and those for types too, and the top stays small."""

from __future__ import annotations

import ast
from pathlib import Path

from bridge import spark

TOP = Path(spark.__file__).parent
#: Room → the rooms that it may import beside itself. ``source`` is a module: it is a room of its own here.
MAY_IMPORT = {
    "wire": set[str](),
    "read": {"wire"},
    "write": {"wire"},
    "source": {"wire", "read", "write"},
    "job": {"wire", "read", "write", "source"},
    "pushing": {"wire", "read", "write", "job"},
    "archiving": {"wire", "read", "write", "job"},
    "reporting": {"wire", "read", "write", "job", "archiving"},
}
PROGRAMS = ("push", "archive", "report", "replay", "incidents", "generate")


def imported(file: Path) -> set[tuple[str, ...]]:
    """The modules of this package that a file imports, anywhere in it, each as the parts of its name in the package."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            # What is imported of a module may be a module too.
            names |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
    package = f"{spark.__name__}."
    return {tuple(name.removeprefix(package).split(".")) for name in names if name.startswith(package)}


def room_of(file: Path) -> str:
    return file.relative_to(TOP).parts[0].removesuffix(".py")


def test_each_room_imports_only_rooms_below_it() -> None:
    wrong = {
        (str(file.relative_to(TOP)), name[0])
        for file in TOP.rglob("*.py")
        if room_of(file) in MAY_IMPORT
        for name in imported(file)
        if name[0] not in {room_of(file), *MAY_IMPORT[room_of(file)]}
    }
    assert not wrong


def test_no_program_imports_another_one() -> None:
    for program in PROGRAMS:
        assert not {name[0] for name in imported(TOP / f"{program}.py")} & set(PROGRAMS)


def test_there_are_no_circles_within_a_room() -> None:
    graph = {
        file.relative_to(TOP).with_suffix("").parts: {name for name in imported(file) if len(name) == 2}
        for file in TOP.glob("*/*.py")
    }
    # Modules that import nothing that is left can go; what cannot go is in a circle, or imports one.
    while leaves := {name for name, wanted in graph.items() if not wanted & graph.keys()}:
        graph = {name: wanted for name, wanted in graph.items() if name not in leaves}
    assert not graph


def test_the_top_has_what_a_user_runs_or_names_and_at_most_20_entries() -> None:
    entries = {path.name for path in TOP.iterdir() if path.name != "__pycache__"}
    assert entries == {
        *{"__init__.py", "py.typed", "start.py", "source.py"},
        *(f"{program}.py" for program in PROGRAMS),
        *(MAY_IMPORT.keys() - {"source"}),
    }
    assert len(entries) <= 20


def test_each_room_says_in_three_sentences_what_it_is() -> None:
    for room in MAY_IMPORT.keys() - {"source"}:
        text = ast.get_docstring(ast.parse((TOP / room / "__init__.py").read_text()))
        assert text is not None
        assert "may import" in text
