"""Wrong usage: one line that begins with ``Error:``, and the exit code 2. No server is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from redis.exceptions import ResponseError

from bridge.routing.ids import LAST_ID, LAST_SEQUENCE, can_be_id
from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import free_port
from tests.commands import CommandLine, Lane, command_line

#: What no id can be. The last ones have more than 64 bits, or more digits than a server reads.
NO_IDS = [
    "", "garbage", "-", "1-", "-1", "1-2-3", "1.5-0", "+1-0", " 1-0", "1-0\n", "\u0661-0", "1_0-0",
    f"{LAST_SEQUENCE + 1}-0", f"0-{LAST_SEQUENCE + 1}", "99999999999999999999-0", f"{'0' * 20}1-0",
]  # fmt: skip
#: Command -> what names a message.
WITH_A_MESSAGE = [
    ("delayed", "show"), ("delayed", "cancel"), ("delayed", "now"), ("delayed", "reschedule", "--delay", "1"),
    ("dead", "show"), ("dead", "replay"), ("dead", "drop"),
]  # fmt: skip
WITH_A_PLACE = [("pending", "--after"), ("audit", "--from"), ("subscription", "add", "billing", "--from")]
WITH_A_TICKET = [
    ("ticket", "show"), ("ticket", "park"), ("ticket", "release"), ("pending", "--ticket"), ("audit", "--ticket"),
    ("delayed", "list", "--ticket"), ("consumer", "transfer", "w1@a", "--ticket"),
]  # fmt: skip
WITH_A_CONSUMER = [
    ("consumer", "drain"), ("consumer", "resume"), ("consumer", "transfer"), ("consumer", "transfer", "w1@a"),
    ("consumer", "transfer", "w1@a", "--to"), ("pending", "--consumer"),
]  # fmt: skip


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    """A command line whose server is away."""
    with command_line(tmp_path, monkeypatch, f"redis://127.0.0.1:{free_port()}/0") as made:
        yield made


def error_of(result: Result) -> str:
    """The error, which is the last line behind the usage."""
    assert (result.exit_code, result.stdout) == (2, "")
    [line] = [line for line in result.stderr.splitlines() if "Error" in line]
    assert line.startswith("Error: ")
    assert result.stderr.endswith(f"{line}\n")
    return line


def options(command: tuple[str, ...], value: str) -> tuple[str, ...]:
    # An argument that begins with a dash is no option behind "--".
    return (*command, value) if command[-1].startswith("--") else (*command, "--", value)


@pytest.mark.parametrize("value", NO_IDS, ids=ascii)
@pytest.mark.parametrize("command", WITH_A_MESSAGE + WITH_A_PLACE, ids=" ".join)
def test_what_is_no_message_id(away: CommandLine, command: tuple[str, ...], value: str) -> None:
    said = error_of(away(*options(command, value)))
    assert "is no message id" in said or "the id of a message" in said


@pytest.mark.parametrize("command", WITH_A_MESSAGE, ids=" ".join)
def test_an_id_without_its_second_number_names_no_message(away: CommandLine, command: tuple[str, ...]) -> None:
    assert "'1717171717171' is no message id" in error_of(away(*command, "1717171717171"))


@pytest.mark.parametrize("id_", ["0-1", LAST_ID, "1717171717171-0"])
@pytest.mark.parametrize("command", WITH_A_MESSAGE, ids=" ".join)
def test_an_id_that_can_be_is_asked_for(
    valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], id_: str
) -> None:
    Lane(valkey).make_group()
    with command_line(tmp_path, monkeypatch, valkey.url) as shell:
        result = shell(*command, id_)
    assert result.exit_code == 1
    assert id_ in result.stdout + result.stderr
    assert "answers with an error" not in result.stderr


@pytest.mark.parametrize("value", ["", "x" * 513, "\udcff"], ids=["empty", "too long", "no UTF-8"])
@pytest.mark.parametrize("command", WITH_A_TICKET, ids=" ".join)
def test_what_can_be_no_ticket(away: CommandLine, command: tuple[str, ...], value: str) -> None:
    said = error_of(away(*options(command, value)))
    assert "it is empty" in said or "at most" in said or "1 to 512 bytes" in said or "as UTF-8" in said


@pytest.mark.parametrize("option", ["--ticket", "--task", "--reason"])
@pytest.mark.parametrize("command", ["list", "drop", "replay"])
def test_an_empty_text_chooses_no_dead_letters(away: CommandLine, command: str, option: str) -> None:
    assert error_of(away("dead", command, option, "")) == f"Error: Invalid value for '{option}': it is empty."


@pytest.mark.parametrize("option", ["--ticket", "--task"])
def test_an_empty_text_chooses_no_delayed_messages(away: CommandLine, option: str) -> None:
    assert error_of(away("delayed", "list", option, "")) == f"Error: Invalid value for '{option}': it is empty."


@pytest.mark.parametrize("command", WITH_A_CONSUMER, ids=" ".join)
def test_a_consumer_without_a_name(away: CommandLine, command: tuple[str, ...]) -> None:
    assert "it is empty" in error_of(away(*command, ""))


@pytest.mark.parametrize("text", ["0", "0-0", "0-1", LAST_ID, "007-01", f"{'0' * 19}1", *NO_IDS], ids=ascii)
def test_what_can_be_an_id_is_what_a_server_takes(server: EmbeddedServer, text: str) -> None:
    with server.client() as client:
        try:
            client.execute_command("XRANGE", "nowhere", text, text)
            taken = True
        except ResponseError:
            taken = False
    # It takes some others as well, such as "+1-0".
    assert taken or not can_be_id(text, whole=False)
    assert can_be_id(text, whole=False) is (text not in NO_IDS)


# -- the app -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("sys.exit(7)", "sys.exit(7)"),
        ("sys.exit(0)", "sys.exit(0)"),
        ("sys.exit()", "sys.exit()"),
        ("sys.exit('two\\nlines')", r"sys.exit('two\nlines')"),
        ("import argparse; argparse.ArgumentParser().parse_args(['--no-such'])", "sys.exit(2)"),
    ],
)
@pytest.mark.parametrize("where", ["app", "configuration", "tasks"])
def test_an_app_that_ends_the_program_while_it_is_imported(
    away: CommandLine, where: str, ending: str, said: str
) -> None:
    module = f"{away.app}_more"
    (away.folder / f"{module}.py").write_text(f"import sys\n{ending}\n")
    text = (away.folder / f"{away.app}.py").read_text()
    more = {
        "app": f"import {module}\n",
        "configuration": f"app.config_from_object({module!r})\n",
        "tasks": f"app.conf.imports = [{module!r}]\n",
    }
    away.write_app(text + more[where])
    line = error_of(away("status"))
    assert f"it ended the program while it was imported: {said}" in line
    assert f"{module}.py:2" in line


@pytest.mark.parametrize("name", ["../x", "./x", ".x", "..", "x.", "a..b", "folder/x", "/x", ":app", "../x:app"])
def test_an_app_that_is_named_by_a_path(away: CommandLine, name: str) -> None:
    away.app = name
    assert f"-A {name!r} names no module: it is a name with dots, such as shop.app" in error_of(away("status"))
