"""What Celery's handlers, signals and results get for an attempt that was cut off: a retry, as long as the message runs
again.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, states
from celery.exceptions import TimeLimitExceeded, WorkerLostError

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import WITH_AND_WITHOUT_BUNDLES, LaneUnderTest


@pytest.fixture(params=WITH_AND_WITHOUT_BUNDLES)
def lane(request: pytest.FixtureRequest, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path, COUNTER_BUNDLE_MS=request.param)


#: The id in the events by which `events_of` finds out that it is heard.
PROBE = "probe"


@contextmanager
def events_of(app: Celery) -> Iterator[dict[str, list[str]]]:
    """Task id -> the kinds of its events, in order."""
    heard: dict[str, list[str]] = defaultdict(list)
    stop = threading.Event()
    # Celery imports its class here, not in the thread: two threads that import `celery.events` can block each other.
    receiver_class = app.events.Receiver

    def hear(event: dict[str, Any]) -> None:
        heard[event["uuid"]].append(event["type"])

    def listen() -> None:
        with app.connection_for_read() as link:
            receiver = receiver_class(link, handlers={"*": hear}, routing_key="task.#")
            with receiver.consumer_context(wakeup=False) as (own, _, _):
                while not stop.is_set():
                    try:
                        own.drain_events(timeout=0.2)
                    except TimeoutError:
                        continue

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        # kombu subscribes when it first waits for an event. So only an event that is heard shows that others will be.
        with app.events.default_dispatcher() as dispatcher:

            def is_heard() -> bool:
                dispatcher.send("task-probe", uuid=PROBE)
                return PROBE in heard

            wait_until(is_heard, description="the listener to hear")
        yield heard
    finally:
        stop.set()
        thread.join(5)


def noted(lane: LaneUnderTest, id_: str) -> Counter[str]:
    path = lane.ledger / f"noted-{id_}"
    return Counter(path.read_text().split() if path.exists() else ())


@pytest.mark.parametrize(
    ("task", "error"),
    [pytest.param("counter.killed", WorkerLostError), pytest.param("counter.overdue", TimeLimitExceeded)],
)
def test_an_attempt_that_was_cut_off_is_a_retry_and_the_last_one_a_failure(
    lane: LaneUnderTest, task: str, error: type[Exception]
) -> None:
    app = Celery(broker=lane.server.url, backend=lane.server.url)
    lane.master("m1")
    lane.worker("w1", "--concurrency=2", "-E")
    lane.wait_consumers(1)
    for n in range(40):
        lane.push(f"warm{n % 4}", {"n": n // 4}, task)
    lane.wait_done(40)
    with events_of(app) as heard:
        with lane.redis.pipeline(transaction=True):
            good = lane.push("A", {"n": 0, "until": 2}, task)
            bad = lane.push("B", {"n": 0, "until": 99}, task)
            mates = [lane.push(ticket, {"n": n}, task) for n in range(3) for ticket in "CDE"]
        if task == "counter.overdue":
            # An attempt lasts for a second. The state during it is that of the attempt before.
            wait_until(lambda: app.AsyncResult(bad).state == states.RETRY, description="the state to be a retry")
        assert app.AsyncResult(good).get(timeout=30) == 2
        with pytest.raises(error):
            app.AsyncResult(bad).get(timeout=30)
        lane.wait_done(51)
        wait_until(lambda: "task-succeeded" in heard[good], description="the event of the success")
        if task == "counter.overdue":
            wait_until(lambda: "task-failed" in heard[bad], description="the event of the failure")
    wait_until(
        lambda: {mate: app.AsyncResult(mate).state for mate in mates} == dict.fromkeys(mates, "SUCCESS"),
        description="the results of the mates",
    )
    assert noted(lane, good) == {"on_retry": 1, "task_retry": 1}
    assert noted(lane, bad) == {"on_retry": 2, "task_retry": 2, "on_failure": 1, "task_failure": 1}
    assert "task-failed" not in heard[good]
    events = [heard[good].count("task-retried"), heard[bad].count("task-retried"), heard[bad].count("task-failed")]
    if task == "counter.overdue":
        assert events == [1, 2, 1]
    # If the process ended before Celery knew of the attempt, the next attempt reports it, without events
    assert all(count <= most for count, most in zip(events, [1, 2, 1], strict=True))
    # There is no notice of the bundle itself
    assert not lane.redis.keys("celery-task-meta-bundle-*")
    lane.assert_at_rest()
