"""The Lua files against their own headers, the enum of return codes, and their typed wrappers."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.routing.batch import SECTIONS
from bridge.routing.return_codes import ReturnCode
from bridge.routing.scripts import with_shared

ROOT = Path(__file__).parents[3]
LUA = ROOT / "routing" / "lua"
FILES = sorted(LUA.glob("*.lua"))
#: A command or a function that evaluates Lua.
EVALUATES = re.compile(r"(?i)(eval(sha)?(_ro)?|register_script|script_load|fcall(_ro)?)\b")
LABELS = ("From -> to:", "KEYS:", "ARGV:", "Returns:", "Keeps:", "Bound:")


def split(path: Path) -> tuple[str, str]:
    """The header as running text, and the code without comments."""
    lines = with_shared(path.read_text()).splitlines()
    end = next(i for i, line in enumerate(lines) if not line.startswith("--"))
    header = " ".join(line.removeprefix("--").strip() for line in lines[:end])
    code = "\n".join(re.sub(r"--[^'\"]*$", "", line) for line in lines[end:])
    return header, code


def section(header: str, label: str) -> str:
    """What the header says after a label, up to the next one."""
    start = header.index(label) + len(label)
    ends = [header.index(other, start) for other in LABELS if other in header[start:]]
    return header[start : min(ends, default=len(header))].strip()


def codes_in(text: str) -> set[str]:
    """Quoted upper-case words: what a script may return."""
    return set(re.findall(r"'([A-Z]+)(?: \.\.\.)?'", text))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_script_opens_with_its_contract(path: Path) -> None:
    header, _ = split(path)
    # One sentence of purpose comes first, then every section, once, with something in it
    purpose = header[: min(header.index(label) for label in LABELS)].strip()
    assert re.fullmatch(r"[A-Z].+\.", purpose), purpose
    assert len(purpose) < 150
    for label in LABELS:
        assert header.count(label) == 1, f"{path.name}: {label} {header.count(label)} times"
        assert section(header, label).rstrip(". "), f"{path.name} says nothing after {label}"
    assert re.search(r"\bI\d|promise \d", section(header, "Keeps:"))
    assert re.search(r"O\(", section(header, "Bound:"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_keys_of_the_header_are_those_of_the_code(path: Path) -> None:
    header, code = split(path)
    stated = section(header, "KEYS:")
    numbered = [int(n) for n in re.findall(r"(?:^|[ ,])(\d+)(?:\.\.)? ", f" {stated} ")]
    assert numbered == list(range(1, len(numbered) + 1)), stated
    used = {int(n) for n in re.findall(r"KEYS\[(\d+)\]", code)}
    # The last one may be open-ended: used by an index, or as keys of words in ARGV.
    open_ended = bool(re.search(r"\d\.\.", stated))
    assert used <= set(numbered)
    assert set(numbered) - used <= ({numbered[-1]} if open_ended else set())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_return_code_is_stated_and_every_stated_code_is_returned(path: Path) -> None:
    header, code = split(path)
    stated = codes_in(section(header, "Returns:"))
    returned = set()
    for statement in re.findall(r"(?:return|\w+\[(?:m|1)\] =)\s+(.+)", code):
        returned |= {found.strip() for found in re.findall(r"'([A-Z]+ ?)'", statement.split("redis.call")[0])}
    assert stated == returned
    assert stated <= {one.value for one in ReturnCode}


def test_every_shared_part_is_used_by_several_scripts() -> None:
    used = Counter(name for path in FILES for name in re.findall(r"(?m)^-- shared: (\w+)$", path.read_text()))
    assert set(used) == {path.stem for path in (LUA / "shared").glob("*.lua")}
    assert min(used.values()) > 1


def test_every_code_of_the_enum_is_returned_by_some_script() -> None:
    stated = set().union(*(codes_in(section(split(path)[0], "Returns:")) for path in FILES))
    assert stated == {one.value for one in ReturnCode}
    assert all(one.name == one.value for one in ReturnCode)


def test_the_sections_of_a_batch_are_those_that_the_script_reads_in_this_order() -> None:
    header, code = split(LUA / "advance.lua")
    sections = re.findall(r"(\w+) \(([^)]*)\)", section(header, "ARGV:").partition("The sections are:")[2])
    assert [(name, len(parts.split(","))) for name, parts in sections] == [(one.name, one.width) for one in SECTIONS]
    assert re.findall(r"\bsection\('(\w+)'\)", code) == [one.name for one in SECTIONS]


def test_every_script_has_exactly_one_typed_wrapper() -> None:
    callers: dict[str, list[str]] = {}
    #: Of a script that nothing runs by itself: what runs it for several at once, or makes the beginning of its call.
    others: dict[str, list[str]] = {}
    made: list[str] = []
    for path in sorted((ROOT / "routing").glob("*.py")):
        tree = ast.parse(path.read_text())
        names = {
            target.id: str(statement.value.args[0].value)
            for statement in tree.body
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
            for target in statement.targets
            if isinstance(target, ast.Name)
            and isinstance(statement.value.func, ast.Name)
            and statement.value.func.id == "Script"
            and isinstance(statement.value.args[0], ast.Constant)
        }
        made += names.values()
        # The function that runs a script has its name, all its arguments and its reply typed
        for function in (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            for node in ast.walk(function):
                if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
                    continue
                if node.attr in ("run", "arun"):
                    callers.setdefault(names[node.value.id], []).append(function.name)
                elif node.attr in ("run_each", "opening") and node.value.id in names:
                    others.setdefault(names[node.value.id], []).append(function.name)
                else:
                    continue
                assert function.returns is not None
                assert all(argument.annotation is not None for argument in function.args.args)
                assert ast.get_docstring(function)
    assert sorted(made) == [path.stem for path in FILES]
    assert {**others, **callers} == {path.stem: [path.stem] for path in FILES}


def test_no_line_of_a_script_is_longer_than_one_of_python() -> None:
    long = [
        f"{path.name}:{number}"
        for path in sorted((ROOT / "routing" / "lua").glob("*.lua"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if len(line) > 120
    ]
    assert not long


def test_only_one_module_evaluates_lua() -> None:
    # In any of our own packages, in any spelling; comments and docstrings apart
    found = []
    for folder in ("bridge", "routing", "spark", "tasks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            docs: set[int] = set()
            # A docstring comes after what it documents.
            for node in ast.walk(tree):
                docs.update(_docstring(node))
                text = ""
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                    text = node.value
                elif isinstance(node, ast.Attribute):
                    text = node.attr
                if text and EVALUATES.match(text):
                    found.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} {text[:30]}")
    # Permissions name the commands, and run none
    assert {line.partition(":")[0] for line in found} - {"bridge/operate/role_commands.py"} == {"routing/scripts.py"}, (
        found
    )


def _docstring(node: ast.AST) -> Iterator[int]:
    """The identity of the constant that documents the node."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            yield id(first.value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_lua_builds_no_key_names(path: Path) -> None:
    _, code = split(path)
    for call in re.findall(r"redis\.p?call\(([^\n]*)", code):
        parts = re.match(r"'([A-Z]+)'(?:, *'[A-Z]+')?(?:, *(.*))?", call)
        if parts is None:
            # Commands whose words come together: from ARGV as they are, or from a list that the script made.
            assert re.match(r"unpack\((ARGV|arguments)\b", call), call
            continue
        command, rest = parts.groups()
        if command == "TIME":
            continue
        if command == "XREADGROUP":
            # The one command whose keys come last.
            rest = (rest or "").partition("'STREAMS', ")[2]
        key = re.split(r"[,)]", rest or "")[0]
        assert re.fullmatch(r"KEYS\[[\w +]+\]|key", key), f"{path.name}: {command} {key}"
    # A list that becomes a command names its key first, from KEYS
    for made in re.findall(r"\{('[A-Z]+', [^}]*)\}", code):
        if re.match(r"'([A-Z]+)'", made)[1] in ReturnCode.__members__:  # type: ignore[index]
            continue
        assert re.match(r"'[A-Z]+', KEYS\[\w+\]", made), made
    # And a key that is a variable is a word of ARGV, as it came
    for variable in re.findall(r"local (?:\w+, )*key\b[^=]*= (.*)", code):
        assert ".." not in variable
