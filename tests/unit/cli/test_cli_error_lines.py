"""An error of a command is one line, and has no control characters, whatever a user or a message names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import Result

from bridge.cli.main import COMMANDS, cli
from bridge.routing.text import one_line, printable, printable_lines
from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, Lane, checked, command_line, runner

NAMES = ["w\n1", "a\r\nError: b", "\x1b[2J", "tab\there", "\x85\u2028\u202e", "\n"]
#: These run until a signal, or start Java.
OTHERS = ("run", "up", "demo", "spark")
#: Of wrong usage, click prints the usage before the error.
LINE = re.compile(r"(?:Usage: [^\n]*\n(?:Try [^\n]*\n)?\n)?Error: ([^\n]*)\n")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e]")


@pytest.fixture
def shell(valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    Lane(valkey).make_group()
    with command_line(tmp_path, monkeypatch, valkey.url) as made:
        yield made


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(cli)
    for name in COMMANDS:
        if name in OTHERS:
            continue
        command = cli.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from (((name, inner), one) for inner, one in command.commands.items())
        else:
            yield (name,), command


def calls(name: str) -> Iterator[list[str]]:
    """Calls of every command in which one parameter after the other is ``name``."""
    for words, command in commands():
        arguments = [one for one in command.params if isinstance(one, click.Argument)]
        for parameter in command.params:
            if isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count):
                continue
            option = [] if parameter in arguments else [parameter.opts[0], name]
            given = [name if one is parameter else _usual(one) for one in arguments]
            yield [*words, *option, "--", *given]
        yield [*words, "--", *map(_usual, arguments), name]
        yield [*words, f"--no{name}"]
        yield [words[0], name]


def _usual(argument: click.Argument) -> str:
    if isinstance(argument.type, click.IntRange):
        return "1"
    return "1-0" if "id" in str(argument.name) and "ticket" not in str(argument.name) else "T"


def has_one_line(result: Result) -> bool:
    if result.exit_code == 0:
        return True
    if "Error: " not in result.stderr:
        # Such a command answers, as `ticket show` does for a ticket that it does not know.
        return result.stdout != "" and CONTROL.search(result.stderr) is None
    found = LINE.fullmatch(result.stderr)
    return found is not None and CONTROL.search(found[1]) is None


@pytest.mark.parametrize(
    "name",
    [
        "w\n1\t\x1b[2J\r\x85\u2028\u202e",
        # What comes first in a name may hide what comes behind it.
        *(pytest.param(name, marks=pytest.mark.long) for name in ("w\n1\t\x1b[2J\r", "\x85\u2028\u202e")),
    ],
    ids=ascii,
)
def test_every_command_prints_its_error_as_one_line(shell: CommandLine, name: str) -> None:
    said = {tuple(call): shell(*call) for call in calls(name)}
    wrong = {call: (result.stderr, result.stdout) for call, result in said.items() if not has_one_line(result)}
    assert wrong == {}
    assert sum(result.exit_code != 0 for result in said.values()) > len(said) / 2


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_so_does_the_program_before_it_knows_a_command(name: str) -> None:
    for call in ([name], [f"-Z{name}"], [f"--x{name}"], ["-A", name, "status"], ["run", "--lanes", name, "-A", name]):
        result = checked(runner().invoke(cli, call))
        assert result.exit_code == 2
        assert has_one_line(result), (call, result.stderr)


@pytest.mark.parametrize("command", ["run --lanes", "run --http", "demo --events"])
def test_so_do_commands_that_would_run_long(shell: CommandLine, command: str) -> None:
    result = shell(*command.split(), "w\n1")
    assert result.exit_code in (1, 2)
    assert has_one_line(result), result.stderr


def test_a_missing_argument_lists_its_choices_on_one_line(shell: CommandLine) -> None:
    result = shell("acl")
    assert has_one_line(result), result.stderr
    assert "Choose from: producer, " in result.stderr


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_control_characters_are_written_out(name: str) -> None:
    assert CONTROL.search(printable(name)) is None
    assert CONTROL.search(one_line(name)) is None
    assert CONTROL.search(printable_lines(name).replace("\n", "").replace("\t", "")) is None
    assert printable_lines("a\n\tb") == "a\n\tb"
