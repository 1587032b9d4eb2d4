"""The detectors of this tier go red: the snapshot shows every kind of change, and the key check every key without an
owner.
"""

from __future__ import annotations

import pytest

from bridge.routing.states import State
from tests.keycheck import ownerless
from tests.scripts.world import MASTER, World, changes, incarnation, state_of

pytestmark = pytest.mark.scripts

TOUCHES = {
    "a value": ("SET", "user:x", "1"),
    "a hash field": ("HSET", "user:account", "balance", "11"),
    "a list": ("RPUSH", "{ticket_stream}:bridge:queue:w1@a", "x"),
    "a score": ("ZADD", "{ticket_stream}:bridge:retries", "5001", "late"),
    "an entry": ("XADD", "ticket_stream", "*", "ticket_id", "x"),
    "a deleted entry": ("XDEL", "ticket_stream", "1-0"),
    "an acknowledgement": ("XACK", "ticket_stream", "bridge", "1-0"),
    "an owner of a pending entry": ("XCLAIM", "ticket_stream", "bridge", "w2@b", "0", "1-0"),
    "a read": ("XREADGROUP", "GROUP", "bridge", "master", "COUNT", "1", "STREAMS", "ticket_stream", ">"),
    "a consumer's name": ("XGROUP", "CREATECONSUMER", "ticket_stream", "bridge", "w9@z"),
    "a time to live": ("PERSIST", "{ticket_stream}:bridge:leader"),
    "the neighbour's acknowledgement": ("XACK", "ticket_stream", "neighbour", "1-0"),
    "a deletion": ("DEL", "{ticket_stream}:bridge:term"),
}


@pytest.mark.parametrize("what", TOUCHES)
def test_the_snapshot_sees(what: str, world: World) -> None:
    # Given the whole world
    before = world.snapshot()
    assert world.snapshot() == before
    # When one thing in it changes
    world.client.execute_command(*TOUCHES[what])
    # Then one key differs
    assert len(changes(before, world.snapshot())) == 1
    world.client.pexpire(world.keys.leader, 1000)


def test_the_key_check_names_keys_without_owner_and_keys_that_never_expire(world: World) -> None:
    # Given a stray key, a lease without an end, and a key of the lane's prefix that nobody wrote down
    stray = ["stray", f"{world.keys.prefix}:new", world.keys.lease("immortal")]
    for key in stray:
        world.client.set(key, "x")
    # Then exactly these are named
    problems = ownerless(world.client, world.lane_keys(), ["user:*"])
    assert len(problems) == 3
    assert all(any(repr(key) in problem for problem in problems) for key in stray)
    world.client.delete(*stray)


def test_an_entry_that_two_places_claim_is_no_state_at_all(world: World) -> None:
    # Given a message in flight whose pending entry somebody took back without touching its record
    world.client.xclaim(world.keys.stream, world.keys.group, MASTER, 0, [world.busy[0]], justid=True)
    # Then it is in two states, and that is an error
    with pytest.raises(AssertionError, match="2 states"):
        state_of(world.client, world.keys, world.busy[0])


def test_the_seeded_world_holds_a_message_in_every_state(world: World) -> None:
    world.client.xadd(world.keys.dead, {"message_id": world.done[0]})
    of_all = [*world.busy, *world.late, *world.idle, *world.delayed, *world.done, *world.unread]
    seen = {world.state(id_) for id_ in of_all}
    world.client.xdel(world.keys.dead, "1-0")
    assert seen | {State.DONE} == set(State)
    assert incarnation("w1@a") in world.busy_record
