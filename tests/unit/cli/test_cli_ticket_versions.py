"""``bridge ticket show`` of a ticket whose messages are in an older version of the stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bridge.inspect.delayed import Mode
from bridge.routing.records import HELD
from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, Lane, command_line, letter
from tests.operators import park
from tests.unit.cli.test_cli_delayed import HOUR_MS, delay

#: Message of a lane, which was read -> the ticket has this state there.
Bring = Callable[[Lane, str], None]


def held(lane: Lane, id_: str) -> None:
    delay(lane, id_, int(time.time() * 1000) + HOUR_MS, Mode.HOLD)
    lane.hold_back("A", id_, 1, HOUR_MS, HELD)


def in_flight(lane: Lane, id_: str) -> None:
    lane.join("w1@host")
    lane.dispatch("w1@host", "A", [id_])


#: State of a ticket -> what brings it there.
STATES: dict[str, Bring] = {
    "waiting": lambda _lane, _id: None,
    "in flight": in_flight,
    "awaiting retry": lambda lane, id_: lane.hold_back("A", id_, 2, HOUR_MS, "why"),
    "parked": lambda lane, id_: park(lane, "A", [id_], "why"),
    "delayed": lambda lane, id_: delay(lane, id_, int(time.time() * 1000) + HOUR_MS),
    "held": held,
    "dead": lambda lane, id_: lane.bury(id_, *letter("A")),
    "done": lambda lane, id_: lane.finish(id_),
}
AT_REST = ("dead", "done")


@pytest.fixture
def lanes(valkey: EmbeddedServer) -> Iterator[tuple[Lane, Lane]]:
    """The lanes of the older and of the newer version."""
    made = Lane(valkey, "v1"), Lane(valkey, "v2")
    for lane in made:
        lane.make_group()
    yield made
    for lane in made:
        lane.redis.close()


@pytest.fixture
def shell(valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with command_line(tmp_path, monkeypatch, valkey.url, bridge_stream="v2", bridge_follows=["v1"]) as made:
        yield made


def brought(lane: Lane, state: str) -> str:
    lane.lead()
    [id_] = lane.add("A")
    if state != "unread":
        lane.read()
        STATES[state](lane, id_)
    return id_


@pytest.mark.parametrize("newer", ["", "done", "dead", "delayed", "held"])
@pytest.mark.parametrize("older", ["unread", *STATES])
def test_a_ticket_is_shown_where_something_of_it_is_undone(
    shell: CommandLine, lanes: tuple[Lane, Lane], older: str, newer: str
) -> None:
    before, after = lanes
    brought(before, older)
    if newer:
        brought(after, newer)
    seen = shell.json("ticket", "show", "A")
    known = older not in AT_REST or not newer
    shown = older if known else newer
    assert seen["state"] == {"held": "delayed"}.get(shown, shown)
    assert shell("ticket", "show", "A").exit_code == 0
    assert ("in the older version v1: " in seen["why"]) == known


def test_a_ticket_of_the_newer_version_waits_for_what_is_held_and_not_for_what_is_overtaken(
    shell: CommandLine, lanes: tuple[Lane, Lane]
) -> None:
    before, after = lanes
    brought(before, "delayed")
    brought(after, "waiting")
    assert "v1" not in shell.json("ticket", "show", "A")["why"]
    brought(before, "held")
    assert "it waits for the older version v1, where the ticket is delayed" in shell.json("ticket", "show", "A")["why"]
