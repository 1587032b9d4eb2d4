"""A worker within another program: Celery's fixture for tests, which sends none of the command line's signals."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging

import bridge
from bridge.operate.repartitioning import begin, leave
from bridge.routing.layouts import find_layout
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.lane import Lane
from bridge.testing.nodes import preloaded
from bridge.testing.nodes.node import NodeYard, broker_environment
from bridge.testing.nodes.process import ROOT
from bridge.testing.nodes.roles import WATCHER
from bridge.testing.waiting import wait_until
from bridge.worker.main import new_layout
from tests.integration.lanes import LaneUnderTest
from tests.integration.pytest_command import pytest_command

CONFTEST = 'pytest_plugins = ("celery.contrib.pytest",)\n'

PROJECT = """
import celery.contrib.testing.tasks
import pytest
from celery.result import AsyncResult

from tests.apps.services import app


@pytest.fixture
def celery_app():
    return app


@pytest.fixture
def celery_worker_parameters():
    return {"hostname": "%(name)s@here", "shutdown_timeout": 20}


@pytest.mark.parametrize("life", [1, 2])
def test_a_ticket_message_is_handled(celery_app, celery_worker, life):
    task = celery_app.tasks["service.old"]
    ids = [task.push("T", {"n": 10 * life + n}) for n in range(3)]
    ran = [AsyncResult(id_, app=celery_app).get(timeout=30) for id_ in ids]
    assert ["%(name)s@here" in note for note in ran] == [True] * 3
    # Plain Celery goes on beside it
    assert celery.contrib.testing.tasks.ping.delay().get(timeout=60) == "pong"
"""


@pytest.fixture
def lane(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> LaneUnderTest:
    return LaneUnderTest(nodes, own_server, tmp_path)


def run_pytest(folder: Path, lane: LaneUnderTest, project: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_project.py").write_text(project)
    given = {**os.environ, **broker_environment(lane.server.url), "PYTHONPATH": str(ROOT)}
    command = pytest_command("-q", "-x", "-p", "no:cacheprovider", "-p", "no:celery", str(folder))
    return preloaded.run(command, env=given, cwd=folder, timeout_s=120)


def test_celerys_own_fixture_starts_a_worker_that_joins_the_lane_and_leaves_it(
    lane: LaneUnderTest, tmp_path: Path
) -> None:
    lane.nodes.master("m1", app="tests.apps.services", ready_text="standing by")
    name = f"w{lane.server.port}"

    done = run_pytest(tmp_path / "project", lane, PROJECT % {"name": name})

    assert done.returncode == 0, done.stdout + done.stderr
    assert lane.count("done") == 6
    # It said good-bye: no lease is waited for, and nothing of it is left
    assert lane.redis.keys(lane.keys.lease("*").replace("{", "\\{")) == []
    wait_until(lambda: lane.redis.hlen(lane.keys.consumers) == 0, description="the lane to have forgotten it")
    lane.assert_at_rest()

    def watchers() -> list[int]:
        lines = [(process.pid, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
        return [pid for pid, arguments in lines if WATCHER in arguments and f"{name}@here" in arguments]

    wait_until(lambda: not watchers(), description="its watcher to end")


def test_a_wrong_setting_raises_where_the_worker_is_made(own_server: EmbeddedServer) -> None:
    app = bridge.install(Celery("shop", broker=own_server.url, set_as_current=False))
    app.conf.bridge_default_task = "no.such"
    reason = "bridge_default_task 'no.such' is not a task of this app"

    def leave_logging_as_it_is(**_: Any) -> None:
        """Celery would set the level and the handlers of this process, also for the tests after this one."""

    setup_logging.connect(leave_logging_as_it_is)
    try:
        with pytest.raises(bridge.TicketBridgeError, match=reason), start_worker(app, perform_ping_check=False):
            pass
    finally:
        setup_logging.disconnect(leave_logging_as_it_is)


def test_a_worker_within_a_program_says_that_it_must_be_started_again_for_a_new_layout(
    own_server: EmbeddedServer,
) -> None:
    app = bridge.install(Celery("shop", broker="redis://nowhere:1/0", set_as_current=False))
    seen: list[Any] = []

    @app.task(name="shop.note", lazy=False, shared=False)
    def note(ticket_id: str, payload: Any) -> None:
        del ticket_id
        seen.append(payload)

    log = logging.getLogger(new_layout.__name__)
    said: list[str] = []
    heard = logging.Handler()
    heard.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(heard)
    try:
        with Lane(app, url=own_server.url) as lane:
            note.push("T", 1)
            lane.wait()
            layout = begin(lane.redis, "ticket_stream", find_layout(lane.redis, "ticket_stream", 1), 2)
            wait_until(lambda: said, description="the worker to see the new layout")
            assert "the program that started it must start it again" in said[0]
            note.push("T", 2)
    finally:
        log.removeHandler(heard)
    # It serves the old partitions alone. Its successor handles what came meanwhile, and nothing holds the old ones.
    assert seen == [1]
    with Lane(app, url=own_server.url) as lane:
        lane.wait()
        assert seen == [1, 2]
        assert leave(lane.redis, "ticket_stream", layout) == ""
