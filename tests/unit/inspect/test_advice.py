"""The commands that sentences advise, as a shell and the program read them."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator

import click

from bridge.cli.main import cli
from bridge.cli.target import Target
from bridge.inspect.advice import Advice
from bridge.routing.text import one_line
from tests.commands import words_left

ADVICE = [Advice(), Advice("shop"), Advice("shop:app", "-s"), Advice("shop", "billing", "old stream")]


def tickets() -> Iterator[str]:
    yield from ("-", "--", "---", "-dash", "--all", "--help", "-h", "-s", "--stream", "-A", "--json", "-- x", "-\n")
    yield from ("A", "a b", "a  b", " a ", "it's", '"', "`id`", "$HOME", "\\x41", "w\n1", "\x1b[2J", "\u202ex", "日本")
    yield from ("a -- b", "-a -- b", "it's -- this", '"a" -- "b"', " -- ", "a\n -- b", "'' -- '")
    drawn = random.Random(7)
    alphabet = "-- \n\t\r\x00\x1b\x7f\x9b'\"\\`$(){}*?~#&;|<>!sA1é\u2028\u202e票"
    for _ in range(500):
        # A shell's arguments have no NUL.
        yield "".join(drawn.choices(alphabet, k=drawn.randint(1, 12))).replace("\0", "") or "-"


def as_a_shell_reads(commands: list[str]) -> list[list[str]]:
    script = "\n".join(f"printf '%s\\0' {command}; printf '\\0'" for command in commands)
    said = subprocess.run(["bash", "-s"], input=script.encode(), capture_output=True, check=True)
    return [[word.decode() for word in words.split(b"\0")] for words in said.stdout.split(b"\0\0")[:-1]]


def called(words: list[str]) -> tuple[dict[str, object], Target]:
    """The parameters of the subcommand that ``words`` call, and what the command is about."""
    program, *arguments = words
    assert program == "bridge"
    outer = cli.make_context("bridge", arguments)
    target = Target(str(outer.params["name"]))
    outer.obj = target
    rest = words_left(outer)
    group = cli.get_command(outer, rest[0])
    assert isinstance(group, click.Group)
    command = group.commands[rest[1]]
    return command.make_context(rest[1], rest[2:], parent=outer).params, target


def test_a_command_that_is_advised_is_about_its_ticket_whatever_that_is() -> None:
    asked = [(advice, ticket) for ticket in tickets() for advice in ADVICE]
    # A sentence is printed on one line.
    shown = [one_line(advice.bridge("ticket", "release", about=ticket), 4000)[1:-1] for advice, ticket in asked]
    for (advice, ticket), words in zip(asked, as_a_shell_reads(shown), strict=True):
        parameters, target = called(words)
        assert parameters == {"ticket_id": ticket}, words
        assert (target.name, target.subscription, target.version) == (
            str(advice.app),
            advice.subscription,
            advice.version,
        )


def test_a_sentence_that_is_completed_keeps_its_argument() -> None:
    names = list(tickets())
    target = Target("shop")
    target.subscription, target.version = "billing", "older"
    # A name with a backtick, or one that looks as if the options were there, ends the search for the command.
    names = [name for name in names if "`" not in name and " -s " not in name]
    shown = [
        one_line(target.completed(Advice().bridge("consumer", "resume", about=name)), 4000)[1:-1] for name in names
    ]
    for name, words in zip(names, as_a_shell_reads(shown), strict=True):
        parameters, found = called(words)
        assert parameters == {"name": name}
        assert (found.name, found.subscription, found.version) == ("shop", "billing", "older")


def test_an_argument_stands_behind_the_options_and_behind_two_dashes_where_it_could_be_one() -> None:
    advice = Advice("shop", "billing")
    assert advice.bridge("ticket", "release", about="A") == "`bridge -A shop ticket release -s billing A`"
    assert advice.bridge("ticket", "release", about="-A") == "`bridge -A shop ticket release -s billing -- -A`"
    assert advice.bridge("ticket", "release", about="w\n1").endswith(r"$'w\x0a1'`")
