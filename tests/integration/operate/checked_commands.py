"""Commands of an operator in a test: each ends as it should, says why in one line, and what it advises can be run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
from click.testing import Result

from bridge.cli.main import cli
from bridge.cli.target import Target
from tests.commands import CommandLine, words_left

#: Words of commands that only read.
READS = {"list", "show", "status", "pending"}


@dataclass
class CheckedCommands:
    """The commands of the app of ``shell``."""

    shell: CommandLine
    #: Commands that were advised, and then run.
    tried: set[str] = field(default_factory=set)

    def run(self, *words: str, stdin: str | None = None, codes: Sequence[int] = (0,)) -> Result:
        """A command, which ends as it should. What it advises can be run."""
        result = self.shell(*words, stdin=stdin)
        said = f"{shlex.join(words)}: {result.exit_code}\n{result.stdout}\n{result.stderr}"
        assert result.exit_code in codes, said
        # These say what they found on their output.
        if result.exit_code == 1 and not {"audit", "show"} & {*words}:
            lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
            assert len(lines) == 1, said
            assert result.stderr.splitlines()[-1] == lines[0], said
        self.check_advice(result.stderr)
        if "--json" not in words:
            self.check_advice(result.stdout)
        return result

    def json(self, *words: str, **options: Any) -> Any:
        before, end, behind = list(words), [], []
        if "--" in before:
            at = before.index("--")
            before, end, behind = before[:at], ["--"], before[at + 1 :]
        document = json.loads(self.run(*before, "--json", *end, *behind, **options).stdout)
        for text in texts_in(document):
            self.check_advice(text)
        return document

    def check_advice(self, text: str) -> None:
        for advised in re.findall(r"`(bridge [^`]*)`", text):
            words = words_of(advised)[1:]
            check_command([*words])
            assert words[:2] == ["-A", self.shell.app], f"{advised}: not of {self.shell.app}"
            if READS & {*words} and advised not in self.tried:
                self.tried.add(advised)
                assert self.shell(*words[2:]).exit_code == 0, advised


def texts_in(document: Any) -> Iterator[str]:
    """All texts of a JSON document."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        for one in document.values():
            yield from texts_in(one)
    elif isinstance(document, list):
        for one in document:
            yield from texts_in(one)


def words_of(command: str) -> list[str]:
    """The words of a command as bash reads them."""
    if "$'" not in command:
        return shlex.split(command)
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


def check_command(words: list[str]) -> None:
    """Checks that the program takes these words, without running them."""
    context = cli.make_context("bridge", words, obj=Target(words[1]))
    while isinstance(context.command, click.Group):
        name, command, rest = context.command.resolve_command(context, words_left(context))
        assert command is not None
        context = command.make_context(name, rest, parent=context)
