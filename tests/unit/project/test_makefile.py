"""`make` on machines that lack something: one clear line, and no incomplete environment that looks complete."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOOLS = ("make", "sh", "touch", "awk", "mkdir", "cat", "rm", "find", "mktemp")


class Machine:
    """A folder with the Makefile, and a PATH with only the given programs."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.path = folder / "checkout", folder / "bin"
        self.checkout.mkdir()
        self.path.mkdir()
        for name in ("Makefile", "pyproject.toml", "requirements.lock"):
            shutil.copy(ROOT / name, self.checkout)
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None, tool
            (self.path / tool).symlink_to(found)

    def python(self, name: str, *, recent: bool = True, venv: bool = True) -> None:
        """A fake Python that answers the Makefile's two questions and records its other calls."""
        script = f"""#!/bin/sh
            case "$2" in
                *version_info*) exit {0 if recent else 1} ;;
                *ensurepip*) exit {0 if venv else 1} ;;
                "import pip") exit 0 ;;
            esac
            echo "{name} $*" >> "{self.checkout}/asked"
            if [ "$2" = venv ]; then mkdir -p .venv/bin; cat "$0" > .venv/bin/python; chmod +x .venv/bin/python; fi
        """
        (self.path / name).write_text(script)
        (self.path / name).chmod(0o755)
        chmod = shutil.which("chmod")
        assert chmod is not None
        if not (self.path / "chmod").exists():
            (self.path / "chmod").symlink_to(chmod)

    def make(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.path / "make"), *arguments],
            cwd=self.checkout,
            env={"PATH": str(self.path), "HOME": str(self.checkout / "home"), **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )

    def asked(self) -> list[str]:
        file = self.checkout / "asked"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if shutil.which("make") is None:
        pytest.skip("no make here")
    return Machine(tmp_path)


def test_without_any_python_it_says_which_one_is_needed(machine: Machine) -> None:
    done = machine.make("setup")
    assert done.returncode != 0
    assert "error: no Python 3.11 or newer found" in done.stderr


def test_with_an_old_python_only_it_says_which_one_is_needed(machine: Machine) -> None:
    machine.python("python3", recent=False)
    done = machine.make("setup")
    assert done.returncode != 0
    assert "error: no Python 3.11 or newer found" in done.stderr
    assert machine.asked() == []


def test_with_a_python_that_lacks_venv_it_names_the_package(machine: Machine) -> None:
    machine.python("python3.11", venv=False)
    done = machine.make("setup")
    assert done.returncode != 0
    assert "error: python3.11 has no venv module; install it" in done.stderr
    assert not (machine.checkout / ".venv").exists()


def test_a_python_without_venv_is_skipped_for_one_with_it(machine: Machine) -> None:
    machine.python("python3.11", venv=False)
    machine.python("python3")
    assert machine.make("setup").returncode == 0
    assert machine.asked()[0] == "python3 -m venv --clear .venv"


def test_sets_up_once_for_each_state_of_the_lock(machine: Machine) -> None:
    machine.python("python3.11")
    assert machine.make("setup").returncode == 0
    first = machine.asked()
    assert first[0] == "python3.11 -m venv --clear .venv"
    assert any("--require-hashes -r requirements.lock" in line for line in first)

    assert machine.make("setup").returncode == 0
    assert machine.asked() == first

    (machine.checkout / ".venv" / ".ready").unlink()
    assert machine.make("setup").returncode == 0
    again = machine.asked()[len(first) :]
    assert any("--require-hashes -r requirements.lock" in line for line in again)
    assert not any("-m venv" in line for line in again)


def test_an_install_that_fails_leaves_no_stamp(machine: Machine) -> None:
    machine.python("python3.11")
    python = machine.path / "python3.11"
    python.write_text(python.read_text() + '\ncase "$*" in *requirements.lock*) exit 1 ;; esac\n')
    assert machine.make("setup").returncode != 0
    assert not (machine.checkout / ".venv" / ".ready").exists()


@pytest.mark.parametrize("failing", ["", "ruff", "lint-imports", "mypy", "python"])
def test_the_tests_and_the_checks_beside_them_fail_together(machine: Machine, failing: str) -> None:
    machine.python("python3.11")
    assert machine.make("setup").returncode == 0
    for name in ("ruff", "lint-imports", "mypy", "python"):
        tool = machine.checkout / ".venv" / "bin" / name
        tool.write_text(f'#!/bin/sh\necho "{name} $1 $2"\nexit {int(name == failing)}\n')
        tool.chmod(0o755)
    done = machine.make("test")
    assert (done.returncode != 0) == bool(failing)
    lines = done.stdout.splitlines()
    # The output of the checks follows that of the tests in one piece.
    assert lines[0] == "python -m pytest"
    assert {"ruff check ", "mypy  "} <= set(lines[1:])


def test_what_the_long_tests_need_is_prepared_before_the_first_time_only(machine: Machine) -> None:
    machine.python("python3.11")
    assert machine.make("setup").returncode == 0
    for name in ("ruff", "lint-imports", "mypy", "python"):
        tool = machine.checkout / ".venv" / "bin" / name
        tool.write_text(f"""#!/bin/sh
            echo "{name} $2" >> "{machine.checkout}/asked"
            case "$2" in tests.spark_java) mkdir .venv/spark-classes; touch .venv/spark-classes/classes.jsa ;; esac
        """)
        tool.chmod(0o755)
    before = len(machine.asked())
    for _ in range(2):
        assert machine.make("long").returncode == 0
    asked = [line for line in machine.asked()[before:] if line.startswith("python")]
    # What Spark loads is recorded.
    assert asked == ["python tests.spark_java", "python pytest", "python pytest"]


@pytest.mark.parametrize("variable", ["PYTHONPATH", "PYTHONDONTWRITEBYTECODE"])
def test_variables_of_the_caller_do_not_change_the_environment_of_the_checkout(machine: Machine, variable: str) -> None:
    machine.python("python3.11")
    assert machine.make("setup").returncode == 0
    tool = machine.checkout / ".venv" / "bin" / "python"
    tool.write_text(f'#!/bin/sh\necho "${{{variable}-unset}}"\n')
    assert machine.make("unit", **{variable: "x"}).stdout.splitlines()[-1] == "unset"


def test_help_needs_nothing_and_names_every_target(machine: Machine) -> None:
    done = machine.make("help")
    assert done.returncode == 0
    for target in ("demo", "test", "lint", "types", "unit", "bench", "clean", "help"):
        assert f"  make {target} " in done.stdout
    assert machine.make().stdout == done.stdout
