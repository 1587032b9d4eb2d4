"""``bridge pending`` agrees with XPENDING and XINFO CONSUMERS, finds what is asked for, and reads a bounded part."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.cli.commands.pending import STATES
from bridge.inspect import pending_pages
from bridge.inspect.scans import PAGE_MAX
from bridge.routing import records
from bridge.routing.batch import Batch
from bridge.routing.ids import member_of
from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, Lane, calls_of, command_line


@pytest.fixture
def lane(server: EmbeddedServer) -> Iterator[Lane]:
    made = Lane(server)
    yield made
    made.redis.close()


def raw_rows(lane: Lane) -> list[tuple[str, str, int]]:
    """XPENDING with a range: (id, consumer, deliveries)."""
    reply: Any = lane.redis.xpending_range(lane.keys.stream, lane.keys.group, "-", "+", 1000)
    return [(row["message_id"].decode(), row["consumer"].decode(), row["times_delivered"]) for row in reply]


def rows(document: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(one["message_id"], one["consumer"], one["deliveries"]) for one in document["messages"]]


def busy(lane: Lane) -> list[str]:
    """A lane with a message in each state. Returns the ids."""
    lane.make_group()
    lane.lead()
    lane.join("w1@here")
    ids = lane.add("A", "A", "B", "C", "D", "E")
    lane.read(5)
    lane.dispatch("w1@here", "A", ids[:1], attempt=3)
    lane.hold_back("B", ids[2], 2, 60_000, "ValueError: no")
    # D is parked, with its message on its shelf. C was taken by somebody's own program, twice.
    lane.redis.xclaim(lane.keys.stream, lane.keys.group, "master/parked/D", 0, [ids[4]], justid=True)
    parked = records.record(records.PARKED, records.tail("", "", 1, [], 1, "by hand"))
    lane._do(Batch(expected={"D": ""}, records=["D", parked]))
    for _ in range(2):
        lane.redis.xclaim(lane.keys.stream, lane.keys.group, "theirs", 0, [ids[3]])
    return ids


def test_a_page_agrees_with_xpending(shell: CommandLine, lane: Lane) -> None:
    ids = busy(lane)
    before = raw_rows(lane)
    found = shell.json("pending", "--limit", "100")
    assert rows(found) == before == raw_rows(lane)
    assert [one["message_id"] for one in found["messages"]] == ids[:5]
    assert [(one["ticket_id"], one["state"], one["attempt"]) for one in found["messages"]] == [
        ("A", "in flight", 3),
        ("A", "waiting", None),
        ("B", "awaiting retry", 2),
        ("C", "stray", None),
        ("D", "parked", None),
    ]
    assert [one["deliveries"] for one in found["messages"]] == [1, 1, 1, 3, 1]
    assert found["next"] is None
    shown = shell("pending", "--limit", "100").stdout
    assert [line.split()[0] for line in shown.splitlines()[1:]] == ids[:5]
    assert "awaiting retry" in shown


def test_the_summary_agrees_with_xinfo_consumers(shell: CommandLine, lane: Lane) -> None:
    ids = busy(lane)
    lane.redis.xgroup_createconsumer(lane.keys.stream, lane.keys.group, "master/parked/F")
    found = shell.json("pending")
    named: Any = lane.redis.xinfo_consumers(lane.keys.stream, lane.keys.group)
    raw = {one["name"].decode(): one["pending"] for one in named}
    shelves = [name for name in raw if name.startswith("master/parked/")]
    assert {one["name"]: one["pending"] for one in found["consumers"]} == {
        **{name: number for name, number in raw.items() if name not in shelves},
        "master/parked/*": sum(raw[name] for name in shelves),
    }
    assert {one["name"]: (one["kind"], one["names"]) for one in found["consumers"]} == {
        "master": ("master", 1),
        "w1@here": ("consumer", 1),
        "theirs": ("unknown", 1),
        "master/parked/*": ("parked tickets", 2),
    }
    assert (found["total"], found["oldest_id"]) == (5, ids[0])
    shown = shell("pending").stdout
    assert f"5 messages pending; the oldest is {ids[0]}" in shown
    assert "2 parked tickets" in shown


@pytest.mark.parametrize(
    ("arguments", "places"),
    [
        (("--consumer", "master"), [1, 2]),
        (("--consumer", "w1@here"), [0]),
        (("--consumer", "w1"), [0]),
        (("--consumer", "nobody"), []),
        (("--ticket", "A"), [0, 1]),
        (("--ticket", "Z"), []),
        (("--state", "waiting"), [1]),
        (("--state", "in-flight"), [0]),
        (("--state", "awaiting-retry"), [2]),
        (("--state", "parked"), [4]),
        (("--state", "parked", "--ticket", "D"), [4]),
        (("--state", "stray"), [3]),
        (("--state", "waiting", "--ticket", "B"), []),
        (("--idle", "0"), [0, 1, 2, 3, 4]),
        (("--idle", "3600"), []),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_filters(shell: CommandLine, lane: Lane, arguments: tuple[str, ...], places: list[int]) -> None:
    ids = busy(lane)
    found = shell.json("pending", *arguments)
    assert [one["message_id"] for one in found["messages"]] == [ids[place] for place in places]
    assert found["next"] is None
    if not places:
        hint = f"; `bridge -A {shell.app} pending` lists the names" if "--consumer" in arguments else ""
        assert shell("pending", *arguments).stdout == f"no such message is pending{hint}\n"


@pytest.mark.parametrize("name", ["master", "theirs", "master/parked/D", "w1@here", "w1"])
def test_a_name_in_the_group_is_meant_before_a_consumer_that_begins_with_it(
    shell: CommandLine, lane: Lane, name: str
) -> None:
    busy(lane)
    # Given consumers of which the name may be the part before the @
    found = shell.json("pending", "--consumer", name)
    assert found["messages"]
    for host in ("a", "b"):
        if "@" not in name and name != "w1":
            lane.join(f"{name}@{host}")
    # Then nothing changes
    again = shell.json("pending", "--consumer", name)
    assert rows(again) == rows(found)


def test_the_masters_name_is_meant_also_when_it_has_nothing(shell: CommandLine, lane: Lane) -> None:
    lane.make_group()
    lane.lead()
    lane.join("master@a")
    ids = lane.add("A")
    lane.read()
    lane.dispatch("master@a", "A", ids)
    assert shell.json("pending", "--consumer", "master")["messages"] == []
    assert len(shell.json("pending", "--consumer", "master@a")["messages"]) == 1


@pytest.mark.parametrize("seed", range(6))
def test_a_filter_by_state_leaves_nothing_out(shell: CommandLine, lane: Lane, seed: int) -> None:
    # Given a lane in which somebody claimed entries for any of the names, also for those of other tickets
    dice = random.Random(seed)
    ids = busy(lane)
    names = ["master", "master/delayed", "master/parked/D", "master/parked/E", "w1@here", "w2@here", "theirs"]
    for id_ in dice.sample(ids[:5], 3):
        lane.redis.xclaim(lane.keys.stream, lane.keys.group, dice.choice(names), 0, [id_], justid=True)
    # When filters look under fewer names than the whole list
    whole = shell.json("pending", "--limit", "100")["messages"]
    for word, state in STATES.items():
        found = shell.json("pending", "--state", word)["messages"]
        # Then they give what the list says
        assert rows({"messages": found}) == rows({"messages": [one for one in whole if one["state"] == state.value]}), (
            word
        )


def test_delayed_messages(shell: CommandLine, lane: Lane) -> None:
    ids = busy(lane)
    overtaken = lane.add("O", "H")
    lane.read()
    lane.redis.xclaim(lane.keys.stream, lane.keys.group, "master/delayed", 0, [overtaken[0]], justid=True)
    lane.redis.zadd(lane.keys.holding, {member_of(overtaken[1]): 5e12})
    found = shell.json("pending", "--state", "delayed")
    assert [(one["message_id"], one["consumer"]) for one in found["messages"]] == [
        (overtaken[0], "master/delayed"),
        (overtaken[1], "master"),
    ]
    states = {one["message_id"]: one["state"] for one in shell.json("pending", "--limit", "50")["messages"]}
    assert (states[ids[1]], states[overtaken[0]], states[overtaken[1]]) == ("waiting", "delayed", "delayed")
    assert shell.json("pending", "--state", "stray")["messages"][0]["message_id"] == ids[3]
    kinds = {one["name"]: one["kind"] for one in shell.json("pending")["consumers"]}
    assert kinds["master/delayed"] == "delayed"


def test_idle_is_the_servers(shell: CommandLine, lane: Lane) -> None:
    ids = busy(lane)
    lane.redis.xclaim(lane.keys.stream, lane.keys.group, "master", 0, [ids[1]], idle=90_000, justid=True)
    [only] = shell.json("pending", "--idle", "60")["messages"]
    assert only["message_id"] == ids[1]
    assert 90_000 <= only["idle_ms"] < 120_000


@pytest.mark.parametrize("state", [(), ("--state", "waiting"), ("--consumer", "master")], ids=" ".join)
def test_pages_give_each_message_once(shell: CommandLine, lane: Lane, state: tuple[str, ...]) -> None:
    lane.make_group()
    ids = lane.add(*(f"T{n}" for n in range(23)))
    lane.read()
    found: list[str] = []
    after: tuple[str, ...] = ()
    while True:
        page = shell.json("pending", *state, "--limit", "5", *after)
        found += [one["message_id"] for one in page["messages"]]
        assert len(page["messages"]) <= 5
        if page["next"] is None:
            break
        after = ("--after", page["next"])
    assert found == ids
    assert shell("pending", "--limit", "5").stdout.endswith(f"there are more: --after {ids[4]}\n")


def test_all_partitions(server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lane: Lane) -> None:
    with command_line(tmp_path, monkeypatch, server.url, bridge_partitions=3) as shell:
        streams = [f"ticket_stream:p{n}" for n in range(3)]
        # The partition in the middle has none.
        for stream in streams:
            lane.redis.xgroup_create(stream, lane.keys.group, "0", mkstream=True)
        expected = []
        for number in (0, 2):
            for n in range(4):
                id_: Any = lane.redis.xadd(streams[number], {"ticket_id": f"T{n}", "payload": "{}"})
                expected.append(f"{id_.decode()}@p{number}")
            lane.redis.xreadgroup(lane.keys.group, "master", {streams[number]: ">"})
        whole = shell.json("pending", "--limit", "100")
        ids = [one["message_id"] for one in whole["messages"]]
        assert ids == expected
        for size in range(1, 9):
            found: list[str] = []
            after: tuple[str, ...] = ()
            while True:
                page = shell.json("pending", "--limit", str(size), *after)
                found += [one["message_id"] for one in page["messages"]]
                if page["next"] is None:
                    break
                after = ("--after", page["next"])
            assert found == ids, size
        assert shell.json("pending")["total"] == 8
        assert shell("pending", "--after", "1-0").exit_code == 1


@pytest.mark.parametrize("arguments", [(), ("--limit", "3"), ("--state", "parked"), ("--ticket", "T")], ids=" ".join)
def test_nothing_there(shell: CommandLine, lane: Lane, arguments: tuple[str, ...]) -> None:
    said = "no such message is pending\n" if arguments else "nothing is pending\n"
    assert shell("pending", *arguments).stdout == said
    lane.make_group()
    assert shell("pending", *arguments).stdout == said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--after", "what"), "'--after': 'what' is no message id"),
        (("--after", "1-2-3"), "'--after': '1-2-3' is no message id"),
        (("--after", "99999999999999999999999-0"), "is no message id"),
        (("--limit", "0"), "0 is not in the range"),
        (("--limit", "x"), "'x' is not a valid integer"),
        (("--idle", "-1"), "-1.0 is not in the range"),
        (("--idle", "nan"), "is not a number"),
        (("--state", "lost"), "'lost' is not one of"),
        (("--ticket", ""), "ticket"),
        (("--consumer", ""), "it is empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_line(shell: CommandLine, lane: Lane, arguments: tuple[str, ...], says: str) -> None:
    lane.make_group()
    result = shell("pending", *arguments)
    assert result.exit_code == 2
    assert says in result.stderr.splitlines()[-1]


def test_a_search_without_an_end_stops_and_can_go_on(
    shell: CommandLine, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 3 * PAGE_MAX
    monkeypatch.setattr(pending_pages, "LIMIT", limit)
    lane.make_group()
    with lane.redis.pipeline(transaction=False) as pipe:
        for n in range(limit + 500):
            pipe.xadd(lane.keys.stream, {"ticket_id": "rare" if n > limit else "often", "payload": "{}"})
        pipe.execute()
    lane.read()
    page = shell.json("pending", "--ticket", "rare", "--limit", "3")
    assert (page["messages"], page["looked_at"]) == ([], limit)
    assert (
        f"none of the first {limit:,} matches; there are more: --after" in shell("pending", "--ticket", "rare").stdout
    )
    page = shell.json("pending", "--ticket", "rare", "--limit", "3", "--after", page["next"])
    assert [one["ticket_id"] for one in page["messages"]] == ["rare"] * 3


def test_a_page_does_not_read_more_than_itself(shell: CommandLine, lane: Lane, server: EmbeddedServer) -> None:
    lane.make_group()
    with lane.redis.pipeline(transaction=False) as pipe:
        for n in range(2 * PAGE_MAX):
            pipe.xadd(lane.keys.stream, {"ticket_id": f"T{n}", "payload": "{}"})
        pipe.execute()
    lane.read()
    lane.redis.config_resetstat()
    page = shell.json("pending", "--limit", "50")
    assert len(page["messages"]) == 50
    calls = calls_of(server)
    assert calls["cmdstat_xrange"] == 50
    assert calls["cmdstat_xpending"] <= 3


@pytest.mark.long
def test_the_first_page_of_a_million_comes_at_once(shell: CommandLine, lane: Lane) -> None:
    lane.make_group()
    for _ in range(200):
        with lane.redis.pipeline(transaction=False) as pipe:
            for n in range(5000):
                pipe.xadd(lane.keys.stream, {"ticket_id": f"T{n}", "payload": "{}"})
            pipe.execute()
        lane.read()
    shell.json("pending")
    for arguments in ((), ("--limit", "100"), ("--idle", "0"), ("--consumer", "master"), ("--state", "in-flight")):
        began = time.perf_counter()
        found = shell.json("pending", *arguments)
        took = time.perf_counter() - began
        assert found.get("total", 1_000_000) == 1_000_000
        assert took < 1.0, (arguments, took)


def test_large_entries_are_read_a_few_at_a_time(shell: CommandLine, lane: Lane) -> None:
    lane.make_group()
    lane.add(*(f"T{n}" for n in range(30)), payload='"' + "x" * 1_000_000 + '"')
    lane.read()
    found = shell.json("pending", "--limit", "30")
    assert [one["ticket_id"] for one in found["messages"]] == [f"T{n}" for n in range(30)]
