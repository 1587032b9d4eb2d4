"""What a failure, a loss or a new leader changes in what is sent next."""

from __future__ import annotations

import pytest

from bridge.protocol.outcomes import Kind
from bridge.routing.ids import id_key
from tests.unit.leader.known_times import world
from tests.unit.leader.lane_world import TASKS


def test_a_failure_waits_first_of_its_ticket_and_others_go_on() -> None:
    lane = world(bundle_ms=0.0)
    lane.join("w1@h")
    bad = lane.push("bad", count=3)
    good = lane.push("good", count=3)
    lane.read()
    failing = next((p, t) for p, t in lane.running() if t == "bad")
    lane.step([lane.outcome(*failing, Kind.FAILED, delay_ms=1000)])
    while lane.running():
        lane.step([lane.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in lane.running()])
    assert lane.store.done == good
    lane.now += 1000
    lane.step()
    while lane.running():
        lane.step([lane.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in lane.running()])
    assert lane.store.done == [*good, *bad]


def test_after_the_last_attempt_a_message_is_dead_and_its_ticket_goes_on() -> None:
    lane = world(max_attempts=3)
    lane.join("w1@h")
    ids = lane.push("T", count=2)
    lane.read()
    for attempt in range(1, 4):
        [(parcel, ticket)] = lane.running()
        assert lane.lane.tickets["T"].attempt == attempt
        lane.step([lane.outcome(parcel, ticket, Kind.FAILED, delay_ms=10)])
        lane.now += 10
        lane.step()
    assert lane.store.dead == ids[:1]
    assert lane.lane.tickets["T"].attempt == 1
    [(parcel, ticket)] = lane.running()
    lane.step([lane.outcome(parcel, ticket, Kind.DONE)])
    assert lane.store.done == ids[1:]
    assert lane.lane.tickets == {}


def test_unstarted_messages_are_not_charged_and_retries_keep_their_attempts() -> None:
    lane = world(max_attempts=3)
    lane.join("w1@h")
    lane.push("T")
    lane.read()
    for kind, attempt in ((Kind.RETURNED, 1), (Kind.FAILED, 2), (Kind.RETURNED, 2), (Kind.RETURNED, 2)):
        [(parcel, ticket)] = lane.running()
        lane.step([lane.outcome(parcel, ticket, kind, delay_ms=0)])
        lane.step()
        lane.check()
        assert lane.lane.tickets["T"].attempt == attempt
    # And a new leader knows them, too
    lane.rebuild()
    assert lane.lane.tickets["T"].attempt == 2


def test_a_retry_that_is_given_back_without_room_keeps_its_attempts_under_a_new_leader() -> None:
    # Given a second attempt that the only worker gives back when it leaves
    lane = world(max_attempts=3)
    home = lane.join("w1@h")
    lane.push("T")
    lane.read()
    lane.step([lane.outcome(*lane.running()[0], Kind.FAILED, delay_ms=0)])
    lane.lane.consumers[home].alive = False
    del lane.registered[home]
    lane.step([lane.outcome(*lane.running()[0], Kind.RETURNED)])
    lane.check()
    # When another leader reads the lane, then it is still the second attempt
    lane.rebuild()
    lane.check()
    assert lane.lane.tickets["T"].attempt == 2
    lane.join("w2@h")
    assert lane.running()


def test_a_broken_entry_changes_nothing_for_others() -> None:
    lane = world()
    lane.join("w1@h")
    first = lane.push("T")
    broken = lane.push("T", payload=b"{")
    last = lane.push("T")
    lane.read()
    assert lane.store.dead == broken
    while lane.running():
        lane.step([lane.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in lane.running()])
    assert lane.store.done == [*first, *last]


def test_fences_of_a_ticket_grow_over_retries_moves_and_leaders() -> None:
    lane = world()
    homes = [lane.join("w1@h"), lane.join("w2@h")]
    lane.push("T", count=4)
    lane.read()
    fences = []
    for turn in range(6):
        [(parcel, ticket)] = lane.running()
        fences.append(parcel.runs[ticket][0])
        if turn == 2:
            lane.leave(parcel.incarnation)
            homes.remove(parcel.incarnation)
        elif turn == 3:
            lane.rebuild()
            lane.step([lane.outcome(parcel, ticket, Kind.RETURNED)])
        else:
            lane.step([lane.outcome(parcel, ticket, Kind.FAILED, delay_ms=0)])
        lane.step()
        lane.now += 1
        lane.step()
        lane.check()
    assert fences == sorted(set(fences))


def test_the_measured_time_follows_what_is_measured() -> None:
    lane = world(measured=False)
    lane.join("w1@h")
    for _ in range(60):
        lane.push("T", "middle")
        lane.read()
        [(parcel, ticket)] = lane.running()
        lane.step([lane.outcome(parcel, ticket, Kind.DONE)])
    assert lane.lane.service_ms["middle"] == pytest.approx(TASKS["middle"])
    lane.lane.service_ms["middle"] = 1000.0
    for _ in range(80):
        lane.push("T", "middle")
        lane.read()
        [(parcel, ticket)] = lane.running()
        lane.step([lane.outcome(parcel, ticket, Kind.DONE)])
    assert lane.lane.service_ms["middle"] == pytest.approx(TASKS["middle"], rel=0.1)


def test_results_come_in_any_order_of_tickets_but_in_one_order_each() -> None:
    lane = world(window=10_000)
    lane.join("w1@h", slots=2)
    lane.join("w2@h", slots=2)
    for i in range(300):
        lane.push(f"T{i % 7}", "short")
    lane.read()
    while lane.running():
        lane.step([lane.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in reversed(lane.running())])
    assert len(lane.store.done) == 300
    for i in range(7):
        mine = [id_key(id_) for id_ in lane.store.done if lane.ticket_of(id_) == f"T{i}"]
        assert mine == sorted(mine)
