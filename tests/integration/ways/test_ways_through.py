"""What each way in takes goes through a lane: a worker handles it, and every command shows the same message."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bridge.routing.messages import is_deep
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.lane import Lane
from bridge.testing.waiting import wait_until
from tests.integration.ways.test_ways import PAYLOADS, TICKETS, TRIED, canonical, refused_by
from tests.integration.ways.ways_in import DEFAULT, DIES, TASKS, WAYS, Asked, World, can_say, world_of

OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "max_attempts": st.integers(1, 9),
        "timeout": st.sampled_from([600, 7000.5]),
        "expires": st.just(9000),
        "priority": st.integers(0, 9),
    },
)
DELAYED = st.fixed_dictionaries({"delay": st.sampled_from([500, 5000])}, optional={"hold": st.booleans()})


def _can_be(asked: Asked) -> bool:
    """Whether some way takes it."""
    try:
        size = len(asked.ticket_text.encode())
        orjson.loads(asked.payload)
    except (ValueError, UnicodeEncodeError):
        return False
    return 0 < size <= 512 and len(asked.payload.encode()) < 800 and not is_deep(asked.payload.encode())


MESSAGES = st.builds(
    Asked, TICKETS, PAYLOADS, st.none() | st.sampled_from(TASKS), st.just({}) | OPTIONS | DELAYED
).filter(_can_be)


def command(world: World, *arguments: str) -> Any:
    done = world.shell(*arguments)
    assert done.exit_code == 0, (arguments, done.stdout, done.stderr)
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


def through(world: World, lane: Lane, asked: Asked, parked: bool, chosen: list[Any]) -> None:
    module = world.module
    module.SEEN.clear()
    want = (asked.ticket_text, asked.task or DEFAULT, canonical(json.loads(asked.payload)))
    ticket = asked.ticket_text
    if parked:
        command(world, "ticket", "park", "--", ticket)
    ids: list[str] = []
    for way in chosen:
        if can_say(way, asked) and way not in refused_by(asked):
            ids += way(world, asked)
    if parked and "delay" not in asked.options:
        # The leader has read all of them.
        def pending() -> list[str]:
            page = command(world, "pending", "--json", f"--ticket={ticket}", "--limit", "1000")
            return [one["message_id"] for one in page["messages"] if one["ticket_id"] == ticket]

        wait_until(lambda: set(pending()) == set(ids), description=f"{ids} to be pending", timeout_s=20)
        assert {one[0] for one in module.SEEN} == set()
    if parked:
        command(world, "ticket", "release", "--", ticket)
    if asked.options.get("delay"):
        for id_ in ids:
            shown = command(world, "delayed", "show", id_, "--json")
            assert (shown["message_id"], shown["ticket_id"], shown["task"], canonical(shown["payload"])) == (id_, *want)
            assert shown["mode"] == ("hold" if asked.options.get("hold") else "overtake")
        wait_until(
            lambda: command(world, "delayed", "list", "--json", "--limit", "1000")["total"] >= len(ids),
            description="the leader to have them",
            timeout_s=20,
        )
        command(world, "delayed", "now", *ids)
    lane.wait()
    seen: dict[str, list[Any]] = defaultdict(list)
    for id_, *rest in module.SEEN:
        seen[id_].append(rest)
    assert set(seen) == set(ids)
    for id_, times in seen.items():
        [(task, first, own, payload, attempt, most)] = times
        assert (first, task, canonical(payload)) == want, id_
        assert (own, attempt) == (ticket, 1)
        assert most == asked.options.get("max_attempts", 5)
    assert [one[0] for one in module.SEEN] == ids, "another order"
    if asked.task == DIES:
        for id_ in ids:
            shown = command(world, "dead", "show", id_, "--json")
            assert (shown["message_id"], shown["ticket_id"], shown["task"], canonical(shown["payload"])) == (id_, *want)
        module.SEEN.clear()
        module.SEEN.append("alive")
        # Not by ids: that of a message may be that of another one's letter.
        command(world, "dead", "replay", f"--ticket={ticket}", "--yes")
        lane.wait()
        replayed = module.SEEN[1:]
        assert sorted(one[0] for one in replayed) == sorted(ids)
        for _, task, first, own, payload, attempt, most in replayed:
            assert (first, task, canonical(payload)) == want
            assert (own, attempt, most) == (ticket, 1, asked.options.get("max_attempts", 5))
        module.SEEN.clear()


#: What an app says of its own messages is nothing to the bridge's.
PICKLED = {
    "bridge_partitions": 3,
    "task_serializer": "pickle",
    "accept_content": ["pickle"],
    "task_compression": "gzip",
}


@pytest.mark.parametrize(
    "more", [{}, pytest.param(PICKLED, marks=pytest.mark.long)], ids=["one stream", "3 partitions, pickled"]
)
@pytest.mark.parametrize("examples", [3, pytest.param(300, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_every_way_goes_through(
    valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], examples: int
) -> None:
    with (
        world_of(valkey, tmp_path, monkeypatch, bridge_lease=30.0, **more) as world,
        Lane(world.app, url=valkey.url) as lane,
    ):
        # Failing examples are not shrunk: a message that stays in the lane spoils the next example.
        @settings(max_examples=examples, print_blob=True, phases=[Phase.generate], **TRIED)
        @given(asked=MESSAGES, parked=st.booleans(), chosen=st.permutations(WAYS))
        def gone(asked: Asked, parked: bool, chosen: list[Any]) -> None:
            through(world, lane, asked, parked, chosen)

        gone()
