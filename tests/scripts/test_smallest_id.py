"""An entry with the smallest id that an entry may have, 0-1, is one like any other: no script takes it for one that
does not exist.

Some scripts begin with a write that changes nothing, to see whether the group is there, and whether the server accepts
writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from bridge.routing.batch import Batch
from bridge.routing.delaying import move_due
from bridge.routing.effects import Success, apply, tell
from bridge.routing.transitions import advance, set_read_to, unname
from bridge.testing.nodes.process import ROOT
from tests.scripts.test_reroute import end_lease, move
from tests.scripts.world import OPENING, World

pytestmark = pytest.mark.scripts

SMALLEST = "0-1"


def _reroute(world: World) -> None:
    end_lease(world)
    move(world)


#: Name of a script -> a call that is not about that entry.
CALLS: dict[str, Callable[[World], object]] = {
    "advance": lambda world: advance(world.client, world.lead, OPENING, Batch(counts={"done": 1})),
    "reroute": _reroute,
    "move_due": lambda world: move_due(world.client, world.lead, 10, "9-0"),
    "set_read_to": lambda world: set_read_to(world.client, world.lead, world.unread[0]),
    "unname": lambda world: unname(world.client, world.lead, "nobody"),
    "tell": lambda world: tell(world.client, world.keys, "x", b"[]"),
    "apply": lambda world: apply(world.client, world.keys, "x", [Success("busy", 100, "[]", ())]),
}


@pytest.mark.parametrize("script", CALLS)
def test_it_stays_where_it_is(script: str, empty: World) -> None:
    keys = empty.keys
    for stream in (keys.stream, keys.outcomes):
        empty.client.execute_command("XADD", stream, SMALLEST, "ticket_id", "first", "payload", "{}")
    world = empty.populated()
    world.client.xclaim(keys.stream, keys.group, "w2@b", 0, [SMALLEST], justid=True)
    CALLS[script](world)
    seen = world.snapshot()
    group = seen[keys.stream]["value"]["groups"]
    assert seen[keys.stream]["value"]["entries"][0][0] == SMALLEST
    assert seen[keys.outcomes]["value"]["entries"][0][0] == SMALLEST
    assert group[keys.group]["pending"][SMALLEST] == "w2@b"


def test_no_script_names_an_entry() -> None:
    # No entry has the id 0-0
    named = {
        path.stem: re.findall(r"'(\d+-\d+)'", path.read_text()) for path in (ROOT / "routing" / "lua").glob("**/*.lua")
    }
    assert {name: ids for name, ids in named.items() if set(ids) - {"0-0"}} == {}
