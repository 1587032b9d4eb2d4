"""Two apps that do not know each other subscribe to one stream."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes import preloaded
from bridge.testing.nodes.node import NodeYard, broker_environment
from bridge.testing.nodes.process import ROOT, python_module
from bridge.testing.waiting import wait_until
from tests.integration.subscriptions import APP, NAMES, Subscriptions

#: Another code base, which knows the stream and nothing of the first app.
DEPOT = """
import os
from celery import Celery
import bridge

app = Celery("depot", broker=os.environ["CELERY_BROKER_URL"])
bridge.install(app)
app.conf.update(
    bridge_subscriptions={"depot": {"task": "depot.keep"}}, bridge_lease=2.0, bridge_leader_lease=2.0,
)

@app.task(bind=True, name="depot.keep", ignore_result=True)
def keep(self, ticket_id, payload):
    self.ticket.effects.rpush(f"depot:{ticket_id}", payload["n"])
"""


@pytest.fixture
def lanes(nodes: NodeYard, own_server: EmbeddedServer) -> Subscriptions:
    return Subscriptions(nodes, own_server)


def test_an_app_subscribes_to_the_stream_of_another_and_misses_nothing_while_it_is_away(
    lanes: Subscriptions, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    # Given a stream with messages, and a second app that was added now
    (tmp_path / "depot.py").write_text(DEPOT)
    lanes.push("T", 0, kind="created")
    env = {**os.environ, **broker_environment(own_server.url), "PYTHONPATH": str(ROOT)}
    command = python_module("bridge", "-A", "depot", "subscription", "add", "depot", "--from", "now")
    done = preloaded.run(command, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")

    # When the first app does everything, while nothing of the second one is up
    lanes.worker("w1")
    lanes.master("m1")
    for n in range(1, 6):
        lanes.push("T", n, task="billing.apply", kind="created")
    lanes.wait(billing=6)
    assert lanes.log("depot", "T") == []

    # Then the second one gets all from there on, by its own task, whatever task a message names
    lanes.nodes.worker("d1", app="depot", cwd=tmp_path, arguments=("--concurrency=1", "--without-mingle"))
    lanes.nodes.master("dm1", app="depot", cwd=tmp_path, ready_text="standing by")
    wait_until(lambda: len(lanes.log("depot", "T")) >= 5, description="the second app")
    assert lanes.log("depot", "T") == [1, 2, 3, 4, 5]
    assert lanes.log("billing", "T") == list(range(6))


def test_two_apps_of_one_stream_have_the_printed_permissions_each(
    lanes: Subscriptions, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    # Given two apps that subscribe to one stream, each with users that may touch its own lanes
    (tmp_path / "depot.py").write_text(DEPOT)
    urls = {}
    for app, own in ((APP, NAMES), ("depot", ("depot",))):
        for role, more in (("master", ()), ("worker", tuple(f"--own-keys={name}:*" for name in own))):
            command = python_module("bridge", "-A", app, "acl", role, *more)
            full = {**os.environ, **broker_environment(lanes.url), "PYTHONPATH": f"{ROOT}:{tmp_path}"}
            printed = preloaded.run(command, cwd=tmp_path, env=full).stdout.split()
            user = f"{app.rpartition('.')[2]}-{role}"
            printed[2] = user
            lanes.redis.execute_command(*printed, ">secret")
            urls[app, role] = own_server.url.replace("redis://", f"redis://{user}:secret@")
    masters = [
        lanes.nodes.master("m1", app=APP, env=broker_environment(urls[APP, "master"]), ready_text="standing by"),
        lanes.nodes.master(
            "dm1", app="depot", cwd=tmp_path, env=broker_environment(urls["depot", "master"]), ready_text="standing by"
        ),
    ]
    lanes.worker("w1", **broker_environment(urls[APP, "worker"]))
    few = ("--concurrency=1", "--without-mingle")
    env = broker_environment(urls["depot", "worker"])
    lanes.nodes.worker("d1", app="depot", cwd=tmp_path, arguments=few, env=env)
    # When both are done with what came
    for n in range(150):
        lanes.push("T", n, kind="created")
    lanes.wait(billing=150, search=150)
    wait_until(lambda: len(lanes.log("depot", "T")) == 150, description="the second app")
    # Then the entries leave the stream
    wait_until(lambda: lanes.redis.xlen("ticket_stream") == 0, description="the stream to be empty")
    for master in masters:
        assert "ERROR" not in master.logs()
