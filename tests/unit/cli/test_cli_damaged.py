"""Commands that read a lane of which somebody destroyed a part by hand: they show the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bridge.routing import records
from bridge.routing.batch import Batch
from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, Lane, command_line

READ = [
    *(("status",), ("consumer", "list"), ("ticket", "list"), ("ticket", "list", "--parked"), ("ticket", "show", "A")),
    *(("pending",), ("pending", "--limit", "9"), ("pending", "--state", "in-flight"), ("pending", "--ticket", "A")),
    *(("delayed", "list"), ("dead", "list"), ("subscription", "list"), ("stream", "list")),
]


@pytest.fixture
def shell(server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with command_line(tmp_path, monkeypatch, server.url) as made:
        yield made


@pytest.fixture
def lane(server: EmbeddedServer) -> Iterator[Lane]:
    """A lane with tickets that are in flight, await a retry, wait and are parked."""
    made = Lane(server)
    made.make_group()
    made.lead()
    made.join("w1@h")
    ids = made.add("A", "B", "C", "D")
    made.read()
    made.dispatch("w1@h", "A", ids[:1])
    made.hold_back("B", ids[1], 2, 60_000, "ValueError: no")
    parked = records.record(records.PARKED, records.tail("", "", 1, [], 1, "by hand"))
    made._do(Batch(expected={"D": ""}, records=["D", parked]))
    yield made
    made.redis.close()


def without_its_group(lane: Lane) -> None:
    lane.redis.xgroup_destroy(lane.keys.stream, lane.keys.group)


def without_its_stream(lane: Lane) -> None:
    lane.redis.delete(lane.keys.stream)


@pytest.mark.parametrize("destroy", [without_its_group, without_its_stream], ids=lambda destroy: destroy.__name__)
def test_what_is_left_is_shown(destroy: Callable[[Lane], None], shell: CommandLine, lane: Lane) -> None:
    destroy(lane)
    said = {command: shell(*command) for command in READ}
    assert {command: result.stderr for command, result in said.items() if result.exit_code} == {}
    assert {one["ticket_id"] for one in shell.json("ticket", "list")["tickets"]} == {"A", "B", "D"}
