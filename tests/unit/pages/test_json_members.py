"""The page of the commands names every member of every document that a reading command prints with ``--json``."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.routing.return_codes import text_of
from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, Lane, command_line, letter
from tests.operators import park

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
SECTIONS = dict(
    re.findall(
        r"^## bridge ([^\n]*)\n(.*?)(?=^## |\Z)", (REFERENCE / "commands.md").read_text(), re.MULTILINE | re.DOTALL
    )
)
#: Members whose own members are data: names of streams, of queues, of checks.
OF_DATA = ("unfinished", "queues", "kept_state", "checks", "payload")
#: Command -> the other sections and pages to which its section leads.
LEADS_TO = {
    "status": ["metrics.md", "consumer list"],
    "ticket show": ["dead list", "metrics.md"],
    "consumer list": ["metrics.md"],
    "dead show": ["dead list"],
    "dead replay": ["dead list"],
    "dead drop": ["dead replay", "dead list"],
    "delayed show": ["delayed list"],
    "delayed cancel": ["delayed list"],
    "stream info": ["stream list"],
    "subscription list": ["metrics.md"],
    "audit": ["audit.md"],
}


@pytest.fixture
def lane(valkey: EmbeddedServer) -> Iterator[Lane]:
    made = Lane(valkey)
    made.make_group()
    made.lead()
    yield made
    made.redis.close()


@pytest.fixture
def shell(valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    schedule = {"nightly": {"task": "shop.update", "ticket": "N", "payload": {}, "every": 60}}
    with command_line(tmp_path, monkeypatch, valkey.url, bridge_schedule=schedule) as made:
        yield made


def members(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        for name, value in document.items():
            yield name
            if name not in OF_DATA:
                yield from members(value)
    elif isinstance(document, list):
        for one in document:
            yield from members(one)


def documented(command: str) -> str:
    places = [command, *LEADS_TO.get(command, ())]
    return "".join((REFERENCE / one).read_text() if one.endswith(".md") else SECTIONS[one] for one in places)


def test_every_member_is_named(shell: CommandLine, lane: Lane) -> None:
    lane.join("w1@host")
    ids = lane.add("A", "A", "B", "C", "D")
    lane.read()
    lane.dispatch("w1@host", "A", ids[:1])
    lane.hold_back("B", ids[2], 2, 30_000, "it broke")
    park(lane, "C", [ids[3]], "wrong")
    lane.bury(ids[4], *letter("D"))
    due = int(time.time() * 1000) + 60_000
    late = text_of(lane.redis.xadd("ticket_stream", {"ticket_id": "E", "payload": "{}", "due": due}))
    shown = {"ticket show": ["A"], "dead show": [ids[4]], "dead replay": ["--all", "--dry-run"]}
    shown |= {"dead drop": ["--all", "--dry-run"], "delayed cancel": [late, "--dry-run"], "delayed show": [late]}
    of = ["status", "ticket show", "ticket list", "consumer list", "pending", "delayed list", "delayed show"]
    of += ["delayed cancel", "dead list", "dead show", "dead replay", "dead drop", "stream list", "stream info"]
    of += ["subscription list", "schedule list", "audit"]
    unnamed = []
    for command in of:
        calls = [shown.get(command, [])]
        if command == "ticket show":
            calls += [["B"], ["C"], ["D"], ["E"]]
        if command == "pending":
            calls.append(["--ticket", "A"])
        for more in calls:
            result = shell(*command.split(), *more, "--json")
            assert result.stdout, (command, result.stderr)
            found = {name for name in members(json.loads(result.stdout)) if f"`{name}`" not in documented(command)}
            unnamed += [f"{command} {more}: {name}" for name in sorted(found)]
    assert not unnamed, "\n".join(unnamed)
