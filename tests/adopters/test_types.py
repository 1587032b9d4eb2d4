"""Type checkers understand tasks, tickets and effects in an adopter's code, with and without Celery's stubs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.adopters.environments import Environment, clean_environment, make_environment
from tests.adopters.stand import PROJECTS

TYPED = PROJECTS / "typed"


@pytest.fixture
def checkers(request: pytest.FixtureRequest, wheel: Path, tmp_path: Path) -> Environment:
    return make_environment(tmp_path / "environment", wheel, *request.param)


#: By file: the lines with an error.
Found = dict[str, set[int]]
FILES = ("shop.py", "wrong.py")


def found_by_mypy(environment: Environment, folder: Path) -> Found:
    # Celery has no types of its own, so strict checks need this setting
    (folder / "mypy.ini").write_text("[mypy]\nstrict = true\n[mypy-celery.*]\nignore_missing_imports = true\n")
    output = _run(environment.command("mypy"), "--output=json", *FILES, cwd=folder)
    errors = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return by_file((error["file"], error["line"]) for error in errors)


def found_by_pyright(environment: Environment, folder: Path) -> Found:
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    python = environment.command("python")
    output = _run(environment.command("basedpyright"), "--outputjson", "--pythonpath", python, *FILES, cwd=folder)
    report = json.loads(output)
    assert report["summary"]["filesAnalyzed"] == len(FILES)
    errors = [one for one in report["generalDiagnostics"] if one["severity"] == "error"]
    return by_file((error["file"], error["range"]["start"]["line"] + 1) for error in errors)


def by_file(errors: Iterable[tuple[str, int]]) -> Found:
    found: Found = {name: set() for name in FILES}
    for file, line in errors:
        found[Path(file).name].add(line)
    return found


def _run(*command: str, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=clean_environment(), capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode in (0, 1), done.stderr + done.stdout
    return done.stdout


@pytest.mark.parametrize(
    ("checkers", "found_by"),
    [
        pytest.param(["mypy"], found_by_mypy, id="no-stubs-mypy"),
        pytest.param(["basedpyright", "celery-types"], found_by_pyright, id="celery-types-pyright"),
        # The same lines, with the same stubs, by the other one
        pytest.param(["basedpyright"], found_by_pyright, id="no-stubs-pyright", marks=pytest.mark.long),
        pytest.param(["mypy", "celery-types"], found_by_mypy, id="celery-types-mypy", marks=pytest.mark.long),
    ],
    indirect=["checkers"],
)
def test_a_checker_sees_mistakes_and_nothing_else(
    checkers: Environment, tmp_path: Path, found_by: Callable[[Environment, Path], Found]
) -> None:
    for name in FILES:
        (tmp_path / name).write_text((TYPED / name).read_text())
    found = found_by(checkers, tmp_path)
    assert found["shop.py"] == set()
    lines = (TYPED / "wrong.py").read_text().splitlines()
    certain = {n for n, line in enumerate(lines, 1) if line.endswith("# wrong")}
    # Without stubs, mypy accepts any attribute of Celery's task
    perhaps = {n for n, line in enumerate(lines, 1) if line.endswith("# wrong when Celery has types")}
    assert certain
    assert certain <= found["wrong.py"] <= certain | perhaps
