"""The small scripts of orders and repairs (recall, drain, floor, set_read_to, unname), and how others use them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import orjson
import pytest

from bridge.routing.batch import Batch
from bridge.routing.errors import GroupMoved, LaneConflict, NotLeading
from bridge.routing.return_codes import ReturnCode
from bridge.routing.states import State
from bridge.routing.transitions import advance, drain, floor, leases, read, recall, reroute, set_read_to, unname
from tests.scripts.test_advance import deposed, without_a_leader
from tests.scripts.world import MASTER, OPENING, World, incarnation

pytestmark = pytest.mark.scripts

SHELF = "master/parked/late"

CALLS: dict[str, Callable[[World], Any]] = {
    "recall": lambda w: recall(w.client, w.lead, "w1@a", 10),
    "drain": lambda w: drain(w.client, w.lead, "w1@a", "{}"),
    "floor": lambda w: floor(w.client, w.lead, "1-0"),
    "set_read_to": lambda w: set_read_to(w.client, w.lead, "1-0"),
    "unname": lambda w: unname(w.client, w.lead, "nobody"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("how", [deposed, without_a_leader])
def test_a_master_without_the_lead_changes_nothing(how: Any, call: Callable[[World], Any], world: World) -> None:
    how(world)
    before = world.snapshot()
    with pytest.raises(NotLeading):
        call(world)
    assert world.snapshot() == before


def test_messages_that_a_consumer_did_not_take_are_taken_back_oldest_first(world: World) -> None:
    queue = world.keys.queue("w1@a")
    world.client.lpush(queue, "second", "third")
    before = world.snapshot()
    assert recall(world.client, world.lead, "w1@a", 2) == [b"older message", b"second"]
    before[queue]["value"] = ["third"]
    assert world.snapshot() == before
    assert recall(world.client, world.lead, "w1@a", 2) == [b"third"]
    assert recall(world.client, world.lead, "w1@a", 2) == []


def test_an_order_to_drain_is_noted_and_lifted(world: World) -> None:
    before = world.snapshot()
    drain(world.client, world.lead, "w 1\n@a", '{"at_ms":1}')
    assert world.client.hgetall(world.keys.drains) == {b"w 1\n@a": b'{"at_ms":1}'}
    drain(world.client, world.lead, "w 1\n@a", "")
    assert world.snapshot() == before


def park_and_drain(world: World, order: str) -> Batch:
    """A batch that settles outcomes up to ``order``, and carries that order out."""
    record = '[-1,1,"","",1,[],5,"why"]'
    batch = Batch(expected={"free": ""}, orders=[order], records=["free", record], drains={"w1@a": '{"at_ms":1}'})
    batch.counts["parked"] = 1
    ms, _, sequence = order.partition("-")
    batch.keep_outcomes_from = f"{ms}-{int(sequence) + 1}"
    return batch


def test_an_order_is_carried_out_in_the_step_that_removes_it(world: World) -> None:
    keys = world.keys
    order = world.client.xadd(keys.outcomes, {"i": "x", "order": "{}"}).decode()
    advance(world.client, world.lead, OPENING, park_and_drain(world, order))
    assert world.client.hget(keys.tickets, "free") == b'[-1,1,"","",1,[],5,"why"]'
    assert world.client.hgetall(keys.drains) == {b"w1@a": b'{"at_ms":1}'}
    # The operator's command can no longer withdraw it
    assert world.client.xdel(keys.outcomes, order) == 0
    advance(world.client, world.lead, OPENING, Batch(drains={"w1@a": ""}))
    assert not world.client.exists(keys.drains)


def test_a_withdrawn_order_changes_nothing(world: World) -> None:
    # Given an order that a leader has read and not settled, and that was withdrawn meanwhile
    order = world.client.xadd(world.keys.outcomes, {"i": "x", "order": "{}"}).decode()
    batch = park_and_drain(world, order)
    before = world.snapshot()
    assert world.client.xdel(world.keys.outcomes, order) == 1
    del before[world.keys.outcomes]["value"]["entries"][-1]
    # When it settles it, then nothing changes
    with pytest.raises(LaneConflict, match="an order was withdrawn"):
        advance(world.client, world.lead, OPENING, batch)
    assert world.snapshot() == before


def test_how_far_all_is_done_may_go_back_when_a_dead_message_comes_again(world: World) -> None:
    floor(world.client, world.lead, "9-0")
    floor(world.client, world.lead, "3-0")
    assert world.client.get(world.keys.floor) == b"3-0"


def test_a_group_says_again_how_far_it_has_read(world: World) -> None:
    before = world.snapshot()
    set_read_to(world.client, world.lead, world.unread[0])
    before[world.keys.stream]["value"]["groups"][world.keys.group]["last"] = world.unread[0]
    assert world.snapshot() == before
    assert [id_.decode() for id_, _ in read(world.client, world.lead, 10).entries] == world.unread[1:]


@pytest.mark.parametrize("to", ["0-0", "0-1", "$"])
def test_nothing_is_read_of_a_group_that_was_moved_by_hand(world: World, to: str) -> None:
    keys = world.keys
    known = world.snapshot()[keys.stream]["value"]["groups"][keys.group]["last"]
    world.client.xgroup_setid(keys.stream, keys.group, to)
    before = world.snapshot()
    with pytest.raises(GroupMoved):
        read(world.client, world.lead, 10, known)
    assert world.snapshot() == before
    # Put where it was, it reads on
    set_read_to(world.client, world.lead, known)
    assert [id_.decode() for id_, _ in read(world.client, world.lead, 10, known).entries] == world.unread


def test_a_name_goes_only_when_nothing_is_pending_under_it(world: World) -> None:
    keys = world.keys
    world.client.xclaim(keys.stream, keys.group, SHELF, 0, world.late[1:], justid=True)
    before = world.snapshot()
    unname(world.client, world.lead, SHELF)
    assert world.snapshot() == before
    world.client.xclaim(keys.stream, keys.group, MASTER, 0, world.late[1:], justid=True)
    unname(world.client, world.lead, SHELF)
    unname(world.client, world.lead, "never there")
    assert SHELF not in world.snapshot()[keys.stream]["value"]["groups"][keys.group]["consumers"]
    assert world.state(world.late[1]) is State.WAITING


def test_messages_of_a_parked_ticket_are_pending_under_its_own_name(world: World) -> None:
    # Given a ticket that awaits a retry, of which somebody acknowledged the second message by hand
    keys = world.keys
    world.client.xack(keys.stream, keys.group, world.late[1])
    before = world.snapshot()
    record = '[-1,1,"","",2,["x"],5,"why"]'
    batch = Batch(expected={"late": world.late_record}, records=["late", record], due=["late"])
    batch.shelve(SHELF, world.late)
    # When it is parked
    done = advance(world.client, world.lead, OPENING, batch)
    # Then both are pending under that name, the retry is forgotten, and nothing else changed
    assert done.mended == 1
    expected = deepcopy(before)
    group = expected[keys.stream]["value"]["groups"][keys.group]
    group["pending"].update(dict.fromkeys(world.late, SHELF))
    group["consumers"] = sorted([*group["consumers"], SHELF])
    expected[keys.tickets]["value"]["late"] = record
    del expected[keys.retries]
    assert world.snapshot() == expected


def test_a_dead_message_comes_back_with_its_letter_gone(world: World) -> None:
    keys = world.keys
    letter = world.client.xadd(keys.dead, {"message_id": world.done[0], "reason": "gave up"})
    batch = Batch(given_back=[world.done[0]], replayed=[letter.decode()], counts={"replayed": 1})
    advance(world.client, world.lead, OPENING, batch)
    after = world.snapshot()
    assert after[keys.stream]["value"]["groups"][keys.group]["pending"][world.done[0]] == MASTER
    assert letter.decode() not in dict(after[keys.dead]["value"]["entries"])
    assert after[keys.counts]["value"]["replayed"] == "1"


def test_the_history_is_written_in_the_step_that_it_describes_and_capped(world: World) -> None:
    keys = world.keys
    row = [world.busy[0], "busy", "t", "w1@a", 1, 100, 5, 6, 0.5, "done"]
    for _ in range(300):
        advance(world.client, world.lead, OPENING, Batch(counts={"done": 1}, history=[row], history_cap=10))
    entries = world.client.xrange(keys.history)
    # The server trims whole nodes of its tree
    assert 10 <= len(entries) <= 210
    assert orjson.loads(entries[-1][1][b"d"]) == [row]
    # A step that is refused writes none
    before = world.snapshot()
    world.client.set(keys.leader, "8 another")
    with pytest.raises(NotLeading):
        advance(world.client, world.lead, OPENING, Batch(counts={"done": 1}, history=[row], history_cap=10))
    world.client.set(keys.leader, world.lead.token, px=60_000)
    assert world.snapshot() == before


def test_a_re_route_writes_history(world: World) -> None:
    keys = world.keys
    gone = incarnation("w1@a")
    row = [world.busy[0], "busy", "t", "w1@a", 1, 100, 5, 0, 0, "lost"]
    moves = [("busy", world.busy_record, '[0,1,"","",1,["x"],5,""]', 77)]
    assert reroute(world.client, world.lead, gone, "2-0", moves, world.busy[:2], [row], 10) is ReturnCode.ALIVE
    assert not world.client.exists(keys.history)
    world.client.delete(keys.lease(gone))
    assert reroute(world.client, world.lead, gone, "2-0", moves, world.busy[:2], [row], 10) is ReturnCode.OK
    [(_, fields)] = world.client.xrange(keys.history)
    assert orjson.loads(fields[b"d"]) == [row]


def test_leases_say_what_they_have_left_however_many_calls_it_takes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.routing.transitions.LEASES", 2)
    before = world.snapshot()
    lives = [f"life{n}" for n in range(5)]
    for life in lives[1:]:
        world.client.set(world.keys.lease(life), 1, px=60_000)
    left = leases(world.client, world.keys, lives)
    assert list(left) == lives
    assert left["life0"] == -2
    assert all(0 < left[life] <= 60_000 for life in lives[1:])
    world.client.delete(*map(world.keys.lease, lives))
    assert world.snapshot() == before
