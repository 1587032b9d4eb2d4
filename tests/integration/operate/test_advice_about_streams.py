"""What ``bridge stream`` advises can be run as it is, in an app with several subscriptions and versions, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.app.finding import load_app
from bridge.routing.keys import LaneKeys, follows_key, newer_key
from bridge.stack.embedded import EmbeddedServer
from tests.commands import Lane, command_line, letter
from tests.integration.operate.checked_commands import CheckedCommands

SUBSCRIPTIONS = {name: {"task": "shop.update"} for name in ("a", "b")}


def test_a_repartition_names_the_commands_of_each_subscription(
    valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with command_line(tmp_path, monkeypatch, valkey.url, bridge_subscriptions=SUBSCRIPTIONS) as shell:
        commands = CheckedCommands(shell)
        for name in SUBSCRIPTIONS:
            commands.run("subscription", "add", name)
        load_app(shell.app).tasks["shop.update"].push("T", {})
        # Given a dead letter of one subscription, and another one that is done
        for name in SUBSCRIPTIONS:
            lane = Lane(valkey)
            lane.keys = LaneKeys("ticket_stream", name)
            lane.read()
            found: Any = lane.redis.xpending_range("ticket_stream", name, "-", "+", 10)
            id_ = found[0]["message_id"].decode()
            if name == "a":
                lane.bury(id_, *letter("T"))
            else:
                lane.finish(id_)
            lane.depose()
        # When the stream is split
        said = commands.run("stream", "repartition", "2", "--timeout", "0", codes=(1,))
        # Then the letter is named with its subscription, and the audit with both
        start = f"`bridge -A {shell.app}"
        there = "1 dead letter in {ticket_stream}:a:dead: replay or drop them"
        assert f"{there} ({start} dead list -s a`)" in said.stderr
        assert f"run {start} audit -s a` and {start} audit -s b` before, which prove that part" in said.stdout


@pytest.mark.parametrize(("partitions", "end"), [(1, ""), (2, ":p0")])
def test_a_refused_repartition_names_the_versions_to_retire(
    valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int, end: str
) -> None:
    with (
        command_line(tmp_path, monkeypatch, valkey.url, bridge_partitions=partitions) as shell,
        valkey.client() as redis,
    ):
        load_app(shell.app).tasks["shop.update"].push("T", {})
        redis.set(follows_key(f"ticket_stream{end}"), f'["orders{end}"]')
        redis.sadd(newer_key(f"ticket_stream{end}"), f"ticket_stream:v2{end}")
        said = CheckedCommands(shell).run("stream", "repartition", "3", codes=(1,))
        assert said.stderr.splitlines()[-1] == (
            "Error: ticket_stream has other versions (orders, ticket_stream:v2): retire the older ones first "
            f"(`bridge -A {shell.app} stream retire orders`); nothing was changed"
        )
