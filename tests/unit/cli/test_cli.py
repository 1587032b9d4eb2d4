"""The command line itself: which app, which server, and its errors without them."""

from __future__ import annotations

import socketserver
import threading
import uuid
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from bridge.cli.main import COMMANDS, cli
from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, Lane, checked, command_line, letter, runner


@pytest.fixture
def shell(valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with command_line(tmp_path, monkeypatch, valkey.url) as made:
        yield made


@pytest.fixture
def lane(valkey: EmbeddedServer) -> Lane:
    return Lane(valkey)


def refused(result: Result, code: int) -> str:
    """The error line of a refused command."""
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("Error: ")
    return result.stderr


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("up", "demo")])
def test_every_command_explains_itself_without_an_app(name: str) -> None:
    result = checked(runner().invoke(cli, [name, "--help"]))
    assert result.exit_code == 0
    assert "Usage: " in result.stdout


def test_the_version_is_that_of_the_installed_package() -> None:
    expected = (0, f"ticket-bridge {version('ticket-bridge')}\n", "")
    for words in (["--version"], ["-A", "no.such.app", "--version"], ["--version", "status"]):
        result = checked(runner().invoke(cli, words))
        assert (result.exit_code, result.stdout, result.stderr) == expected
    of_celery = celery("bridge", "--version")
    assert (of_celery.exit_code, of_celery.stdout) == expected[:2]


def test_a_command_that_is_not_there_names_the_nearest() -> None:
    result = checked(runner().invoke(cli, ["statsu"]))
    assert result.exit_code == 2
    assert "there is no command 'statsu'; did you mean 'status'?" in result.stderr


@pytest.mark.parametrize(
    ("words", "offered"),
    [("bridge stauts ", "status"), ("bridge tikcet show ", "ticket"), ("bridge ticket shwo ", "show")],
)
def test_completion_behind_a_command_that_is_not_there_offers_those_that_are(words: str, offered: str) -> None:
    env = {"_BRIDGE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()))}
    result = checked(runner().invoke(cli, [], env=env, prog_name="bridge"))
    assert f"plain,{offered}\n" in result.stdout
    assert result.stderr == ""


def test_an_app_option_behind_the_command_gets_a_hint_where_it_belongs() -> None:
    result = checked(runner().invoke(cli, ["status", "-A", "shop"]))
    assert result.exit_code == 2
    assert "put it before the command" in result.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_library", "fails to load: No module named 'no_such_library'"),
        ("def (:", "fails to load: SyntaxError"),
        ("raise ValueError('first\\nsecond')", "fails to load: ValueError"),
        ("x = 1", "there is no Celery app in"),
        ("app = 5", "there is no Celery app in"),
        ("import os\nos.nothing", "fails to load: module 'os' has no attribute 'nothing'"),
        ("from celery import Celery\napp = Celery('plain')", "has no bridge: call bridge.install(app)"),
        (
            "from celery import Celery\nimport bridge\napp = Celery('c')\nbridge.install(app)\n"
            "app.config_from_object('no_such_config')",
            "fails to load: No module named 'no_such_config'",
        ),
        (
            "from celery import Celery\nimport bridge\napp = Celery('c', broker='redis://127.0.0.1:1/0')\n"
            "bridge.install(app)\napp.conf.bridge_leese = 3",
            "unknown setting bridge_leese; did you mean bridge_lease?",
        ),
    ],
)
def test_an_app_that_cannot_work_is_wrong_usage_and_one_line(shell: CommandLine, text: str, said: str) -> None:
    shell.write_app(text)
    for arguments in (["status"], ["run"], ["ticket", "show", "A"], ["dead", "list"]):
        assert said in refused(shell(*arguments), 2)


def test_a_place_in_the_users_own_code_is_named(shell: CommandLine) -> None:
    shell.write_app("import json\n\njson.loads('{')")
    assert f"{shell.app}.py:3)" in refused(shell("status"), 2)
    shell.write_app("import redis\n\n\nredis.Redis.from_url('what://')")
    assert f"{shell.app}.py:4)" in refused(shell("status"), 2)


def test_a_module_that_is_not_there_says_how_to_name_one(shell: CommandLine) -> None:
    name = f"nowhere_{uuid.uuid4().hex}"
    for app in (name, f"{name}:app"):
        result = checked(runner().invoke(cli, ["-A", app, "status"]))
        assert f"No module named '{name}'" in refused(result, 2)
        assert "-A" in result.stderr


def test_an_attribute_that_is_not_there_is_named(shell: CommandLine) -> None:
    result = checked(runner().invoke(cli, ["-A", f"{shell.app}:nothing", "status"]))
    assert "no Celery app 'nothing' in" in refused(result, 2)


def test_an_attribute_names_the_app(shell: CommandLine) -> None:
    assert checked(runner().invoke(cli, ["-A", f"{shell.app}:app", "status"])).exit_code == 0


# -- the server ------------------------------------------------------------------------------------------------------


class _OldServer(socketserver.StreamRequestHandler):
    """An old server: it answers INFO, and everything else with OK."""

    def handle(self) -> None:
        while line := self.rfile.readline():
            arguments = [self._word() for _ in range(int(line[1:]))]
            if arguments[0].upper() == b"INFO":
                info = b"# Server\r\nredis_version:5.0.14\r\n"
                self.wfile.write(b"$%d\r\n%b\r\n" % (len(info), info))
            else:
                self.wfile.write(b"+OK\r\n")

    def _word(self) -> bytes:
        size = int(self.rfile.readline()[1:])
        return self.rfile.read(size + 2)[:-2]


def test_a_server_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _OldServer) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with command_line(tmp_path, monkeypatch, f"redis://127.0.0.1:{server.server_address[1]}/0") as shell:
            for arguments in (["status"], ["dead", "list"], ["run"]):
                assert "is 5.0.14; the bridge needs 6.2 or newer" in refused(shell(*arguments), 1)
        server.shutdown()


def test_a_refused_login_is_named_in_the_error(
    valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = valkey.url.replace("redis://", "redis://nobody:s3cret@")
    with command_line(tmp_path, monkeypatch, url) as shell:
        said = refused(shell("status"), 1)
    assert "refuses the login" in said
    assert "s3cret" not in said


def test_a_missing_password_is_named_in_the_error(
    valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with valkey.client() as admin:
        admin.config_set("requirepass", "s3cret")
    try:
        with command_line(tmp_path, monkeypatch, valkey.url) as shell:
            said = refused(shell("status"), 1)
    finally:
        with valkey.client(password="s3cret") as admin:
            admin.config_set("requirepass", "")
    assert "login" in said


@pytest.mark.parametrize("forbidden", ["info", "xpending", "zcard", "hgetall"])
def test_the_error_names_the_missing_permission(
    valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forbidden: str
) -> None:
    with valkey.client() as admin:
        admin.execute_command("ACL", "SETUSER", "clerk", "on", ">pw", "~*", "+@all", f"-{forbidden}")
    try:
        url = valkey.url.replace("redis://", "redis://clerk:pw@")
        with command_line(tmp_path, monkeypatch, url) as shell:
            said = refused(shell("status"), 1)
    finally:
        with valkey.client() as admin:
            admin.execute_command("ACL", "DELUSER", "clerk")
    assert forbidden in said.lower()
    assert "permission" in said.lower()
    assert "ACL SETUSER" in said or forbidden == "info"


def test_another_type_under_the_streams_name_is_reported(shell: CommandLine, valkey: EmbeddedServer) -> None:
    """Also for a user without permission for TYPE. For other users see `test_misplaced.py`."""
    with valkey.client() as client:
        client.set("ticket_stream", "no stream")
        client.execute_command("ACL", "SETUSER", "default", "-type")
        try:
            for arguments in (["status"], ["ticket", "show", "A"]):
                assert "check bridge_stream" in refused(shell(*arguments), 1)
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+type")


# -- as a plugin of Celery's -----------------------------------------------------------------------------------------


def celery(*arguments: str) -> Result:
    from celery.bin.celery import celery as command

    return checked(runner().invoke(command, arguments))


def test_celery_runs_the_commands_for_its_own_app(shell: CommandLine, valkey: EmbeddedServer) -> None:
    lane = Lane(valkey)
    lane.add("A")
    lane.redis.close()
    result = celery("-A", shell.app, "bridge", "ticket", "show", "A")
    assert result.exit_code == 0
    assert "not read yet" in result.stdout


def test_celery_without_an_app_takes_the_plugins_own_option(shell: CommandLine) -> None:
    assert celery("bridge", "-A", shell.app, "status").exit_code == 0


def test_celery_with_an_app_without_the_bridge_says_so(shell: CommandLine) -> None:
    shell.write_app("from celery import Celery\napp = Celery('plain', set_as_current=False)")
    result = celery("-A", shell.app, "bridge", "status")
    assert result.exit_code == 2
    assert "has no bridge: call bridge.install(app)" in result.stderr


def test_celerys_command_says_where_the_app_option_belongs(shell: CommandLine) -> None:
    result = celery("bridge", "status", "-A", shell.app)
    assert result.exit_code == 2
    assert "put it before the command" in result.stderr


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ("strange", "--lanes: there is no subscription 'strange'; this app has: billing, search, trail"),
        ("strange:p0", "--lanes: there is no subscription 'strange'; this app has: billing, search, trail"),
        ("search,strange", "--lanes: there is no subscription 'strange'; this app has: billing, search, trail"),
        ("search,,billing", "--lanes: name subscriptions or partitions of them, with commas between"),
        ("", "--lanes: name subscriptions or partitions of them, with commas between"),
    ],
)
def test_a_master_for_lanes_that_there_are_not_is_refused_with_one_line(
    names: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://127.0.0.1:1/0")
    result = checked(runner().invoke(cli, ["-A", "tests.apps.subscribers", "run", "--lanes", names]))
    assert refused(result, 2) == f"Error: {error}\n"


@pytest.mark.parametrize("number", [0, -1, 4097, "4", True])
def test_a_number_of_partitions_that_cannot_be_is_one_line(
    number: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with command_line(tmp_path, monkeypatch, "redis://127.0.0.1:1/0", bridge_partitions=number) as shell:
        assert "bridge_partitions: " in refused(shell("status"), 2)


def test_an_error_names_commands_of_this_app_and_of_this_subscription(shell: CommandLine, lane: Lane) -> None:
    lane.make_group()
    line = refused(shell("dead", "show", "1-1"), 1)
    assert f"`bridge -A {shell.app} dead list` lists them" in line
    line = refused(shell("dead", "show", "1-1", "-s", lane.keys.group), 1)
    assert f"`bridge -A {shell.app} dead list -s {lane.keys.group}` lists them" in line


def test_a_command_of_celery_names_the_app_in_what_it_advises(shell: CommandLine, lane: Lane) -> None:
    lane.make_group()
    assert f"start one with `bridge -A {shell.app} run`" in celery("-A", shell.app, "bridge", "status").stdout


def test_the_counts_of_a_status_name_commands_that_work(shell: CommandLine, lane: Lane) -> None:
    lane.make_group()
    ids = lane.add("A")
    lane.read()
    lane.bury(ids[0], *letter("A"))
    assert f"dead       1 (`bridge -A {shell.app} dead list`)" in shell("status").stdout
