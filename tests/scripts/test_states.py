"""Each edge of the state machine, walked by the real scripts; at every step each message is in exactly one state."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from bridge.routing import records
from bridge.routing.batch import Batch, DeadLetter
from bridge.routing.delaying import move_due
from bridge.routing.ids import member_of
from bridge.routing.return_codes import ReturnCode
from bridge.routing.states import EDGES, State
from bridge.routing.transitions import adopt, advance, reroute
from tests.scripts.world import MASTER, OPENING, World, incarnation

pytestmark = pytest.mark.scripts


def read(world: World) -> Iterable[str]:
    world.read(count=1)
    return world.unread[:1]


def dispatch(world: World) -> Iterable[str]:
    batch = Batch(expected={"idle": ""})
    world.dispatch(batch, "w2@b", [("idle", world.idle[:2])])
    advance(world.client, world.lead, OPENING, batch)
    return world.idle[:2]


def retry(world: World) -> Iterable[str]:
    batch = Batch(expected={"late": world.late_record}, due=["late"])
    world.dispatch(batch, "w1@a", [("late", world.late[:1])], attempt=2)
    advance(world.client, world.lead, OPENING, batch)
    return world.late[:1]


def done(world: World) -> Iterable[str]:
    batch = Batch(expected={"busy": world.busy_record}, acknowledged=world.busy[:2], released=["busy"])
    advance(world.client, world.lead, OPENING, batch)
    return world.busy[:2]


def fail(world: World) -> Iterable[str]:
    record = records.record(0, records.tail("", "", 2, world.busy[:1], 5, "ValueError"))
    batch = Batch(expected={"busy": world.busy_record}, given_back=world.busy[:2], records=["busy", record])
    batch.retries = [99, "busy"]
    advance(world.client, world.lead, OPENING, batch)
    return world.busy[:1]


def give_up(world: World) -> Iterable[str]:
    batch = Batch(expected={"busy": world.busy_record}, acknowledged=world.busy[:1], given_back=world.busy[:2])
    batch.dead = [DeadLetter(world.busy[0], ["reason", "gave up after 5 attempts"])]
    batch.released = ["busy"]
    advance(world.client, world.lead, OPENING, batch)
    return world.busy[:1]


def give_back(world: World) -> Iterable[str]:
    batch = Batch(expected={"busy": world.busy_record}, given_back=world.busy[:2], released=["busy"])
    advance(world.client, world.lead, OPENING, batch)
    return world.busy[:2]


def re_route(world: World) -> Iterable[str]:
    life = incarnation("w1@a")
    world.client.delete(world.keys.lease(life))
    record = records.record(0, records.tail("", "", 1, world.busy[:1], 5, "lost with w1@a"))
    moves = [("busy", world.busy_record, record, 5)]
    assert reroute(world.client, world.lead, life, "2-0", moves, world.busy[:2]) is ReturnCode.OK
    return world.busy[:1]


def give_back_again(world: World) -> Iterable[str]:
    record = records.record(0, records.tail("", "", 2, world.busy[:1], 5, "given back"))
    batch = Batch(expected={"busy": world.busy_record}, given_back=world.busy[:2], records=["busy", record])
    batch.retries = [5, "busy"]
    advance(world.client, world.lead, OPENING, batch)
    return world.busy[:1]


def give_back_others(world: World) -> Iterable[str]:
    fail(world)
    return world.busy[1:2]


def give_up_retry(world: World) -> Iterable[str]:
    batch = Batch(expected={"late": world.late_record}, acknowledged=world.late[:1], released=["late"], due=["late"])
    batch.dead = [DeadLetter(world.late[0], ["reason", "gave up after 5 attempts"])]
    advance(world.client, world.lead, OPENING, batch)
    return world.late[:1]


def park(world: World) -> Iterable[str]:
    record = records.record(records.PARKED, records.tail("", "", 2, world.late[:1], 5, "by an operator"))
    batch = Batch(expected={"late": world.late_record}, records=["late", record], due=["late"])
    batch.shelve(world.keys.parked_consumer(MASTER, "late"), world.late)
    advance(world.client, world.lead, OPENING, batch)
    return world.late[:1]


def release(world: World) -> Iterable[str]:
    # What was parked is pending under the master's name again, and its record awaits the retry that is due now
    parked = world.client.hget(world.keys.tickets, "stands")
    adopt(world.client, world.lead, MASTER, world.parked)
    record = records.record(0, records.tail("", "", 3, world.parked[:1], 5, "ValueError"))
    batch = Batch(expected={"stands": parked.decode()}, records=["stands", record], retries=[5, "stands"])
    advance(world.client, world.lead, OPENING, batch)
    return world.parked[:1]


def replay(world: World) -> Iterable[str]:
    letter = world.client.xadd(world.keys.dead, {"message_id": world.dead[0]})
    advance(world.client, world.lead, OPENING, Batch(given_back=world.dead, replayed=[letter.decode()]))
    return world.dead


def refuse(world: World) -> Iterable[str]:
    batch = Batch(acknowledged=world.idle[:1], dead=[DeadLetter(world.idle[0], ["reason", "no ticket_id"])])
    advance(world.client, world.lead, OPENING, batch)
    return world.idle[:1]


def delay(world: World) -> Iterable[str]:
    batch = Batch()
    batch.delay(world.keys.delayed_consumer(MASTER), world.idle[1], 5)
    advance(world.client, world.lead, OPENING, batch)
    return world.idle[1:2]


def due(world: World) -> Iterable[str]:
    return [entry[0].decode() for entry in move_due(world.client, world.lead, 10, world.unread[-1]).entries]


def hold(world: World) -> Iterable[str]:
    record = records.record(0, records.tail("", "", 1, world.idle[:1], 5, records.HELD))
    batch = Batch(expected={"idle": ""}, records=["idle", record], retries=[99, "idle"])
    batch.holding = [99, member_of(world.idle[0])]
    advance(world.client, world.lead, OPENING, batch)
    return world.idle[:1]


def cancel(world: World) -> Iterable[str]:
    batch = Batch(acknowledged=world.delayed, over=[member_of(id_) for id_ in world.delayed])
    advance(world.client, world.lead, OPENING, batch)
    return world.delayed


def cancel_held(world: World) -> Iterable[str]:
    batch = Batch(acknowledged=world.idle[2:], over=[member_of(id_) for id_ in world.idle[2:]])
    advance(world.client, world.lead, OPENING, batch)
    return world.idle[2:]


def cancel_first_held(world: World) -> Iterable[str]:
    batch = Batch(expected={"late": world.late_record}, acknowledged=world.late[:1], released=["late"], due=["late"])
    batch.over = [member_of(world.late[0])]
    advance(world.client, world.lead, OPENING, batch)
    return world.late[:1]


WALK: dict[str, Callable[[World], Iterable[str]]] = {
    "read": read,
    "dispatch": dispatch,
    "retry": retry,
    "done": done,
    "fail": fail,
    "give up": give_up,
    "give back": give_back,
    "re-route": re_route,
    "refuse": refuse,
    "give back again": give_back_again,
    "give back others": give_back_others,
    "give up retry": give_up_retry,
    "park": park,
    "release": release,
    "replay": replay,
    "delay": delay,
    "due": due,
    "hold": hold,
    "cancel": cancel,
    "cancel held": cancel_held,
    "cancel first held": cancel_first_held,
}


def everyone(world: World) -> list[str]:
    known = [*world.busy, *world.other, *world.late, *world.idle, *world.done, *world.dead, *world.parked]
    return [*known, *world.delayed, *world.unread]


def test_every_edge_is_walked() -> None:
    assert set(WALK) == set(EDGES)


@pytest.mark.parametrize("edge", EDGES)
def test_the_edge_leads_from_its_source_to_its_target_and_moves_no_other_message(edge: str, world: World) -> None:
    source, target = EDGES[edge]
    before = {id_: world.state(id_) for id_ in everyone(world)}
    # When the real script takes the edge
    moved = list(WALK[edge](world))
    # Then, by Redis alone, these messages are in its target
    after = {id_: world.state(id_) for id_ in everyone(world)}
    assert moved
    assert {before[id_] for id_ in moved} == {source}
    assert {after[id_] for id_ in moved} == {target}
    # And the others are where they were, but for run mates that go back with the one that failed
    others = {id_: (before[id_], after[id_]) for id_ in before if id_ not in moved and before[id_] is not after[id_]}
    allowed = {world.busy[1]} if edge in ("fail", "give up", "re-route", "give back again") else set()
    if edge == "give back others":
        assert others == {world.busy[0]: EDGES["fail"]}
        return
    assert set(others) <= allowed
    assert all(pair == EDGES["give back others"] for pair in others.values())


def test_every_state_is_reached_and_none_leads_out_of_an_end() -> None:
    reached = {State.UNREAD} | {target for _, target in EDGES.values()}
    assert reached == set(State)
    assert not [source for source, _ in EDGES.values() if source is State.DONE]
    assert [name for name, (source, _) in EDGES.items() if source is State.DEAD] == ["replay"]
    assert not [name for name, (_, target) in EDGES.items() if target is State.UNREAD]


def test_a_whole_life_is_in_one_state_at_every_step(fresh: World) -> None:
    # Given one message that is read, dispatched, fails, comes again, is re-routed, comes again and is done
    world = fresh
    [id_] = world.push("T")
    seen = [world.state(id_)]

    def step(batch: Batch) -> int:
        base = advance(world.client, world.lead, OPENING, batch).base
        seen.append(world.state(id_))
        return base

    def go(expected: str, attempt: int) -> str:
        batch = Batch(expected={"T": expected}, due=["T"] if expected else [])
        to = world.dispatch(batch, "w1@a", [("T", [id_])], attempt)
        return records.record(step(batch), to.runs[0][2])

    world.read()
    seen.append(world.state(id_))
    first = go("", 1)
    failed = records.record(0, records.tail("", "", 2, [id_], 5, "no"))
    step(Batch(expected={"T": first}, given_back=[id_], records=["T", failed], retries=[1, "T"]))
    second = go(failed, 2)
    lost = records.record(0, records.tail("", "", 2, [id_], 5, "lost"))
    moves = [("T", second, lost, 5)]
    assert reroute(world.client, world.lead, incarnation("w1@a"), "0-0", moves, [id_]) is ReturnCode.OK
    seen.append(world.state(id_))
    third = go(lost, 2)
    step(Batch(expected={"T": third}, acknowledged=[id_], released=["T"]))
    assert [state.name for state in seen] == [
        "UNREAD",
        "WAITING",
        "IN_FLIGHT",
        "AWAITING_RETRY",
        "IN_FLIGHT",
        "AWAITING_RETRY",
        "IN_FLIGHT",
        "DONE",
    ]
    # And nothing of the ticket stays behind
    left = world.snapshot()
    assert world.keys.tickets not in left
    assert world.keys.retries not in left
