"""Every failure of a message ends in a retry or a dead letter, and only its own ticket waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import WITH_AND_WITHOUT_BUNDLES, Kept, LaneUnderTest, kept_in_each_mode

kept = kept_in_each_mode(COUNTER_LEASE="6")


@pytest.fixture
def lane(kept: Kept[LaneUnderTest]) -> Iterator[LaneUnderTest]:
    """A lane with a master and a worker."""
    yield from kept.lend()


@pytest.fixture(params=WITH_AND_WITHOUT_BUNDLES)
def unled(request: pytest.FixtureRequest, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    """A lane with a worker, for tests that start a master of their own."""
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_BUNDLE_MS=request.param, COUNTER_LEASE="6")
    lane.worker("w1", wait=False)
    return lane


def warm(lane: LaneUnderTest, task: str = "counter.append") -> int:
    """Lets the master measure that the task is short. Returns how many messages that took."""
    for n in range(20):
        lane.push(f"warm{n % 4}", {"n": n // 4, "until": 1}, task)
    lane.wait_done(20)
    return 20


def test_a_failing_message_is_retried_and_its_ticket_waits_with_it(lane: LaneUnderTest) -> None:
    done = warm(lane, "counter.flaky")
    for n in range(5):
        lane.push("A", {"n": n, "until": 3 if n == 1 else 1}, "counter.flaky")
        lane.push("B", {"n": n, "until": 1}, "counter.flaky")

    lane.wait_done(done + 10)

    assert lane.log("A") == [0, 1, 2, 3, 4]
    assert lane.log("B") == [0, 1, 2, 3, 4]
    assert lane.count("failed") == 2
    assert lane.dead_letters() == []
    lane.assert_no_overlap()
    lane.assert_at_rest()


def test_after_max_attempts_it_is_dead_with_everything_and_its_ticket_goes_on(lane: LaneUnderTest) -> None:
    done = warm(lane, "counter.flaky")
    bad = lane.push("A", {"n": 0, "until": 99}, "counter.flaky")
    lane.push("A", {"n": 1, "until": 1}, "counter.flaky")

    lane.wait_done(done + 2)

    assert lane.log("A") == [1]
    [letter] = lane.dead_letters()
    assert letter["message_id"] == bad
    assert letter["ticket_id"] == "A"
    assert letter["task"] == "counter.flaky"
    assert letter["payload"] == '{"n": 0, "until": 99}'
    assert letter["attempts"] == "3"
    assert letter["error"] == "ValueError: attempt 3 fails"
    assert "counter.py" in letter["traceback"]
    lane.assert_at_rest()


def test_retry_with_a_countdown_waits_in_redis_first_of_its_ticket(lane: LaneUnderTest) -> None:
    id_ = lane.push("A", {"n": 0, "countdown": 3.0}, "counter.asks_again")
    lane.push("A", {"n": 1})

    due: Any = wait_until(
        lambda: lane.redis.zrange(lane.keys.retries, 0, -1, withscores=True), description="the retry to wait in Redis"
    )
    # It asked after it was pushed.
    assert due[0][1] - int(id_.partition("-")[0]) >= 3000
    assert lane.log("A") == []
    lane.wait_done(2)

    assert lane.log("A") == [0, 1]
    assert lane.count("failed") == 1


def test_celerys_autoretry_ends_in_the_same_path(lane: LaneUnderTest) -> None:
    lane.push("A", {"n": 0, "until": 2}, "counter.auto")
    lane.push("B", {"n": 0, "until": 99}, "counter.auto")

    lane.wait_done(2)

    assert lane.log("A") == [0]
    [letter] = lane.dead_letters()
    assert (letter["ticket_id"], letter["attempts"], letter["error"]) == ("B", "3", "KeyError: 'not yet'")


@pytest.mark.parametrize("task", ["counter.hard", "counter.soft"])
def test_a_time_limit_is_a_failed_attempt(lane: LaneUnderTest, task: str) -> None:
    done = warm(lane, task)
    lane.push("A", {"n": 0, "until": 2}, task)
    lane.push("A", {"n": 1, "until": 1}, task)
    lane.push("B", {"n": 0, "until": 1}, task)

    lane.wait_done(done + 3)

    assert lane.log("A") == [0, 1]
    assert lane.log("B") == [0]
    assert lane.count("failed") == 1
    lane.assert_at_rest()


def test_a_killed_pool_process_charges_the_message_that_ran_and_no_other(lane: LaneUnderTest) -> None:
    done = warm(lane, "counter.dies")
    lane.push("A", {"n": 0, "until": 99}, "counter.dies")
    for ticket in "BCDEFGH":
        for n in range(3):
            lane.push(ticket, {"n": n, "until": 1}, "counter.dies")

    lane.wait_done(done + 22)

    [letter] = lane.dead_letters()
    assert (letter["ticket_id"], letter["attempts"]) == ("A", "3")
    assert "WorkerLostError" in letter["error"]
    assert lane.count("failed") == 3
    for ticket in "BCDEFGH":
        assert lane.log(ticket) == [0, 1, 2]
    lane.assert_at_rest()


def test_reject_is_dead_at_once_and_ignore_is_done(lane: LaneUnderTest) -> None:
    lane.push("A", {}, "counter.rejects")
    lane.push("B", {}, "counter.ignores")
    lane.push("C", {"requeue": True}, "counter.rejects")

    lane.wait_done(3)

    attempts = {letter["ticket_id"]: letter["attempts"] for letter in lane.dead_letters()}
    assert attempts == {"A": "1", "C": "3"}
    assert lane.count("done") == 1


@pytest.mark.parametrize("task", ["counter.wrong_effect", "counter.wrong_effect_ignored"])
def test_effects_that_cannot_be_applied_fail_the_message_and_change_nothing(lane: LaneUnderTest, task: str) -> None:
    lane.redis.set("a-string:A", "text")
    lane.push("A", {"n": 0}, task)
    lane.push("B", {"n": 0}, task)

    lane.wait_done(2)

    assert lane.log("A") == []
    assert lane.log("B") == [0]
    [letter] = lane.dead_letters()
    assert "holds a string, not a list" in letter["error"]


def test_broken_messages_are_dead_at_once_and_delay_no_ticket(unled: LaneUnderTest) -> None:
    stream = unled.keys.stream
    raw = unled.server.client()
    raw.xadd(stream, {"payload": "{}"})
    raw.xadd(stream, {"ticket_id": "A", "payload": "{"})
    raw.xadd(stream, {"ticket_id": b"\xff", "payload": "{}"})
    raw.xadd(stream, {"ticket_id": "A", "payload": b"\xff"})
    raw.xadd(stream, {"ticket_id": "A", "payload": '"' + "x" * 1024 * 1024 + '"'})
    raw.xadd(stream, {"ticket_id": "A", "task": "no.such", "payload": "{}"})
    raw.xadd(stream, {"ticket_id": "A", "task": "bridge.bundle", "payload": "{}"})
    raw.xadd(stream, {"ticket_id": "A", "task": "celery.backend_cleanup", "payload": "{}"})
    raw.xadd(stream, {"ticket_id": "A", "payload": '{"n": NaN}'})
    raw.xadd(stream, {"ticket_id": "x" * 513, "payload": "{}"})
    unled.push("A", {"n": 0})
    unled.wait_consumers(1)
    unled.master("m1", COUNTER_UNKNOWN_AFTER="0.5")

    unled.wait_done(11)

    assert unled.log("A") == [0]
    letters: Any = raw.xrange(unled.keys.dead)
    reasons = [letter[b"reason"].decode() for _, letter in letters]
    assert reasons == [
        "no ticket_id",
        "payload is not JSON",
        "ticket_id is empty, longer than 512 bytes, or not UTF-8",
        "a field is not UTF-8",
        "payload is larger than bridge_max_payload",
        "unknown task",
        "unknown task",
        "payload is not JSON",
        "ticket_id is empty, longer than 512 bytes, or not UTF-8",
        # Another worker may have a task of this name later, so the message waited.
        "unknown task",
    ]
    unled.assert_at_rest()


def test_a_task_that_only_the_master_knows_is_dead_not_silent(unled: LaneUnderTest) -> None:
    unled.wait_consumers(1)
    unled.master("m1", COUNTER_EXTRA="1", COUNTER_UNKNOWN_AFTER="0.5")
    unled.push("A", {"n": 0}, "counter.extra")
    unled.push("A", {"n": 1})

    unled.wait_done(2)

    [letter] = unled.dead_letters()
    assert letter["ticket_id"] == "A"
    assert "counter.extra" in letter["error"]
    assert unled.log("A") == [1]
    unled.assert_at_rest()


def test_a_lost_celery_message_goes_out_again(unled: LaneUnderTest) -> None:
    unled.nodes.nodes[0].close()  # this test wants a lease of its own
    quick = LaneUnderTest(unled.nodes, unled.server, unled.ledger, **{**unled.env, "COUNTER_LEASE": "5"})
    quick.master("m1")
    worker = quick.worker("w2", "--concurrency=1")
    quick.wait_consumers(1)
    # It is not done before the worker is frozen. After a long task, the worker would get no message behind another one.
    quick.push("A", {"n": 0, "gate": "open"}, "counter.held")
    quick.push("B", {"n": 0})
    worker.pause()  # so that the message stays in its queue for a moment
    queue = quick.keys.queue(worker.hostname())
    # The server may hand one of these to a read that the worker had begun.
    quick.push("C", {"n": 0})
    quick.push("D", {"n": 0})
    try:
        wait_until(lambda: quick.redis.llen(queue) > 0, description="a message in the worker's queue", timeout_s=4.5)
    finally:
        quick.redis.delete(queue)
        unled.open("open")
        worker.resume()

    quick.wait_done(4)

    assert [quick.log(ticket) for ticket in "ABCD"] == [[0]] * 4
