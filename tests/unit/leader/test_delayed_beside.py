"""What other things do to a delayed message: a park, a replay, a version change, and a worker that is lost with it."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.protocol.outcome_entries import EntryKind, Notice
from bridge.protocol.outcomes import Kind
from bridge.routing.batch import Batch
from bridge.routing.ids import id_text
from bridge.routing.message_options import MessageOptions
from bridge.routing.messages import EntryParser, Message
from tests.unit.leader.lane_world import TASKS, LaneWorld
from tests.unit.leader.test_chain import Chain
from tests.unit.leader.test_lane_parking import next_outcome


def begin(**settings: Any) -> LaneWorld:
    world = LaneWorld(clocked=True, bundle_ms=0.0, **settings)
    world.join("w1@h", 1)
    return world


def pass_ms(world: LaneWorld, ms: int) -> None:
    world.now += ms
    world.step()


def work_off(world: LaneWorld) -> list[str]:
    """Lets all messages succeed. Returns their ids in the order of success."""
    done = []
    while world.running():
        done.append(next_outcome(world, Kind.DONE))
        world.check()
    left = [*world.store.pending, *world.store.late, *world.store.delayed]
    assert left == []
    return done


def died_delayed(world: LaneWorld) -> tuple[str, list[str]]:
    """A message that was delayed and is dead, and later ones of its ticket, the first of them in flight."""
    dead = world.push_delayed("T", world.now + 1000)
    world.read()
    pass_ms(world, 1001)
    assert next_outcome(world, Kind.DEAD) == dead
    later = world.push("T", count=3)
    world.read()
    return dead, later


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_replay_goes_before_all_that_has_not_begun_and_is_not_delayed_again(*, taken_over: bool) -> None:
    world = begin()
    dead, later = died_delayed(world)
    world.order(do="replay", letters=[dead])
    assert set(world.store.late) == {dead}
    assert not world.store.delayed
    if taken_over:
        world.rebuild()
    world.check()
    assert work_off(world) == [later[0], dead, *later[1:]]


@pytest.mark.parametrize("taken_over", [False, True])
@pytest.mark.parametrize("hold", [False, True])
def test_a_replay_of_one_that_was_made_due_early_is_not_delayed_until_its_first_time(
    *, hold: bool, taken_over: bool
) -> None:
    world = begin()
    id_ = world.push_delayed("T", world.now + 60_000, hold=hold)
    world.read()
    world.order(do="delayed", act="now", ids=[id_])
    pass_ms(world, 1)
    assert next_outcome(world, Kind.DEAD) == id_
    later = world.push("T", count=3)
    world.read()
    world.order(do="replay", letters=[id_])
    assert not world.store.delayed
    if taken_over:
        world.rebuild()
    world.check()
    assert work_off(world) == [later[0], id_, *later[1:]]
    assert not world.store.holding


@pytest.mark.parametrize("taken_over", ["never", "after its death", "after the replay"])
@pytest.mark.parametrize("parked", [False, True])
def test_a_replay_of_one_that_was_made_due_early_goes_first_also_after_its_first_time(
    *, parked: bool, taken_over: str
) -> None:
    world = begin(on_dead="park" if parked else "skip")
    id_ = world.push_delayed("T", world.now + 60_000)
    world.read()
    world.order(do="delayed", act="now", ids=[id_])
    pass_ms(world, 1)
    assert next_outcome(world, Kind.DEAD) == id_
    pass_ms(world, 1000)
    later = world.push("T", count=3)
    world.read()
    if taken_over == "after its death":
        world.rebuild()
    pass_ms(world, 60_000)
    world.order(do="replay", letters=[id_])
    if taken_over == "after the replay":
        world.rebuild()
    if parked:
        world.order(do="release", ticket="T")
        pass_ms(world, 1)
    world.check()
    assert work_off(world) == ([id_, *later] if parked else [later[0], id_, *later[1:]])


def test_one_that_was_made_due_early_while_a_leader_ended_keeps_its_time_in_its_letter() -> None:
    world = begin()
    id_ = world.push_delayed("T", world.now + 60_000)
    world.read()
    due_ms = world.now
    world.order(do="delayed", act="now", ids=[id_])
    pass_ms(world, 1)
    world.rebuild()
    pass_ms(world, 60_000)
    assert next_outcome(world, Kind.DEAD) == id_
    assert int(world.store.letters[id_]["due_ms"]) == due_ms


def test_several_replays_keep_the_order_in_which_they_were_due() -> None:
    # Given a dead message that others overtook, and one of these
    world = begin()
    delayed = world.push_delayed("T", world.now + 1000)
    [overtook] = world.push("T")
    world.read()
    assert next_outcome(world, Kind.DEAD) == overtook
    pass_ms(world, 1001)
    assert next_outcome(world, Kind.DEAD) == delayed
    later = world.push("T", count=2)
    world.read()
    world.order(do="replay", letters=[delayed, overtook])
    assert work_off(world) == [later[0], overtook, delayed, later[1]]


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_delayed_message_that_was_refused_goes_first_also_after_its_time(*, taken_over: bool) -> None:
    # Given a message that could not be read at first, as its letter says
    world = begin()
    due_ms = world.now + 60_000
    id_ = world.push_delayed("T", due_ms, task="unknown")
    world.read()
    assert world.store.dead == [id_]
    world.store.entries[id_][3] = b"short"
    pass_ms(world, 1000)
    later = world.push("T", count=2)
    world.read()
    pass_ms(world, 60_000)
    world.order(do="replay", letters=[id_])
    if taken_over:
        world.rebuild()
    assert work_off(world) == [later[0], id_, later[1]]


@pytest.mark.parametrize("act", ["now", "reschedule"])
def test_a_new_leader_goes_by_the_time_that_an_operator_gave_a_message_that_is_not_first(act: str) -> None:
    # Given a message for which its ticket is to wait, behind one that runs
    world = begin()
    [first] = world.push("T")
    held = world.push_delayed("T", world.now + 1000, hold=True)
    world.read()
    due_ms = None if act == "now" else world.now + 5000
    assert world.order(do="delayed", act=act, ids=[held], due_ms=due_ms)["changed"] == [held]
    world.rebuild()
    assert next_outcome(world, Kind.DONE) == first
    if act == "reschedule":
        pass_ms(world, 4999)
        assert not world.running()
        pass_ms(world, 2)
    assert work_off(world) == [held]


@pytest.mark.parametrize("taken_over", [False, True])
def test_what_is_due_in_a_parked_ticket_waits_and_takes_its_place_at_the_release(*, taken_over: bool) -> None:
    world = begin()
    delayed = world.push_delayed("T", world.now + 1000)
    world.read()
    world.order(do="park", ticket="T")
    before = world.push("T", count=2)
    world.read()
    pass_ms(world, 1001)
    after = world.push("T", count=2)
    world.read()
    assert not world.running()
    assert not world.store.delayed
    if taken_over:
        world.rebuild()
    world.check()
    assert not world.running()
    world.order(do="release", ticket="T")
    assert work_off(world) == [*before, delayed, *after]


@pytest.mark.parametrize("taken_over", [False, True])
def test_what_was_cut_off_with_its_worker_comes_again_before_later_messages(*, taken_over: bool) -> None:
    world = LaneWorld(clocked=True, bundle_ms=0.0)
    life = world.join("w1@h", 1)
    delayed = world.push_delayed("T", world.now + 1000)
    world.read()
    pass_ms(world, 1001)
    [(parcel, _)] = world.running()
    assert parcel.runs["T"][1] == [delayed]
    later = world.push("T", count=2)
    world.read()
    world.leave(life)
    if taken_over:
        world.rebuild()
    world.check()
    assert set(world.store.late) == {delayed}
    world.join("w2@h", 1)
    ticket = world.lane.tickets["T"]
    assert ticket.run[0].id == delayed
    # A rollback needs to know what was cut off.
    assert ticket.lost is not None
    assert work_off(world) == [delayed, *later]


def test_a_newer_version_waits_for_a_message_of_the_older_one_from_when_it_is_moved() -> None:
    chain = Chain()
    older = chain.lanes[0]
    delayed = Message("1-0", "T", "task", b"{}")
    delayed.options = MessageOptions(due_ms=5000)
    with chain.places[0].turn():
        older.ingest(delayed, Batch())
    # It is not due: the newer version goes on.
    newer = chain.ingest(1, "T")
    assert (chain.ready(0), chain.ready(1)) == ([], ["T"])
    chain.dispatch(1, newer)
    chain.done(1, newer)
    # It is due
    with chain.places[0].turn():
        older.read_to = (1, 0)
        older.take_late(delayed, Batch(), moved=True)
    chain.ingest(1, "T")
    assert (chain.ready(0), chain.ready(1)) == (["T"], [])
    assert id_text(older.read_to) == "1-0"
    first = older.tickets["T"]
    chain.dispatch(0, first)
    chain.done(0, first)
    assert chain.ready(1) == ["T"]


# -- orders about delayed messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["cancel", "reschedule"])
def test_what_an_order_changed_is_not_moved_in_the_same_step(act: str) -> None:
    # Given an order that is read when its message is due: an order is behind a slow command, say
    world = begin()
    id_ = world.push_delayed("T", world.now + 1000)
    world.read()
    world.now += 1000
    later_ms = world.now + 60_000
    ordered = {"do": "delayed", "act": act, "ids": [id_]} | ({"due_ms": later_ms} if act == "reschedule" else {})
    batch = Batch()
    with world.patched():
        world.operator_orders._take(Notice("1-1", EntryKind.ORDER, "order", orjson.dumps(ordered), ()), batch)
    assert world.operator_orders._answers.pop()[1]["changed"] == [id_]
    world.now += 1
    world.move_due(batch)
    batch.orders.clear()  # the store knows no entries of orders
    world.advance(batch)
    # Then it does not run
    assert not world.running()
    pass_ms(world, 1)
    assert not world.running()
    assert [*world.store.acknowledged] == ([id_] if act == "cancel" else [])
    if act == "reschedule":
        pass_ms(world, 60_000)
        assert work_off(world) == [id_]


@given(st.integers(1, 20), st.sets(st.integers(0, 19)), st.booleans(), st.booleans())
def test_what_was_cancelled_does_not_come_back_when_its_ticket_is_parked(
    count: int, cancelled: set[int], by_park: bool, taken_over: bool
) -> None:
    # Given a ticket that waits for several messages
    world = begin()
    held = [world.push_delayed("T", world.now + 60_000, hold=True) for _ in range(count)]
    world.read()
    gone = [held[n] for n in sorted(cancelled) if n < count]
    if gone:
        assert world.order(do="delayed", act="cancel", ids=gone)["changed"] == gone
    if taken_over:
        world.rebuild()
    if by_park:
        world.order(do="park", ticket="T")
        world.check()
        world.order(do="release", ticket="T")
    world.check()
    pass_ms(world, 60_001)
    assert work_off(world) == [id_ for id_ in held if id_ not in gone]


def test_what_is_in_flight_is_not_cancelled_after_the_clock_of_the_server_was_set_back() -> None:
    world = begin()
    id_ = world.push_delayed("T", world.now + 1000, hold=True)
    world.read()
    pass_ms(world, 1001)
    assert world.running()
    world.times.steps_ms = -3_600_000
    answer = world.order(do="delayed", act="cancel", ids=[id_])
    assert answer == {"ok": True, "changed": [], "refused": [(id_, f"message {id_} has begun")]}
    assert next_outcome(world, Kind.DONE) == id_


# -- messages that can not be handled any more -------------------------------------------------------------------------


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 2000), st.integers(0, 1), st.integers(0, 3)), max_size=6),
    st.sampled_from([0, 900, 2500]),
    st.booleans(),
    st.booleans(),
)
def test_nothing_of_a_delayed_message_stays_that_was_deleted_or_is_not_wanted_any_more(
    pushed: list[tuple[bool, int, int, int]], passed_ms: int, parked: bool, elsewhere: bool
) -> None:
    world = LaneWorld(clocked=True, bundle_ms=0.0)
    ids = [world.push_delayed(f"T{t}", world.now + 1 + due, hold=hold) for hold, due, t, _ in pushed]
    world.read()
    if parked:
        world.order(do="park", ticket="T0")
    pass_ms(world, passed_ms)
    for id_, (*_, fate) in zip(ids, pushed, strict=True):
        if fate == 0:
            world.store.entries[id_] = []
        elif fate == 1:
            world.store.entries[id_][3] = b"elsewhere"
    if elsewhere:
        # A subscription leaves such a message out; without others it is refused.
        world.parser = EntryParser(default_task=None, max_payload=1000, known_tasks=[*TASKS], elsewhere=["elsewhere"])
    world.rebuild()
    world.join("w1@h", 1)
    if parked:
        world.order(do="release", ticket="T0")
    for _ in range(5):
        pass_ms(world, 1000)
    while running := world.running():
        with patch.object(world, "task_of", lambda _id: "short"):
            world.step([world.outcome(*one, Kind.DONE) for one in running])
        pass_ms(world, 1000)
    assert [*world.store.pending, *world.store.late, *world.store.delayed, *world.store.holding] == []
