"""An existing app needs only `bridge.install(app)`. What its tasks know, and what their callers get."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from celery import states
from celery.result import AsyncResult

from bridge.testing.waiting import wait_until
from tests.integration.lanes import APP, Kept, LaneUnderTest, begun

PUSH = """
import sys
from tests.apps import counter
task = getattr(counter, sys.argv[1])
print(task.push("T42", {"n": 7, "until": 3}))
"""


@pytest.fixture(scope="module")
def kept(valkey_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept[LaneUnderTest]]:
    with closing(Kept(valkey_binary, tmp_path_factory, begun)) as made:
        yield made


@pytest.fixture
def lane(kept: Kept[LaneUnderTest]) -> Iterator[LaneUnderTest]:
    """A lane with a master and a worker."""
    yield from kept.lend()


@pytest.fixture
def result_of(lane: LaneUnderTest, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """AsyncResult for a message id, as a caller of the app would make it."""
    from celery import Celery

    app = Celery("caller", broker=lane.server.url, backend=lane.server.url)
    return lambda id_: AsyncResult(id_, app=app)


def pushed(lane: LaneUnderTest, task: str) -> str:
    """The message id that `task.push` returned in a process of its own."""
    import sys

    node = lane.nodes.process(
        f"push-{task}",
        [sys.executable, "-c", PUSH, task],
        env={**lane.env, "CELERY_BROKER_URL": lane.server.url, "CELERY_RESULT_BACKEND": lane.server.url},
    )
    assert node.wait() == 0, node.log_tail()
    return node.logs().strip().splitlines()[-1]


def test_the_result_of_a_message_has_its_id(lane: LaneUnderTest, result_of) -> None:  # type: ignore[no-untyped-def]
    id_ = pushed(lane, "add")

    assert result_of(id_).get(timeout=60) == {"n": 7, "attempt": 1}
    # When the result is there, the effects are applied.
    assert lane.redis.get("sum:T42") == "7"


def test_a_task_knows_its_ticket(lane: LaneUnderTest, result_of) -> None:  # type: ignore[no-untyped-def]
    id_ = pushed(lane, "context")

    seen = result_of(id_).get(timeout=60)

    assert seen["id"] == "T42"
    assert seen["message_id"] == seen["task_id"] == id_
    assert (seen["attempt"], seen["retries"]) == (1, 0)
    assert seen["fence"] == int(lane.redis.get(lane.keys.fence))  # type: ignore[arg-type]


def test_a_failing_attempt_is_a_retry_to_celery_and_the_last_one_a_failure(lane: LaneUnderTest, result_of) -> None:  # type: ignore[no-untyped-def]
    result = result_of(pushed(lane, "flaky"))
    seen = set()

    def ended() -> bool:
        seen.add(result.state)
        return bool(result.ready())

    wait_until(ended, description="the message to end", interval_s=0.002)

    assert states.FAILURE not in seen
    assert result.get() == "done"


def test_an_ordinary_call_of_the_same_task_is_untouched(lane: LaneUnderTest) -> None:
    import sys

    code = "from tests.apps import counter; r = counter.ignores.apply_async(('T', {})); print('sent')"
    node = lane.nodes.process(
        "ordinary", [sys.executable, "-c", code], env={**lane.env, "CELERY_BROKER_URL": lane.server.url}
    )
    assert node.wait() == 0, node.log_tail()
    [worker] = lane.nodes.workers()

    worker.wait_for_log("counter.ignores")

    assert lane.count("done") == 0
    assert APP


def test_a_plain_call_has_no_ticket() -> None:
    from tests.apps import counter

    assert counter.append.ticket is None
