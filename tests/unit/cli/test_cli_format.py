"""Commands refuse a lane of a newer format, and those that change a lane refuse one of another app: in one line, and
nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bridge.cli.main import cli
from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, Lane, command_line

COMMANDS = [
    ("status",),
    ("ticket", "show", "T"),
    ("ticket", "list"),
    ("ticket", "park", "T"),
    ("ticket", "release", "T"),
    ("consumer", "list"),
    ("consumer", "drain", "w1@here"),
    ("consumer", "resume", "w1@here"),
    ("consumer", "transfer", "w1@here"),
    ("pending",),
    ("delayed", "list"),
    ("delayed", "show", "1-0"),
    ("delayed", "cancel", "1-0"),
    ("delayed", "reschedule", "1-0", "--delay", "1"),
    ("delayed", "now", "--all"),
    ("dead", "list"),
    ("dead", "show", "1-0"),
    ("dead", "replay", "--all", "--yes"),
    ("dead", "drop", "--all", "--yes"),
    ("subscription", "add", "concurrency_stream_group"),
    ("subscription", "remove", "concurrency_stream_group", "--yes"),
    ("audit",),
]
#: Commands about a stream, with all its lanes.
OF_A_STREAM = [
    (command, *arguments, *look)
    for command, *arguments in (("retire", "old_stream", "--yes"), ("repartition", "3"))
    for look in ((), ("--dry-run",))
]
#: Commands that are not about one lane, by the reason.
OTHERS: dict[str, set[tuple[str, ...]]] = {
    "masters refuse both when they start (`bridge.master.refusals`)": {("run",), ("up",), ("demo",)},
    "it appends to a stream, which several apps may share": {("push",)},
    "it is about a stream, which several apps may share": {
        ("stream", "list"),
        ("stream", "info"),
        ("stream", "retire"),
        ("stream", "repartition"),
    },
    "it lists lanes of any app": {("subscription", "list")},
    "it reads the app's settings": {("schedule", "list"), ("acl",)},
    "its jobs run in a process of their own": {("spark",)},
}


@pytest.fixture
def shell(valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with command_line(tmp_path, monkeypatch, valkey.url) as made:
        yield made


def all_commands() -> Iterator[tuple[str, ...]]:
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if name != "spark" and isinstance(command, click.Group):
            yield from ((name, inner) for inner in command.commands)
        else:
            yield (name,)


def test_each_command_is_tested_here_or_is_not_about_one_lane() -> None:
    for words in all_commands():
        tested = any(arguments[: len(words)] == words for arguments in COMMANDS)
        assert tested != any(words in named for named in OTHERS.values()), words


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_newer_format_is_refused(shell: CommandLine, valkey: EmbeddedServer, arguments: tuple[str, ...]) -> None:
    lane = Lane(valkey)
    lane.make_group()
    lane.redis.hset(lane.keys.about, "format", "2")
    lane.redis.xadd(lane.keys.dead, {"message_id": "1-0"})
    said = shell(*arguments)
    assert said.exit_code == 2
    (line,) = said.stderr.splitlines()
    assert "is kept by a newer Ticket Bridge, in format 2; this version" in line
    assert lane.redis.xlen(lane.keys.dead) == 1
    lane.redis.close()


@pytest.mark.parametrize("arguments", OF_A_STREAM, ids=" ".join)
def test_a_newer_format_of_any_lane_of_a_stream_is_refused(
    shell: CommandLine, valkey: EmbeddedServer, arguments: tuple[str, ...]
) -> None:
    # A stream of this app, and one of its older versions, which another app reads, too
    stream = "old_stream" if "retire" in arguments else Lane(valkey).keys.stream
    keys = LaneKeys(stream, "billing")
    with valkey.client() as redis:
        redis.xgroup_create(stream, "billing", mkstream=True)
        redis.hset(keys.about, mapping={"format": "2", "app": "billing"})
        before = {key: redis.dump(key) for key in redis.scan_iter()}
        said = shell("stream", *arguments)
        assert said.exit_code == 2
        (line,) = said.stderr.splitlines()
        assert f"the lane of stream {stream}, group billing, is kept by a newer Ticket Bridge, in format 2" in line
        assert {key: redis.dump(key) for key in redis.scan_iter()} == before


CHANGING = [words for words in COMMANDS if words[1:2] and words[1] not in ("show", "list")]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_lane_of_another_app_is_read_and_not_changed(
    shell: CommandLine, valkey: EmbeddedServer, arguments: tuple[str, ...]
) -> None:
    lane = Lane(valkey)
    lane.make_group()
    lane.redis.hset(lane.keys.about, mapping={"format": "1", "app": "depot"})
    lane.redis.xadd(lane.keys.dead, {"message_id": "1-0"})
    before = {key: lane.redis.dump(key) for key in lane.redis.scan_iter()}
    said = shell(*arguments)
    assert ("belongs to the app 'depot', and this is 'shop'" in said.stderr) == (arguments in CHANGING)
    if arguments in CHANGING:
        assert said.exit_code == 2
        assert len(said.stderr.splitlines()) == 1
    assert {key: lane.redis.dump(key) for key in lane.redis.scan_iter()} == before
    lane.redis.close()
