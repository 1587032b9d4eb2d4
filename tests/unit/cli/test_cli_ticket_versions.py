"""``bridge ticket show`` of a ticket whose messages are in an older version of the stream. What it, ``bridge status``
and ``bridge stream list`` say of a version that the app does not name any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bridge.inspect.delayed import Mode
from bridge.inspect.scans import MUCH_UNREAD
from bridge.routing.records import HELD
from bridge.routing.versions import follow, leave_chain
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


#: What a leader logs, too.
LEFT_BEHIND = "'v1', an older version of 'v2', has messages of 'concurrency_stream_group' that are not done"


@pytest.fixture
def later(
    valkey: EmbeddedServer, lanes: tuple[Lane, Lane], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CommandLine]:
    """An app of v2 that does not name v1 any more."""
    newer = lanes[1]
    newer.join("w1@host")
    follow(newer.redis, newer.lead(), ["v1"])
    with command_line(tmp_path, monkeypatch, valkey.url, bridge_stream="v2") as made:
        yield made


@pytest.mark.parametrize("newer", ["unread", "waiting", "awaiting retry"])
@pytest.mark.parametrize("older", ["unread", *STATES])
def test_a_ticket_that_waits_for_a_version_that_is_not_named_any_more_says_so(
    later: CommandLine, lanes: tuple[Lane, Lane], older: str, newer: str
) -> None:
    """It said that the message goes out as soon as a consumer has room."""
    before, after = lanes
    brought(before, older)
    before.depose()
    brought(after, newer)
    seen = later.json("ticket", "show", "A")
    waits = "it waits for v1, an older version that bridge_follows does not name, and has a message there: name it in "
    assert seen["state"] == newer
    assert seen["why"].startswith(waits) == (older not in AT_REST)
    assert ("v1" in seen["why"]) == (older not in AT_REST)


def test_all_tickets_wait_for_a_version_that_is_not_named_and_has_many_unread_messages(
    later: CommandLine, lanes: tuple[Lane, Lane]
) -> None:
    before, after = lanes
    before.add(*["B"] * (MUCH_UNREAD - 1))
    brought(after, "waiting")
    assert "v1" not in later.json("ticket", "show", "A")["why"]
    before.add("B")
    waits = "it waits for v1, an older version that bridge_follows does not name, since many messages came there: name "
    assert later.json("ticket", "show", "A")["why"].startswith(waits)


@pytest.mark.parametrize("older", ["unread", "waiting", "done"])
def test_commands_name_a_version_that_is_not_named_any_more_until_it_is_retired(
    later: CommandLine, lanes: tuple[Lane, Lane], older: str
) -> None:
    before, _ = lanes
    brought(before, older)
    before.depose()
    lines = [line for line in later("status").stdout.splitlines() if LEFT_BEHIND in line]
    assert [line.partition("name it in")[0] for line in lines] == ([f"! {LEFT_BEHIND}: "] if older != "done" else [])
    rows = {one["stream"]: one for one in later.json("stream", "list")["streams"]}
    assert (rows["v1"]["is_dropped"], rows["v1"]["version"], rows["v1"]["entries"]) == (True, None, 1)
    assert rows["v1"]["groups"] == ["concurrency_stream_group"]
    assert not rows["v2"]["is_dropped"]
    shown = later("stream", "list").stdout
    assert "not named" in shown
    assert (f"! {LEFT_BEHIND}" in shown) == (older != "done")
    # When it is retired
    before.redis.delete("v1")
    leave_chain(before.redis, "v1")
    assert "v1" not in later("stream", "list").stdout
    assert "v1" not in later("status").stdout


def test_a_status_of_several_lanes_names_a_version_that_is_not_named_any_more(
    lanes: tuple[Lane, Lane], valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = lanes
    brought(before, "unread")
    follow(after.redis, after.lead(), ["v1"])
    chosen = {"concurrency_stream_group": {"task": "shop.update"}, "other": {"task": "shop.once"}}
    with command_line(tmp_path, monkeypatch, valkey.url, bridge_stream="v2", bridge_subscriptions=chosen) as shell:
        problems = shell.json("status")["problems"]
    assert len([problem for problem in problems if problem.startswith(LEFT_BEHIND)]) == 1
