"""Type checkers understand tasks, tickets and effects in an adopter's code, with and without Celery's stubs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adopters.environments import Environment, clean_environment, make_environment
from tests.adopters.stand import PROJECTS

TYPED = PROJECTS / "typed"


@pytest.fixture
def checkers(request: pytest.FixtureRequest, wheel: Path, tmp_path: Path) -> Environment:
    return make_environment(tmp_path / "environment", wheel, *request.param)


def found_by_mypy(environment: Environment, folder: Path, name: str) -> set[int]:
    # Celery has no types of its own, so strict checks need this setting
    (folder / "mypy.ini").write_text("[mypy]\nstrict = true\n[mypy-celery.*]\nignore_missing_imports = true\n")
    output = _run(environment.command("mypy"), "--output=json", name, cwd=folder)
    return {json.loads(line)["line"] for line in output.splitlines() if line.startswith("{")}


def found_by_pyright(environment: Environment, folder: Path, name: str) -> set[int]:
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    python = environment.command("python")
    output = _run(environment.command("basedpyright"), "--outputjson", "--pythonpath", python, name, cwd=folder)
    report = json.loads(output)
    assert report["summary"]["filesAnalyzed"] == 1
    return {one["range"]["start"]["line"] + 1 for one in report["generalDiagnostics"] if one["severity"] == "error"}


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
    checkers: Environment, tmp_path: Path, found_by: Callable[[Environment, Path, str], set[int]]
) -> None:
    for name in ("shop.py", "wrong.py"):
        (tmp_path / name).write_text((TYPED / name).read_text())
    assert found_by(checkers, tmp_path, "shop.py") == set()
    lines = (TYPED / "wrong.py").read_text().splitlines()
    certain = {n for n, line in enumerate(lines, 1) if line.endswith("# wrong")}
    # Without stubs, mypy accepts any attribute of Celery's task
    perhaps = {n for n, line in enumerate(lines, 1) if line.endswith("# wrong when Celery has types")}
    assert certain
    assert certain <= found_by(checkers, tmp_path, "wrong.py") <= certain | perhaps
