"""A reader of a page: does what the page says, step by step, against a real server.

A comment before each block of the page says what a reader does with it:

- ``file: NAME``: writes it; ``append: NAME``: adds it to the end of the file;
- ``run``: runs it, and it succeeds; ``run until it prints: TEXT``: looks again until it does;
- ``run until nothing changes``: looks until the number that it prints stays;
- ``terminal: NAME; ready: TEXT``: starts it in a terminal of its own; ``stop: NAME``: ends that;
- ``not run: REASON``.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bridge.testing.nodes import preloaded
from bridge.testing.nodes.process import ROOT, ProcessNode, python_module
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until
from tests.integration.pytest_command import NOT_THERE, pytest_command

#: Seconds between two runs of a command.
AGAIN_S = 0.5
#: What Python does with a file that it is given.
RUN_FILE = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
#: How the commands of a reader begin that can be forked, and what they are to Python. The first that fits counts.
FORKED = {
    "bridge": python_module("bridge"),
    "celery": python_module("celery"),
    "python -c": [sys.executable, "-c"],
    "python -m pytest": pytest_command(),
    "python": [sys.executable, "-c", RUN_FILE],
}
BLOCK = re.compile(r"^<!-- (?P<what>.+?) -->$(?:\n```\w*\n(?P<text>.*?)^```$)?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Step:
    what: str
    text: str

    @property
    def commands(self) -> str:
        """The lines of a console without their prompt."""
        lines = self.text.splitlines()
        assert all(line.startswith("$ ") for line in lines), lines
        return "\n".join(line.removeprefix("$ ") for line in lines)


def steps(page: Path) -> list[Step]:
    return [Step(found["what"], found["text"] or "") for found in BLOCK.finditer(page.read_text())]


def run_python(folder: Path, *words: str) -> str:
    """The output of ``python WORDS …`` in a folder that it can import from. It is forked, as commands are."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}
    done = preloaded.run([sys.executable, *words], cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Reader:
    """Does what the page says, in a temporary folder.

    Commands are forked, which takes a third less of the processor. After `as_written` the first command of each program
    runs as it is written: the tutorial's do.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.yard = ProcessYard(folder.parent, url)
        self.terminals: dict[str, ProcessNode] = {}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = {"SHOP_REDIS": url, "PYTHONPATH": ""}
        self.shell_env = {**self.env, "PATH": path, "PYTEST_ADDOPTS": " ".join(NOT_THERE)}
        #: Programs whose commands are forked.
        self.seen = set(FORKED)

    def as_written(self) -> None:
        """Lets the first command of each program be run by a shell."""
        self.seen.clear()

    def follow(self, step: Step) -> None:
        what, _, rest = step.what.partition(": ")
        if what == "file":
            # A file that is changed within a second, and has the same size, is not compiled again.
            shutil.rmtree(self.folder / "__pycache__", ignore_errors=True)
            (self.folder / rest).write_text(step.text)
        elif what == "append":
            with (self.folder / rest).open("a") as file:
                file.write(f"\n\n{step.text}")
        elif what == "run":
            self.run(step)
        elif what == "run until it prints":
            wait_until(
                lambda: rest in " ".join(self.run(step).split()),
                description=step.commands,
                timeout_s=180,
                interval_s=AGAIN_S,
            )
        elif what == "run until nothing changes":
            assert 0 < int(self.settled(step)) < 40
        elif what == "terminal":
            name, _, ready = rest.partition("; ready: ")
            forked = self.forked(step.commands)
            self.terminals[name] = self.yard.process(
                name.replace(" ", "-"),
                forked or ["bash", "-c", f"exec {step.commands}"],
                env=self.env if forked else self.shell_env,
                cwd=self.folder,
                ready_text=ready,
            )
        elif what == "stop":
            self.terminals[rest].terminate()
        else:
            assert what == "not run", step

    def run(self, step: Step) -> str:
        return "".join(map(self.output, step.commands.splitlines()))

    def output(self, line: str) -> str:
        forked = self.forked(line)
        if forked:
            done = preloaded.run(forked, cwd=self.folder, env={**os.environ, **self.env})
        else:
            done = subprocess.run(
                ["bash", "-ec", line], cwd=self.folder, env={**os.environ, **self.shell_env},
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def forked(self, line: str) -> list[str]:
        """What Python gets for a line, [] where a shell runs it."""
        for program, command in FORKED.items():
            if line.startswith(f"{program} "):
                first = program not in self.seen
                self.seen.add(program)
                return [] if first else [*command, *shlex.split(line.removeprefix(program))]
        return []

    def settled(self, step: Step) -> str:
        """Repeats the command until it prints the same text twice. Returns that text."""
        seen = [""]

        def same() -> bool:
            seen.append(self.run(step).strip())
            return seen[-1] not in ("", "None") and seen[-1] == seen[-2]

        wait_until(same, description="a number that stays", timeout_s=90, interval_s=AGAIN_S)
        return seen[-1]
