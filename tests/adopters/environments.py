"""Python environments with the wheel and its requirements, separate from this checkout's environment."""

from __future__ import annotations

import os
import subprocess
import sys
from email import message_from_bytes
from pathlib import Path
from typing import Literal
from zipfile import ZipFile

import pytest
import uv
from packaging.version import Version

from tests.conftest import missing
from tests.wheel import ROOT

#: uv's errors when it cannot reach the index. Any other error is a defect of the project.
UNREACHABLE = ("Failed to fetch", "Failed to download", "error sending request")


#: The frameworks of the projects.
FRAMEWORKS = ("django", "fastapi", "flask", "msgpack", "pytest", "uvicorn")


class Environment:
    """A virtual environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, name: str) -> str:
        """The path of a program in it."""
        return str(self.folder / "bin" / name)

    def run(self, *arguments: str, cwd: Path, timeout_s: float = 60) -> str:
        """Runs its Python to the end. Returns the output. Fails the test if it fails."""
        done = subprocess.run(
            [self.command("python"), *arguments],
            cwd=cwd, env=clean_environment(), capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{arguments} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def version(self, name: str) -> Version:
        """The version of the package ``name`` that is installed in it."""
        asks = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
        return Version(self.run("-c", asks, name, cwd=self.folder).strip())


def clean_environment() -> dict[str, str]:
    """This process's variables without those that would let a Python import the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def make_environment(
    folder: Path,
    wheel: Path,
    *more: str,
    resolution: Literal["highest", "lowest-direct"] = "highest",
    locked: bool = False,
) -> Environment:
    """Installs the wheel and ``more`` into an empty environment: the newest versions that fit, the lowest that are
    allowed, or those of the lock. Skips the test if no package index can be reached.
    """
    _uv("venv", "--python", sys.executable, str(folder))
    environment = Environment(folder)
    where = ("--python", environment.command("python"))
    versions = ("--constraints", str(ROOT / "requirements.lock")) if locked else ("--resolution", resolution)
    # For uv the requirements of a wheel are not direct ones, unless they are named.
    _uv("pip", "install", *where, *versions, str(wheel), *requirements_of(wheel), *more)
    return environment


def requirements_of(wheel: Path) -> list[str]:
    """What the wheel requires without any extra."""
    with ZipFile(wheel) as file:
        [name] = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
        stated = message_from_bytes(file.read(name)).get_all("Requires-Dist", [])
    return [one for one in stated if "extra ==" not in one]


def _uv(*arguments: str) -> None:
    done = subprocess.run(
        [uv.find_uv_bin(), *arguments, "--quiet"],
        env=clean_environment(), capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        return
    if any(sign in done.stderr for sign in UNREACHABLE):
        missing(f"no package index to install from: {done.stderr.strip().splitlines()[-1]}")
    pytest.fail(f"uv {' '.join(arguments)}:\n{done.stderr}", pytrace=False)
