"""Scripts are sent by their hash, and whole when the server does not know them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.client import Pipeline
from redis.exceptions import NoScriptError, ResponseError

from bridge.routing import http_consumers
from bridge.routing.async_connection import async_client
from bridge.routing.batch import Batch
from bridge.routing.delaying import move_due
from bridge.routing.effects import Success, apply, tell
from bridge.routing.keys import LaneKeys
from bridge.routing.layouts import claim_layout, in_layout
from bridge.routing.leadership import Candidate, Lead, attend, begin_term, depart, renew, resign
from bridge.routing.leadership import lead as lead_each
from bridge.routing.membership import died, goodbye, meet, register
from bridge.routing.notices import note_told
from bridge.routing.partitions import Layout
from bridge.routing.producing import places_of, push_rows
from bridge.routing.pushes import Columns, Partition, Tickets, append_once, append_per_ticket, note_wait, settle_push
from bridge.routing.repartitioning import forget_layout, leave_layout, next_layout, repartition
from bridge.routing.retention import done, letters, remove
from bridge.routing.retiring import retire
from bridge.routing.return_codes import ReturnCode
from bridge.routing.scripts import Script
from bridge.routing.subscribing import make_group, unsubscribe
from bridge.routing.ticks import LastTick, Pusher, drop_ticks, tick
from bridge.routing.transitions import (
    Leadership,
    adopt,
    advance,
    all_agreed,
    drain,
    floor,
    forget,
    introduce,
    last_id,
    leases,
    note_tasks,
    oldest,
    read,
    recall,
    reroute,
    resend,
    set_read_to,
    shorten,
    survey,
    unname,
)
from bridge.routing.versions import follow
from bridge.testing.nodes.process import ROOT
from tests.script_calls import lead, push_many, push_once
from tests.scripts.world import MASTER, NEWER, OLDER, OPENING, TOKEN, Client, World, incarnation

pytestmark = pytest.mark.scripts

#: A write from outside.
PUSHED = Columns(("ticket_id", "payload"))
AT = Partition("ticket_stream", "{ticket_stream}/push/run", 0, 0, 1, None, 60)
NUMBERS = Tickets("ticket_stream", "{ticket_stream}/push", None, 60)
#: A push to a stream that is not split.
PLACES = places_of("ticket_stream", Layout(), [0])

#: Who pushes the ticks of a schedule.
PUSHER = Pusher("ticket_stream", [LaneKeys("ticket_stream", "bridge").leader], TOKEN)


def over_http(w: World, function: Callable[..., Awaitable[Any]], *args: Any, **more: Any) -> Any:
    """A call of asyncio's client."""

    async def call() -> Any:
        connection = w.client.connection_pool.connection_kwargs
        client = async_client(f"redis://{connection['host']}:{connection['port']}")
        try:
            return await function(client, *args, **more)
        finally:
            await client.aclose(close_connection_pool=True)

    return asyncio.run(call())


#: A call of each script that is refused or changes little, so that any order will do.
CALLS: dict[str, Callable[[World], object]] = {
    "read": lambda w: read(w.client, w.lead, 1),
    "advance": lambda w: advance(w.client, w.lead, OPENING, Batch(counts={"done": 1})),
    "reroute": lambda w: reroute(w.client, w.lead, incarnation("w1@a"), "9-0", [], []),
    "forget": lambda w: forget(w.client, w.lead, "w1@a", incarnation("w1@a"), ""),
    "adopt": lambda w: adopt(w.client, w.lead, "master", ["999-0"]),
    "resend": lambda w: resend(w.client, w.lead, "w1@a", "busy", "nothing", "text"),
    "begin_term": lambda w: begin_term(w.client, w.keys, w.client.get(w.keys.leader).decode(), "m", 1000),
    "recall": lambda w: recall(w.client, w.lead, "w1@a", 1),
    "oldest": lambda w: oldest(w.client, [w.keys.queue("w1@a")]),
    "leases": lambda w: leases(w.client, w.keys, [incarnation("w1@a")]),
    "last_id": lambda w: last_id(w.client, w.keys.stream),
    "survey": lambda w: list(survey(w.client, w.keys.stream, "-", "9-0")),
    "drain": lambda w: drain(w.client, w.lead, "w1@a", "{}"),
    "floor": lambda w: floor(w.client, w.lead, "1-0"),
    "set_read_to": lambda w: set_read_to(w.client, w.lead, "1-0"),
    "shorten": lambda w: shorten(w.client, w.lead, incarnation("w1@a"), 1000),
    "introduce": lambda w: introduce(w.client, w.lead, "{}", 1),
    "note_tasks": lambda w: note_tasks(w.client, w.lead, {"shop.task": 1}, [], {}),
    "follow": lambda w: follow(w.client, w.lead, []),
    "retire": lambda w: retire(w.client, "ticket_stream", [], [], []),
    "make_group": lambda w: make_group(w.client, w.keys, "0"),
    "meet": lambda w: meet(w.client, w.keys, 1, "shop"),
    "unsubscribe": lambda w: unsubscribe(w.client, w.keys, {}, []),
    "move_due": lambda w: move_due(w.client, w.lead, 1, "0-0"),
    "unname": lambda w: unname(w.client, w.lead, "nobody"),
    "done": lambda w: done(w.client, w.keys.stream, "-", "9-0", 10),
    "letters": lambda w: letters(w.client, w.keys.dead, "", 10),
    "remove": lambda w: remove(w.client, w.lead, [b"neighbour"], ["1-0"]),
    "died": lambda w: died(w.client, w.keys, "w1@a", incarnation("w1@a"), []),
    "lead": lambda w: lead(w.client, w.keys, "m", 1000),
    "renew": lambda w: renew(w.client, [Lead(w.keys, TOKEN, 1000)]),
    "attend": lambda w: attend(w.client, "ticket_stream", "m", 1000, "{}", ""),
    "depart": lambda w: depart(w.client, "ticket_stream", "m"),
    "resign": lambda w: resign(w.client, w.keys, "nobody"),
    "register": lambda w: register(w.client, w.keys, "w9", "x", 1000, "{}", None),
    "goodbye": lambda w: goodbye(w.client, w.keys, "w9", "x"),
    "apply": lambda w: apply(w.client, w.keys, "x", [Success("nobody", 1, "[]", ())]),
    "append_once": lambda w: append_once(w.client, AT, "0 0", "1 1", PUSHED, [b"T", b"{}"]),
    "append_per_ticket": lambda w: append_per_ticket(w.client, NUMBERS, PUSHED, [b"1", b"T", b"{}"]),
    "push_many": lambda w: push_many(w.client, PLACES, "shop.task", [b"T", b"{}"]),
    "push_rows": lambda w: push_rows(w.client, PLACES, [["ticket_id", "T"]]),
    "push_once": lambda w: push_once(w.client, PLACES, "shop.task", [b"T", b"{}"], "key", 0, "ab"),
    "claim_layout": lambda w: claim_layout(w.client, "ticket_stream", 2),
    "repartition": lambda w: repartition(w.client, "ticket_stream", Layout(text="x"), next_layout(Layout(), 2)),
    "leave_layout": lambda w: leave_layout(w.client, "ticket_stream", next_layout(Layout(), 2), []),
    "forget_layout": lambda w: forget_layout(w.client, "ticket_stream", next_layout(Layout(), 2)),
    "note_wait": lambda w: note_wait(w.client, "ticket_stream", "who", "why", 1),
    "settle_push": lambda w: settle_push(w.client, AT.guard, 0, 1, "{}", 60),
    "tick": lambda w: tick(w.client, PUSHER, "shop/x", None, LastTick(1, "every 5 s"), Layout(), "shop.task", ()),
    "drop_ticks": lambda w: drop_ticks(w.client, PUSHER, ["shop/x"]),
    "notified": lambda w: note_told(w.client, w.keys, TOKEN, 1),
    "tell": lambda w: tell(w.client, w.keys, "x", b"[]"),
    "enlist": lambda w: over_http(w, http_consumers.enlist, "h1", "x", ["{ticket_stream}/http:x"], (b"{}", 1000), []),
    "take": lambda w: over_http(
        w, http_consumers.take, [w.keys], "h1", "x", most=1, slots=1, most_bytes=1, first=0, has=[]
    ),
    "acknowledge": lambda w: over_http(w, http_consumers.acknowledge, [w.keys], "x", []),
    "heartbeat": lambda w: over_http(
        w, http_consumers.heartbeat, [w.keys], "h1", "x", (["{ticket_stream}/http:x"], 1000), 1000
    ),
    "leave": lambda w: over_http(w, http_consumers.leave, [w.keys], "h1", "x", ends_drain=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_script_is_loaded_again_after_a_server_forgot_it(name: str, world: World) -> None:
    script = Script(name)
    # Given a server that knows no script
    for _ in range(2):
        world.client.script_flush()
        assert world.client.script_exists(script.sha) == [False]
        # When it is called, then it works, and the server knows it now
        CALLS[name](world)
        assert world.client.script_exists(script.sha) == [True]


def test_every_script_is_called_here() -> None:
    assert set(CALLS) == {path.stem for path in (ROOT / "routing" / "lua").glob("*.lua")}


def test_a_known_script_takes_one_round_trip(world: World) -> None:
    resign(world.client, world.keys, "nobody")
    world.client.config_resetstat()
    resign(world.client, world.keys, "nobody")
    stats = world.client.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 1
    assert "cmdstat_eval" not in stats


def loads_after_the_first_call(client: Client, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process loads the script between the first and the second command of each pipeline."""
    client.script_flush()
    text = Script(name).text

    class Interrupted(Pipeline):
        def execute(self, raise_on_error: bool = True) -> list[Any]:
            commands, replies = self.command_stack, []
            for command in commands:
                self.command_stack = [command]
                replies += super().execute(raise_on_error)
                client.script_load(text)
            return replies

    def pipeline(transaction: bool) -> Pipeline:
        return Interrupted(client.connection_pool, client.response_callbacks, transaction, None)

    monkeypatch.setattr(client, "pipeline", pipeline)


def test_a_master_that_was_elected_does_not_ask_again_for_a_lane_that_found_no_script(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told that it follows itself: nobody led that lane until the leader lease ended."""
    lanes = [Candidate(LaneKeys(name, "bridge"), in_layout(name), 5000) for name in (OLDER, NEWER)]
    loads_after_the_first_call(world.client, "lead", monkeypatch)
    assert lead_each(world.client, "m1@a", lanes) == [(True, "1 m1@a", 5000), (True, "1 m1@a", 5000)]


def test_a_comparison_is_counted_once_where_another_lane_found_no_script(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries would leave the stream that this leader has not looked at since they were found."""
    near = Leadership(LaneKeys(world.keys.stream, "neighbour"), TOKEN, MASTER)
    loads_after_the_first_call(world.client, "floor", monkeypatch)
    all_agreed(world.client, [world.lead, near])
    assert [int(world.client.get(lead.keys.agreed)) for lead in (world.lead, near)] == [1, 1]


def test_an_error_of_the_script_itself_is_not_taken_for_a_missing_one(world: World) -> None:
    broken = Script("resign")
    broken.text = "return redis.call('NONSENSE')"
    broken.sha = world.client.script_load(broken.text)
    with pytest.raises(ResponseError) as raised:
        broken.run(world.client, [world.keys.leader], [])
    assert not isinstance(raised.value, NoScriptError)


def test_return_codes_are_the_enums(world: World) -> None:
    assert forget(world.client, world.lead, "w1@a", incarnation("w1@a"), "") is ReturnCode.ALIVE
