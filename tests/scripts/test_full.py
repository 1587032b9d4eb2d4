"""A full server (OOM, noeviction) refuses producers. What makes room goes through, and no script stops half way.

Servers from 6.2 to 9 refuse a command that needs memory as long as its script has not written anything, and let all of
it pass afterwards. So a script that begins with a write which needs no memory cannot be refused, and any other is
refused as a whole, at its first write: neither can stop in the middle.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from bridge.operate.orders import give
from bridge.operate.replay import drop_letters
from bridge.operate.role_commands import commands_in
from bridge.protocol.dead_letters import read_letter
from bridge.protocol.orders import Drain, Order, Park, Release, Replay, Resume, Transfer
from bridge.routing.batch import Batch
from bridge.routing.effects import Effect, Success, apply, tell
from bridge.routing.leadership import Lead, attend, depart, renew, resign
from bridge.routing.membership import goodbye
from bridge.routing.return_codes import ReturnCode
from bridge.routing.scripts import FOLDER, with_shared
from bridge.routing.transitions import advance, drain, floor, read
from bridge.testing.nodes.process import ROOT
from tests.script_calls import lead
from tests.scripts.test_reroute import end_lease, move
from tests.scripts.world import OPENING, TOKEN, World, incarnation

pytestmark = pytest.mark.scripts

#: Scripts that push messages, or give a stream another layout, which a full server shall refuse.
PRODUCERS = ("append_once", "append_per_ticket", "push_many", "push_once", "push_rows", "repartition", "tick")
#: Commands that such a server refuses, and so the whole script.
WHOLE = ("xadd", "hset", "set", "mset")


@pytest.fixture
def full(world: World) -> Iterator[World]:
    """A lane with everything in it, on a server that has no room."""
    world.client.config_set("maxmemory", "1")
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        world.client.xadd(world.keys.stream, {"ticket_id": "T"})
    yield world
    world.client.config_set("maxmemory", "0")


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "routing" / "lua").glob("*.lua")))
def test_no_script_begins_with_a_write_that_a_full_server_refuses(name: str, fresh: World) -> None:
    text = with_shared(FOLDER.joinpath(f"{name}.lua").read_text())
    commands = sorted(commands_in(text), key=lambda command: text.index(f"'{command.partition('|')[0].upper()}'"))
    asked = fresh.client.connection_pool.get_connection()
    asked.send_command("COMMAND", "INFO", *(command.partition("|")[0] for command in commands))
    replies = asked.read_response()
    fresh.client.connection_pool.release(asked)
    flags = {command: {flag.decode() for flag in info[2]} for command, info in zip(commands, replies, strict=True)}
    # XGROUP itself has no flags on newer servers; what the scripts call of it needs no memory.
    writes = [command for command in commands if "write" in flags[command]]
    if name in PRODUCERS:
        # The other way about: a producer is refused as a whole, before anything of it is written.
        assert all("denyoom" in flags[command] for command in writes if command in WHOLE), name
        assert writes[0] in WHOLE, f"{name}.lua begins with {writes[0]}"
        return
    assert not writes or "denyoom" not in flags[writes[0]], f"{name}.lua begins with {writes[0]}"


def test_outcomes_get_into_a_full_server(full: World) -> None:
    keys = full.keys
    before = full.client.xlen(keys.outcomes)
    assert tell(full.client, keys, "x", b"[]") is ReturnCode.OK
    assert full.client.xlen(keys.outcomes) == before + 1


def test_effects_get_into_a_full_server_with_the_outcome(full: World) -> None:
    fence = int(full.busy_record[1:].partition(",")[0])
    effect = Effect("list", "", ("RPUSH", "user:log", "1"))
    found = apply(full.client, full.keys, "x", [Success("busy", fence, "[]", (effect,))])
    assert found == [(ReturnCode.OK, "")]
    assert full.client.lrange("user:log", 0, -1) == [b"1"]


def test_the_leader_settles_and_dispatches_on_a_full_server(full: World) -> None:
    # Given a batch that acknowledges nothing, so that its first own write would need memory
    batch = Batch(counts={"done": 1})
    advance(full.client, full.lead, OPENING, batch)
    floor(full.client, full.lead, "9-9")
    drain(full.client, full.lead, "w1@a", '{"at_ms": 1}')
    drain(full.client, full.lead, "w1@a", "")
    read(full.client, full.lead, 10)
    assert full.client.get(full.keys.floor) == b"9-9"


def test_tickets_move_on_a_full_server(full: World) -> None:
    end_lease(full)
    assert move(full) is ReturnCode.OK


def test_masters_come_and_go_on_a_full_server(full: World) -> None:
    client, keys = full.client, full.keys
    assert renew(client, [Lead(keys, TOKEN, 1000)]) == [True]
    for holder in ("m8", "m9"):
        found = attend(client, keys.stream, holder, 1000, "{}", "")
    assert found.masters == {"m8": "{}", "m9": "{}"}
    depart(client, keys.stream, "m8")
    resign(client, keys, TOKEN)
    elected, token, _ = lead(client, keys, "m9", 1000)
    assert elected
    assert client.get(keys.leader) == token.encode()


@pytest.mark.parametrize(
    "order",
    [Park("T"), Release("T"), Drain("w1@a"), Resume("w1@a"), Transfer("w1@a", None, None), Replay(["1-0"])],
    ids=lambda order: type(order).__name__,
)
def test_an_order_is_refused_as_a_whole_by_a_full_server(full: World, order: Order) -> None:
    before = full.client.xlen(full.keys.outcomes)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        give(full.client, full.keys, order)
    assert full.client.xlen(full.keys.outcomes) == before


def test_letters_can_be_dropped_on_a_full_server(full: World) -> None:
    full.client.config_set("maxmemory", "0")
    id_ = full.client.xadd(full.keys.dead, {"message_id": "1-0"})
    full.client.config_set("maxmemory", "1")
    letters = [read_letter(id_, [b"message_id", b"1-0"])]
    assert [result.why for result in drop_letters(full.client, full.keys, letters)] == [None]


def test_workers_go_on_a_full_server(full: World) -> None:
    goodbye(full.client, full.keys, "w1@a", incarnation("w1@a"))
    assert not full.client.exists(full.keys.lease(incarnation("w1@a")))
