"""Every command ``bridge …`` that a page shows is a command, with options and arguments that it takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from bridge.cli.main import cli

ROOT = Path(__file__).parents[3]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
#: A line of a code block: with a prompt, with variables before the command, or the command alone.
LINE = re.compile(r"^(?: {4}|\$ )?(?:[A-Z_]+=\S+ )?(?:\.venv/bin/)?bridge (?P<words>[^:\n]*)$", re.MULTILINE)
BLOCK = re.compile(r"^```(?!python)\w*\n(?P<text>.*?)^```$|^(?P<indented>(?: {4}\S.*\n)+)", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`bridge (?P<words>-?[a-z][^`\n]*)`")
#: The column at which two commands stand side by side.
BESIDE = re.compile(r" {3,}(?=bridge )")
#: Jobs of Spark parse their own options.
JOBS = {"push", "archive", "report", "replay"}
#: What stands for a word of the reader, in a synopsis or a pattern.
SYNOPSIS = re.compile(r"\[|…|[A-Z]+ …|\bCOMMAND\b")


def commands(text: str) -> list[str]:
    """The commands of a page, without their comments: in its code blocks, and in code within its text."""
    found = [words for words in INLINE.findall(text) if not SYNOPSIS.search(words)]
    for block in BLOCK.finditer(text):
        for line in (block["text"] or block["indented"]).splitlines():
            for part in BESIDE.split(line):
                shown = LINE.match(part.split("  #")[0].split(" # ")[0].rstrip())
                if shown and not SYNOPSIS.search(shown["words"]):
                    found.append(shown["words"])
    return found


def alternatives(words: str) -> list[list[str]]:
    """``dead list | show | drop`` stands for three commands."""
    first, *others = re.split(r" \| |\|(?=\w)", words)
    split = shlex.split(first)
    return [split, *([*split[:-1], *shlex.split(other)] for other in others)]


def parsed(words: list[str]) -> str:
    """Parses a command as the program does, and runs nothing. Returns what is wrong with it; empty: nothing."""
    command: click.Command = cli
    context = click.Context(cli, info_name="bridge")
    left = words
    try:
        while True:
            _, rest, _ = command.make_parser(context).parse_args(args=list(left))
            if not isinstance(command, click.Group):
                return f"too many words: {rest}" if rest else ""
            if not rest:
                return ""  # a group is named as a whole
            if command.name == "spark":
                return "" if rest[0] in JOBS else f"no job {rest[0]}"
            chosen = command.get_command(context, rest[0])
            if chosen is None:
                return f"no command {rest[0]}"
            command, left = chosen, list(rest[1:])
            context = click.Context(command, parent=context, info_name=rest[0])
    except click.UsageError as exc:
        return exc.format_message()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_is_one(page: Path) -> None:
    wrong = [
        f"bridge {shlex.join(words)}: {why}"
        for shown in commands(page.read_text())
        for words in alternatives(shown)
        if (why := parsed(words))
    ]
    assert not wrong


def test_commands_are_found_and_wrong_ones_noticed() -> None:
    found = [words for page in PAGES for words in commands(page.read_text())]
    assert len(found) > 100
    assert {
        parsed(shlex.split(one)) != "" for one in ("status --whatch", "tickets show T", "spark pull", "ticket show T A")
    } == {True}
    assert parsed(shlex.split("-A shop ticket show T42")) == ""
