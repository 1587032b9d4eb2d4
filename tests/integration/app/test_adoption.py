"""Tasks declared in every way that Celery offers get their messages, through the `__call__` of their base class."""

from __future__ import annotations

import pytest

from bridge.testing.nodes.node import NodeYard
from bridge.testing.nodes.process import ProcessNode
from tests.apps.adopted import EXPECTED, app
from tests.integration.lanes import QUICK, LaneUnderTest

MODULE = "tests.apps.adopted"


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.long)])
@pytest.mark.parametrize("finalised", [False, True], ids=["", "finalised"])
def test_every_kind_of_task_gets_its_messages(  # type: ignore[no-untyped-def]
    nodes: NodeYard, own_server, tmp_path, pool: str, finalised: bool
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path)
    env = {"ADOPTED_FINALISED": "1"} if finalised else {}
    nodes.worker("w1", app=MODULE, arguments=("-c", "2", "-P", pool, *QUICK), env=env, wait=False)
    nodes.master("m1", app=MODULE, env=env, ready_text="standing by")
    lane.wait_consumers(1)

    for name in EXPECTED:
        lane.push(name, {"fails": 1}, task=name)
        for _ in range(3):
            lane.push(name, {}, task=name)
    lane.wait_done(4 * len(EXPECTED))

    assert lane.dead_letters() == []
    found = {name: lane.redis.lrange(f"log:{name}", 0, -1) for name in EXPECTED}
    assert found == {name: [word] * 4 for name, word in EXPECTED.items()}
    lane.assert_at_rest()


@pytest.mark.parametrize("role", ["worker", "master"])
def test_a_task_that_cannot_be_adopted_is_refused_at_start_with_one_line(nodes: NodeYard, role: str) -> None:
    env = {"ADOPTED_PAST": "1"}
    if role == "worker":
        node: ProcessNode = nodes.worker("w1", app=MODULE, arguments=("-c", "1", *QUICK), env=env, wait=False)
    else:
        node = nodes.master("m1", app=MODULE, env=env, wait=False)
    assert node.wait(timeout_s=90) == 2
    assert [line for line in node.logs().splitlines() if line.startswith("Error")] == [
        "Error: task past is object, which is no subclass of celery.Task"
    ]
    assert "Traceback" not in node.logs()


def test_a_retry_is_reported_as_one_by_every_kind_of_task() -> None:
    """As far as a process can see that only declares the tasks. The worker does the rest."""
    app.finalize()
    for name in EXPECTED:
        task = app.tasks[name]
        assert callable(task.push), name
        assert task.Strategy == "bridge.worker.main.strategy:strategy", name
