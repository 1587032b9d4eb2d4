"""Manual changes of a lane under load are noticed, repaired and counted. No message is lost, repeated or reordered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bridge.operate.orders import give
from bridge.protocol.orders import ORDERS, Park
from bridge.routing.ids import LAST_ID, id_key
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard, broker_environment
from bridge.testing.nodes.process import python_module
from bridge.testing.waiting import wait_until
from tests.integration.lanes import APP, Kept, LaneUnderTest, begun

TICKETS = 10
EACH = 20
TASK_MS = 20
#: Of calm lanes, in seconds.
CALM_LEASE = "6"


@pytest.fixture
def lane(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path)


@pytest.fixture(scope="module")
def kept(valkey_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept[LaneUnderTest]]:
    with closing(Kept(valkey_binary, tmp_path_factory, partial(begun, COUNTER_LEASE=CALM_LEASE))) as made:
        yield made


@pytest.fixture
def calm_lane(kept: Kept[LaneUnderTest]) -> Iterator[LaneUnderTest]:
    """A calm lane with a master and a worker."""
    yield from kept.lend()


def waiting(lane: LaneUnderTest) -> list[str]:
    return lane.in_flight("master")


def calm(lane: LaneUnderTest) -> LaneUnderTest:
    """A lane whose workers keep their lease when the machine pauses for a second, so that no message runs again."""
    lane.env["COUNTER_LEASE"] = CALM_LEASE
    return lane


def patient(lane: LaneUnderTest) -> LaneUnderTest:
    """A lane whose worker keeps its lease while a test has it frozen. Else the leader would take its messages back."""
    lane.env["COUNTER_LEASE"] = "12"
    return lane


def under_load(lane: LaneUnderTest, deed: Callable[[], object], *, repeated: int = 0) -> None:
    """Changes something by hand in the middle of a load. Then everything must be as if nothing had happened.

    Half of the load waits for the change, so that some messages run and some wait, however late it comes.
    """
    lane.push_many(TICKETS, EACH, ms=TASK_MS, gate="changed")
    total = TICKETS * EACH
    wait_until(lambda: lane.count("done") > total // 4, description="a quarter of the load to be done", timeout_s=90)
    deed()
    lane.open("changed")
    lane.wait_done(total)
    lane.assert_logs(TICKETS, EACH)
    lane.assert_no_overlap()
    lane.assert_at_rest()
    assert lane.dead_letters() == []
    assert lane.executions() <= total + repeated


def destroy_group(lane: LaneUnderTest) -> None:
    lane.redis.xgroup_destroy(lane.keys.stream, lane.keys.group)


def remake_group(lane: LaneUnderTest) -> None:
    with lane.redis.pipeline(transaction=True) as pipe:
        pipe.xgroup_destroy(lane.keys.stream, lane.keys.group)
        pipe.xgroup_create(lane.keys.stream, lane.keys.group, "0")
        pipe.execute()


def set_group_back(lane: LaneUnderTest) -> None:
    lane.redis.xgroup_setid(lane.keys.stream, lane.keys.group, "0")


def set_group_forward(lane: LaneUnderTest) -> None:
    lane.redis.xgroup_setid(lane.keys.stream, lane.keys.group, "$")


def forget_worker(lane: LaneUnderTest) -> None:
    [name] = [str(name) for name in lane.redis.hkeys(lane.keys.consumers)]
    lane.redis.xgroup_delconsumer(lane.keys.stream, lane.keys.group, name)


def forget_master(lane: LaneUnderTest) -> None:
    lane.redis.xgroup_delconsumer(lane.keys.stream, lane.keys.group, "master")


def acknowledge_everything(lane: LaneUnderTest) -> None:
    found: Any = lane.redis.xpending_range(lane.keys.stream, lane.keys.group, "-", "+", 10_000)
    lane.redis.xack(lane.keys.stream, lane.keys.group, *[entry["message_id"] for entry in found])


def claim_everything(lane: LaneUnderTest) -> None:
    found: Any = lane.redis.xpending_range(lane.keys.stream, lane.keys.group, "-", "+", 10_000)
    ids = [entry["message_id"] for entry in found]
    lane.redis.xclaim(lane.keys.stream, lane.keys.group, "stranger", 0, ids)


@pytest.mark.parametrize(
    ("deed", "counter"),
    [
        (destroy_group, "regrouped"),
        pytest.param(remake_group, None, marks=pytest.mark.long),
        (set_group_back, "tampered"),
        pytest.param(set_group_forward, None, marks=pytest.mark.long),
        pytest.param(forget_worker, "tampered", marks=pytest.mark.long),
        (forget_master, "tampered"),
        (acknowledge_everything, "tampered"),
        # Counted only if the pending list is compared before all messages are done: a claim alone does no harm.
        pytest.param(claim_everything, None, marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_manual_changes_are_repaired(calm_lane: LaneUnderTest, deed: Any, counter: str | None) -> None:
    lane = calm_lane

    under_load(lane, lambda: deed(lane))

    if counter is not None:
        wait_until(lambda: lane.count(counter) > 0, description=f"it to be counted as {counter}")
    group: Any = lane.redis.xinfo_consumers(lane.keys.stream, lane.keys.group)
    assert "stranger" not in [entry["name"] for entry in group if entry["pending"]]


def test_waiting_messages_survive_a_leader_of_another_master_name(lane: LaneUnderTest) -> None:
    master = calm(lane).master("m1")
    lane.worker("w1", "--concurrency=1")

    def kill_and_forget() -> None:
        wait_until(lambda: lane.redis.exists(lane.keys.floor), description="how far all is done to be noted")
        master.kill_main()
        master.wait()
        forget_master(lane)
        master.start()

    under_load(lane, kill_and_forget)

    assert lane.count("regrouped") == 1


@pytest.mark.parametrize("deed", [acknowledge_everything, pytest.param(set_group_forward, marks=pytest.mark.long)])
def test_manual_changes_without_a_leader_are_repaired(lane: LaneUnderTest, deed: Any) -> None:
    # One message of a ticket at a time, so that some always wait
    lane.env["COUNTER_BUNDLE_MS"] = "0"
    master = calm(lane).master("m1")
    worker = lane.worker("w1", "--concurrency=1")
    lane.wait_consumers(1)
    # Given messages that were done, some that wait behind one that runs, and some that were pushed and never read
    lane.push_many(2, 3)
    lane.wait_done(6)
    wait_until(lambda: lane.redis.exists(lane.keys.floor), description="how far all is done to be noted")
    worker.pause()
    lane.push_many(2, 4, first=3)
    wait_until(lambda: len(waiting(lane)) >= 4, description="some to wait")
    master.kill_main()
    master.wait()
    lane.push_many(2, 3, first=7)
    # When they are removed from the pending list, or skipped by the group, and then a master leads
    deed(lane)
    worker.resume()
    master.start()
    # Then each is done once, in order
    lane.wait_done(20)
    lane.assert_logs(2, 10)
    lane.assert_no_overlap()
    assert lane.executions() == 20
    # The waiting ones are counted when they are repaired, those in flight at the leader's next check
    wait_until(lambda: lane.count("tampered") >= 4, description="it to be counted")
    lane.assert_at_rest()


@pytest.mark.parametrize("why", ["rests", "is stranded"])
def test_what_is_taken_from_a_ticket_without_messages_in_memory_is_pending_again(lane: LaneUnderTest, why: str) -> None:
    # Given a ticket that waits for a backoff, or for a consumer that can run its task, and more messages of it
    calm(lane).master("m1")
    lane.worker("w1", "--concurrency=1")
    lane.wait_consumers(1)
    task, payload = ("counter.asks_again", {"countdown": 8, "n": 0}) if why == "rests" else ("nobody.has.it", {"n": 0})
    ids = [lane.push("A", payload, task)]
    if why == "rests":
        wait_until(lambda: lane.redis.zcard(lane.keys.retries) == 1, description="the retry")
    ids += [lane.push("A", {"n": n}) for n in range(1, 4)]
    wait_until(lambda: lane.in_flight("master") == ids, description="all to wait")
    # When all are acknowledged by hand, then all are pending again
    acknowledge_everything(lane)
    wait_until(lambda: lane.in_flight("master") == ids, description="all to wait again")
    if why == "rests":
        lane.wait_done(4)
        assert lane.log("A") == [0, 1, 2, 3]
        lane.assert_at_rest()
    else:
        assert lane.redis.xlen(lane.keys.stream) == 4


@pytest.mark.parametrize("ended", [0, 1], ids=["no message has ended", "one has, which is younger"])
def test_manual_changes_without_a_leader_are_repaired_in_a_lane_that_is_as_young_as_its_messages(
    lane: LaneUnderTest, ended: int
) -> None:
    lane.env["COUNTER_BUNDLE_MS"] = "0"
    master = calm(lane).master("m1")
    worker = lane.worker("w1", "--concurrency=2")
    lane.wait_consumers(1)
    # Given messages that wait behind one that runs, and a history that is empty, or begins later
    lane.push("A", {"n": 0, "gate": "gate"}, task="counter.held")
    for n in range(1, 4):
        lane.push("A", {"n": n})
    wait_until(lambda: len(waiting(lane)) == 3 and lane.held(), description="three to wait")
    if ended:
        lane.push("B", {"n": 0})
        lane.wait_done(1)
    master.kill_main()
    master.wait()
    # When all are acknowledged by hand, and then a master leads
    acknowledge_everything(lane)
    master.start()
    lane.wait_leader()
    wait_until(lambda: lane.count("tampered") >= 3, description="three to be pending again")
    lane.open("gate")
    # Then each is done once, in order
    lane.wait_done(4 + ended)
    assert lane.log("A") == [0, 1, 2, 3]
    assert lane.executions() == 4 + ended
    assert worker.running
    lane.assert_at_rest()


@pytest.mark.parametrize("destroyed", [False, True], ids=["the leader is lost", "and the group, too"])
def test_what_was_there_before_a_group_began_is_not_handled_when_its_first_leader_is_lost_at_once(
    lane: LaneUnderTest, destroyed: bool
) -> None:
    # Given entries that came before the group, as those before `bridge subscription add NAME --from now`
    for n in range(3):
        lane.push("A", {"n": n})
    lane.redis.xgroup_create(lane.keys.stream, lane.keys.group, "$")
    lane.worker("w1", "--concurrency=2")
    lane.push("A", {"n": 3, "gate": "gate"}, task="counter.held")
    # When its first leader ends as soon as it has dispatched something, before it has looked at anything else
    master = calm(lane).master("m1")
    wait_until(lane.held, description="the message to run")
    master.kill_main()
    master.wait()
    if destroyed:
        lane.redis.xgroup_destroy(lane.keys.stream, lane.keys.group)
    # Then the next one handles what came after the group began, and nothing else
    master.start()
    lane.wait_leader()
    lane.push("A", {"n": 4})
    lane.open("gate")
    lane.wait_done(2)
    lane.assert_at_rest()
    assert lane.log("A") == [3, 4]
    assert destroyed or lane.count("tampered") == 0


def test_messages_done_without_history_are_not_done_again(lane: LaneUnderTest) -> None:
    # Given a parked ticket, which keeps the floor where it is, and an entry that was done without a history
    lane.env["COUNTER_RETENTION"] = "null"
    master = calm(lane).master("with-history")
    lane.worker("w1", "--pool=solo")
    lane.wait_consumers(1)
    parked = lane.push("A", {"countdown": 60, "n": 0}, task="counter.asks_again")
    wait_until(lambda: lane.redis.zcard(lane.keys.retries) == 1, description="the retry")
    assert give(lane.server.client(), lane.keys, Park("A"))["ok"]
    lane.push("B", {"n": 0})
    lane.wait_done(1)
    wait_until(
        lambda: (floor := lane.redis.get(lane.keys.floor)) is not None and id_key(str(floor)) < id_key(parked),
        description="it to be noted that not all is done that was",
    )
    assert master.terminate() == 0
    master = lane.master("without", COUNTER_HISTORY="0")
    lane.push("B", {"n": 1})
    lane.wait_done(2)
    assert master.terminate() == 0
    # When the history is written again
    lane.master("with-history-again")
    lane.push("B", {"n": 2})
    lane.wait_done(3)
    # Then messages that it does not contain stay done
    assert lane.log("B") == [0, 1, 2]
    assert lane.executions() == 3
    assert lane.count("tampered") == 0


@pytest.mark.parametrize("deed", [destroy_group, pytest.param(remake_group, marks=pytest.mark.long)])
def test_without_a_history_a_group_that_is_made_again_gets_no_dead_message(lane: LaneUnderTest, deed: Any) -> None:
    # Given a ticket whose first message runs, so that the floor stays before it, and then messages that are dead
    lane.env |= {"COUNTER_HISTORY": "0", "COUNTER_RETENTION": "null", "COUNTER_MAX_ATTEMPTS": "1"}
    calm(lane).master("m1")
    lane.worker("w1", "--concurrency=2")
    lane.wait_consumers(1)
    lane.push("A", {"n": 0, "gate": "gate"}, task="counter.held")
    wait_until(lane.held, description="it to run")
    dead = [lane.push(f"B{n}", {"n": 0, "until": 9}, task="counter.auto") for n in range(3)]
    dead.append(str(lane.redis.xadd(lane.keys.stream, {"ticket_id": "C", "payload": "no JSON"})))
    wait_until(lambda: lane.count("dead") == 4, description="the letters")
    # When the group is made again
    deed(lane)
    wait_until(lambda: lane.count("regrouped") == 1, description="it to be repaired")
    lane.open("gate")
    lane.push("D", {"n": 0})
    wait_until(lambda: lane.log("A") == lane.log("D") == [0], description="the rest")
    # Then each has one letter
    assert sorted(letter["message_id"] for letter in lane.dead_letters()) == sorted(dead)
    assert lane.count("dead") == 4


def acknowledge(lane: LaneUnderTest, shelf: str) -> None:
    lane.redis.xack(lane.keys.stream, lane.keys.group, *lane.in_flight(shelf)[:3])


def forget(lane: LaneUnderTest, shelf: str) -> None:
    lane.redis.xgroup_delconsumer(lane.keys.stream, lane.keys.group, shelf)


@pytest.mark.parametrize(
    ("deed", "seen_by"),
    [
        (acknowledge, "the look"),
        (acknowledge, "the release"),
        (acknowledge, "the next leader"),
        pytest.param(forget, "the look", marks=pytest.mark.long),
        pytest.param(forget, "the release", marks=pytest.mark.long),
        (forget, "the next leader"),
    ],
)
def test_an_entry_taken_from_a_parked_ticket_is_pending_there_again(
    lane: LaneUnderTest, deed: Callable[[LaneUnderTest, str], None], seen_by: str
) -> None:
    master = lane.master("m1")
    lane.worker("w1", "--pool=solo")
    lane.wait_consumers(1)
    shelf = lane.keys.parked_consumer("master", "A")

    def order(do: str, **fields: Any) -> None:
        assert give(lane.server.client(), lane.keys, ORDERS[do](**fields))["ok"]

    # Given a parked ticket whose first message awaited a retry, with others before it: one done, and one that was dead
    # and put back; what was done in between must not be done again
    dead = lane.push("A", {"n": 0, "until": 99}, task="counter.flaky")
    lane.push("A", {"n": 1})
    begun = lane.push("A", {"countdown": 60, "n": 2}, task="counter.asks_again")
    wait_until(lambda: lane.redis.zcard(lane.keys.retries) == 1 and lane.dead_letters(), description="the retry")
    order("park", ticket="A")
    later = [lane.push("A", {"n": n}) for n in range(3, 6)]
    order("replay", letters=[str(id_) for id_, _ in lane.redis.xrange(lane.keys.dead)])  # type: ignore[union-attr]
    there = sorted([dead, begun, *later])
    wait_until(lambda: lane.in_flight(shelf) == there, description="all that is undone to be set aside")
    # When some of its messages, or all, are removed from the pending list by hand
    if seen_by == "the next leader":
        wait_until(
            lambda: (floor := lane.redis.get(lane.keys.floor)) is not None and id_key(str(floor)) < id_key(dead),
            description="it to be noted that not all is done that was",
        )
        master.kill_main()
        master.wait()
    deed(lane, shelf)
    if seen_by == "the next leader":
        master.start()
    # Then they are pending there again, and the ticket goes on as before
    if seen_by != "the release":
        wait_until(lambda: lane.in_flight(shelf) == there, description="all of it to be pending there again")
    order("release", ticket="A")
    wait_until(lambda: lane.log("A") == [1, 2, 3, 4, 5], description="all to be done, each once")
    lane.wait_done(6)
    wait_until(lambda: lane.count("tampered") > 0, description="it to be counted")
    lane.assert_at_rest()


def test_a_purge_delays_messages_and_loses_none(lane: LaneUnderTest) -> None:
    patient(lane).master("m1")
    worker = lane.worker("w1", "--concurrency=1")
    queue = lane.keys.queue(worker.hostname())
    # A full queue: purge deletes the messages that are in it at that moment
    worker.pause()
    lane.push_many(3, 5)
    wait_until(lambda: lane.redis.llen(queue) > 0, description="the worker's queue to fill")
    purge = lane.nodes.process(
        "purge",
        python_module("celery", "-A", APP, "purge", "-f", "-Q", queue),
        env={**lane.env, **broker_environment(lane.server.url)},
        wait=False,
    )
    assert purge.wait() == 0
    assert lane.redis.llen(queue) == 0
    worker.resume()

    lane.wait_done(15)

    lane.assert_logs(3, 5)
    lane.assert_at_rest()


# The queue of one message is gone when that is popped, too.
@pytest.mark.parametrize("how", ["deleted", pytest.param("popped", marks=pytest.mark.long)])
def test_a_message_that_never_reaches_its_worker_goes_out_again(lane: LaneUnderTest, how: str) -> None:
    patient(lane).master("m1")
    worker = lane.worker("w1", "--concurrency=1")
    lane.wait_consumers(1)
    queue = lane.keys.queue(worker.hostname())
    # By another task. If the first run of a process was slow, the worker would get no second message of its task
    lane.push("A", {"n": 0, "until": 1}, task="counter.flaky")
    lane.wait_done(1)
    worker.pause()
    # If the worker waits for a message, the server sends it one at once. The other one stays in the queue, or both do
    lane.push("B", {"n": 0})
    wait_until(lambda: lane.in_flight(worker.hostname()), description="the first message to be sent")
    lane.push("A", {"n": 1})
    wait_until(lambda: len(lane.in_flight(worker.hostname())) == 2, description="the second message to be sent")
    assert lane.redis.llen(queue) in (1, 2)
    if how == "deleted":
        lane.redis.delete(queue)
    else:
        assert lane.redis.rpop(queue)
    worker.resume()
    lane.push("A", {"n": 2})

    lane.wait_done(4)

    assert (lane.log("A"), lane.log("B")) == ([0, 1, 2], [0])
    assert lane.count("lost") >= 1 or lane.count("rerouted") >= 1
    lane.assert_at_rest()


def test_entries_that_are_deleted_while_they_wait_are_handled_or_reported(lane: LaneUnderTest) -> None:
    lane.master("m1")
    worker = lane.worker("w1", "--concurrency=1")
    lane.wait_consumers(1)
    lane.push("A", {"n": 0, "gate": "open"}, "counter.held")
    later = [lane.push("A", {"n": n}) for n in range(1, 6)]
    awaits = lane.push("B", {"n": 0, "until": 2}, task="counter.flaky")
    wait_until(lambda: set(later) <= set(waiting(lane)), description="the later ones to wait")
    # Read as well: an entry that is deleted before it is read leaves no trace.
    wait_until(
        lambda: awaits in {*waiting(lane), *lane.in_flight(worker.hostname())}, description="the last one to be read"
    )

    lane.redis.xdel(lane.keys.stream, *later[:2], awaits)
    lane.open("open")

    lane.wait_done(7)
    # They were in memory. Each is done or dead, once and in order
    found = lane.log("A")
    assert found == sorted(set(found))
    assert len(found) + len(lane.log("B")) + len(lane.dead_letters()) == 7
    lane.assert_at_rest()


@pytest.mark.parametrize("deed", [forget_worker, pytest.param(acknowledge_everything, marks=pytest.mark.long)])
def test_beside_a_deleted_entry_the_others_in_flight_are_repaired_as_before(lane: LaneUnderTest, deed: Any) -> None:
    # Given messages in flight at one worker, of which one was deleted from the stream
    patient(lane).master("m1")
    worker = lane.worker("w1", "--concurrency=1")
    lane.wait_consumers(1)
    worker.pause()
    ids = [lane.push(f"T{n}", {"n": 0}) for n in range(4)]
    [name] = [str(name) for name in lane.redis.hkeys(lane.keys.consumers)]
    wait_until(lambda: set(lane.in_flight(name)) & set(ids), description="some in flight")
    wait_until(lambda: lane.redis.xpending(lane.keys.stream, lane.keys.group)["pending"] == 4, description="all read")
    flying = lane.in_flight(name)
    assert len(flying) > 1
    lane.redis.xdel(lane.keys.stream, flying[0])
    # When somebody takes them all from the pending list, twice
    for _ in range(2):
        deed(lane)
        # Then those that were not deleted are pending again
        wait_until(lambda: set(flying[1:]) <= set(lane.in_flight(name)), description="a repair")
    worker.resume()
    wait_until(lambda: sum(len(lane.log(f"T{n}")) for n in range(4)) >= 3, description="the others")
    assert lane.executions() <= 4


def test_deleted_entries_are_dead_letters_for_the_next_leader(lane: LaneUnderTest) -> None:
    master = lane.master("m1")
    lane.worker("w1", "--concurrency=2")
    lane.wait_consumers(1)
    lane.push("A", {"n": 0, "gate": "open"}, "counter.held")
    later = [lane.push("A", {"n": n}) for n in range(1, 6)]
    slow = lane.push("B", {"countdown": 3600, "n": 0}, task="counter.asks_again")
    lane.push("B", {"n": 1})
    wait_until(lambda: set(later) <= set(waiting(lane)), description="the later ones to wait")
    wait_until(lambda: lane.redis.zcard(lane.keys.retries) == 1, description="the slow one to await its retry")

    master.kill_main()
    master.wait()
    lane.redis.xdel(lane.keys.stream, *later[1:3], slow)
    # The backoff ends then, and not before the entries are gone
    found: Any = lane.redis.zrange(lane.keys.retries, 0, -1)
    lane.redis.zadd(lane.keys.retries, {found[0]: time.time() * 1000}, xx=True)
    lane.open("open")
    master.start()

    lane.wait_done(8)
    letters = {letter["message_id"] for letter in lane.dead_letters()}
    assert letters == {*later[1:3], slow}
    assert lane.log("A") == [0, 1, 4, 5]
    assert lane.log("B") == [1]
    lane.assert_at_rest()


def test_a_deleted_stream_is_made_again(lane: LaneUnderTest) -> None:
    lane.master("m1")
    lane.worker("w1")
    lane.push_many(3, 5)
    lane.wait_done(15)

    lane.redis.delete(lane.keys.stream)
    lane.push_many(3, 5, first=5)

    lane.wait_done(30)
    lane.assert_logs(3, 10)
    lane.assert_at_rest()


@pytest.mark.parametrize(
    ("ids", "refilled"),
    [
        ("own", "at once"),
        ("the clock's", "later"),
        pytest.param("own", "later", marks=pytest.mark.long),
        pytest.param("the clock's", "at once", marks=pytest.mark.long),
        pytest.param("own", "without a leader", marks=pytest.mark.long),
        pytest.param("the clock's", "without a leader", marks=pytest.mark.long),
    ],
)
def test_a_deleted_stream_that_begins_again_with_smaller_ids_is_read_from_its_beginning(
    lane: LaneUnderTest, ids: str, refilled: str
) -> None:
    master = calm(lane).master("m1")
    lane.worker("w1")
    # Given entries that were done, with ids that come again, and the last with one of a clock that counts in ns
    given = ["1-1", "1-2", f"{time.time_ns()}-0"]

    def add(n: int, id_: str) -> None:
        lane.redis.execute_command("XADD", lane.keys.stream, id_, "ticket_id", "T0", "payload", f'{{"n": {n}}}')

    for n, id_ in enumerate(given):
        add(n, id_)
    lane.wait_done(3)
    if refilled == "without a leader":
        wait_until(lambda: lane.redis.get(lane.keys.floor) == given[-1], description="the floor to be noted")
        master.kill_main()
        master.wait()
    # When the stream is deleted, and filled again
    lane.redis.delete(lane.keys.stream)
    if refilled == "later":
        wait_until(lambda: lane.count("regrouped"), description="the group to be made again")
    for n in range(3, 6):
        add(n, f"1-{n - 2}" if ids == "own" else "*")
    if refilled == "without a leader":
        master.start()
    # Then its messages are done, as are those that come later, and for the next leader as well
    lane.wait_done(6)
    wait_until(lambda: not lane.redis.xlen(lane.keys.stream), description="what is done to leave the stream")
    master.terminate()
    add(6, "*")
    master.start()
    lane.wait_done(7)
    lane.assert_logs(1, 7)
    assert lane.executions() == 7
    assert lane.dead_letters() == []
    lane.assert_at_rest()


def test_a_floor_that_was_noted_before_a_failover_lost_entries_costs_none(lane: LaneUnderTest) -> None:
    master = calm(lane).master("m1")
    lane.env["COUNTER_RETENTION"] = "null"
    lane.worker("w1")
    lane.push_many(2, 5)
    lane.wait_done(10)
    master.kill_main()
    master.wait()
    # Given a floor that is a little beyond the newest entry, while two others were pushed
    [(newest, _)] = lane.redis.xrevrange(lane.keys.stream, count=1)  # type: ignore[misc]
    ms, _ = id_key(str(newest))
    lane.redis.set(lane.keys.floor, f"{ms + 600_000}-0")
    lane.push_many(2, 1, first=5)
    # When a leader reads the lane, then they are done, and nothing else again
    master.start()
    lane.wait_done(12)
    lane.assert_logs(2, 6)
    assert lane.executions() == 12
    wait_until(
        lambda: id_key(str(lane.redis.get(lane.keys.floor))) < (ms + 600_000, 0), description="the floor to be noted"
    )
    lane.assert_at_rest()


def test_a_lane_whose_newest_entry_has_the_largest_id_is_led_on(lane: LaneUnderTest) -> None:
    """The largest possible id. A producer may choose it, and no entry can follow it."""
    master = calm(lane).master("m1")
    lane.worker("w1")
    lane.wait_consumers(1)
    # Given such an entry, which was done
    lane.redis.execute_command("XADD", lane.keys.stream, LAST_ID, "ticket_id", "T0", "payload", '{"n": 0}')
    lane.wait_done(1)
    wait_until(lambda: lane.redis.get(lane.keys.floor) == LAST_ID, description="how far all is done to be noted")

    # When the group is set back by hand, with and without a leader
    set_group_back(lane)
    wait_until(lambda: lane.count("tampered") > 0, description="the group to be put back")
    master.kill_main()
    master.wait()
    set_group_back(lane)
    master.start()

    # Then it is repaired, and no message runs again
    wait_until(lambda: lane.count("regrouped") > 0, description="the group to be put right")
    lane.assert_at_rest()
    lane.assert_logs(1, 1)


@pytest.mark.parametrize(
    "key",
    ["counts", "leader", *(pytest.param(name, marks=pytest.mark.long) for name in ("tickets", "stream", "queue"))],
)
def test_a_master_that_meets_a_key_of_another_type_ends_and_names_it(lane: LaneUnderTest, key: str) -> None:
    master = lane.master("m1")
    worker = lane.worker("w1")
    lane.wait_consumers(1)
    lane.push("T0", {"n": 0})
    lane.wait_done(1)

    # When a key of the lane is overwritten by hand, while a master leads
    name = lane.keys.queue(worker.hostname()) if key == "queue" else getattr(lane.keys, key)
    worker.pause()
    lane.redis.set(name, "not the lane's") if key != "leader" else lane.redis.eval(
        "redis.call('DEL', KEYS[1]) redis.call('LPUSH', KEYS[1], 'x')", 1, name
    )
    if key != "stream":
        lane.push("T1", {"n": 0})

    # Then the master ends, with one line
    assert master.wait(timeout_s=90) == 2
    errors = [line for line in master.logs().splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert f"the key {name} is a " in errors[0] or f"the key {name} is not a stream" in errors[0]
    assert "Traceback" not in master.logs()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        # Each key and each value once.
        pytest.param(key, value, id=f"{key}-{value!r}", marks=() if (n + m) % 3 == 0 else pytest.mark.long)
        for n, key in enumerate(("leader", "term", "fence"))
        for m, value in enumerate((b"", b"abc", b"\xff\xfe"))
    ],
)
def test_a_master_that_meets_a_string_of_another_form_ends_and_names_it(
    lane: LaneUnderTest, key: str, value: bytes
) -> None:
    master = lane.master("m1")
    lane.worker("w1")
    lane.wait_consumers(1)
    lane.push("T0", {"n": 0})
    lane.wait_done(1)

    # When it is written by hand while a master leads, and the next term begins
    name = getattr(lane.keys, key)
    lane.redis.set(name, value)
    if key != "leader":
        lane.redis.delete(lane.keys.leader)
    lane.push("T1", {"n": 0})

    # Then the master ends, with one line
    assert master.wait(timeout_s=90) == 2
    errors = [line for line in master.logs().splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert f"the key {name} holds " in errors[0]
    assert "Traceback" not in master.logs()
