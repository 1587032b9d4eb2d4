"""Impossible input is refused at once: one clear line, an exit code, and nothing is changed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import free_port
from bridge.testing.nodes.node import NodeYard
from bridge.testing.nodes.process import ProcessNode
from bridge.testing.waiting import wait_until

APP = """
import json, os
from celery import Celery, Task
import bridge

app = Celery("shop", broker=os.environ["CELERY_BROKER_URL"])
bridge.install(app)
app.conf.update(json.loads(os.environ["SHOP_SETTINGS"]))

@app.task(bind=True, name="shop.work", **json.loads(os.environ.get("SHOP_TASK", "{}")))
def work(self, ticket_id, payload):
    pass

@app.task(name="shop.add")
def add(x, y, z):
    return x + y + z

class Sealed(Task):
    name = "shop.sealed"
    def __init_subclass__(cls):
        raise TypeError("Sealed is final")

if "SHOP_SEALED" in os.environ:
    app.register_task(Sealed())
"""

KEYS = LaneKeys("ticket_stream", "concurrency_stream_group")
QUICK = ("--concurrency=1", "--without-mingle", "--without-gossip")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "app"
    made.mkdir()
    (made / "shop.py").write_text(APP)
    return made


def environment(settings: dict[str, Any], task: dict[str, Any] | None = None) -> dict[str, str]:
    return {"SHOP_SETTINGS": json.dumps(settings), "SHOP_TASK": json.dumps(task or {})}


def error_of(node: ProcessNode) -> str:
    """The one error line of a process that has ended."""
    logged = node.logs()
    assert "Traceback" not in logged
    (line,) = [line for line in logged.splitlines() if "Error: " in line]
    return line.partition("Error: ")[2]


REFUSED = [
    ({"bridge_leese": 3}, {}, 2, "unknown setting bridge_leese; did you mean bridge_lease?"),
    ({"bridge_lease": "long"}, {}, 2, "bridge_lease: input should be a valid number (it is 'long')"),
    ({"bridge_max_attempts": 0}, {}, 2, "bridge_max_attempts: input should be greater than or equal to 1"),
    ({"bridge_default_task": "shop.wrok"}, {}, 2, "bridge_default_task 'shop.wrok' is not a task of this app"),
    ({"bridge_default_task": "shop.add"}, {}, 2, "the task shop.add cannot handle messages: it takes (x, y, z), and"),
    ({}, {"bridge_max_attemps": 1}, 2, "unknown option bridge_max_attemps; did you mean bridge_max_attempts?"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "task", "code", "said"), REFUSED, ids=[said[:30] for *_, said in REFUSED])
def test_neither_worker_nor_master_starts_with_what_cannot_work(
    nodes: NodeYard,
    own_server: EmbeddedServer,
    folder: Path,
    settings: dict[str, Any],
    task: dict[str, Any],
    code: int,
    said: str,
) -> None:
    _refuses_to_start(nodes, folder, environment(settings, task), code, said)
    with own_server.client() as client:
        assert client.dbsize() == 0, "nothing was changed"


@pytest.mark.slow
def test_neither_worker_nor_master_starts_with_a_task_that_no_message_could_reach(
    nodes: NodeYard, folder: Path
) -> None:
    env = {**environment({}), "SHOP_SEALED": "1"}
    why = "task shop.sealed: its class Sealed cannot be extended: TypeError: Sealed is final"
    _refuses_to_start(nodes, folder, env, 2, why)


@pytest.mark.slow
def test_neither_worker_nor_master_starts_without_a_server(nodes: NodeYard, folder: Path) -> None:
    # Celery takes the broker from the environment before any configuration.
    env = {**environment({}), "CELERY_BROKER_URL": f"redis://:s3cret@127.0.0.1:{free_port()}/0"}
    _refuses_to_start(nodes, folder, env, 1, "cannot reach Redis at redis://:***@127.0.0.1:")


def _refuses_to_start(nodes: NodeYard, folder: Path, env: dict[str, str], code: int, said: str) -> None:
    worker = nodes.worker("w1", app="shop", cwd=folder, env=env, arguments=QUICK, wait=False)
    master = nodes.master("m1", app="shop", cwd=folder, env=env, wait=False)
    for node in (worker, master):
        assert node.wait(timeout_s=90) == code
        assert error_of(node).startswith((said, f"task shop.work: {said}"))
        assert "s3cret" not in node.logs()


@pytest.mark.slow
def test_a_second_worker_of_one_name_stops_and_the_first_goes_on(
    nodes: NodeYard, own_server: EmbeddedServer, folder: Path
) -> None:
    env = environment({"bridge_lease": 4, "bridge_default_task": "shop.work"})
    nodes.master("m1", app="shop", cwd=folder, env=env, ready_text="leading")
    first = nodes.worker("w1", app="shop", cwd=folder, env=env, arguments=QUICK)
    with own_server.client(decode_responses=True) as client:
        registered = client.hgetall(KEYS.consumers)
        assert list(registered) == [first.hostname()]

        pushed = 0

        def all_done() -> bool:
            return bool(client.hget(KEYS.counts, "done") == str(pushed))

        client.xadd(KEYS.stream, {"ticket_id": "A"})
        pushed += 1
        wait_until(all_done, description="a message before")
        # The second one's log has a name of its own; its node name is the same.
        second = nodes.worker("w2", app="shop", cwd=folder, env=env, arguments=(*QUICK, "-n", "w1@%h"), wait=False)
        while second.running:
            client.xadd(KEYS.stream, {"ticket_id": "A"})
            pushed += 1
            wait_until(all_done, description="the first worker to go on")
            until = time.monotonic() + 0.2
            wait_until(
                lambda until=until: time.monotonic() > until or not second.running,  # type: ignore[misc]
                description="the time of the next message, or the end of the second worker",
            )
        assert second.wait() == 1
        assert error_of(second).startswith(f"another worker named {first.hostname()} is running")
        assert client.hgetall(KEYS.consumers) == registered, "the same incarnation"
        assert not {"retried", "rerouted", "lost", "stale"} & set(client.hgetall(KEYS.counts))
    assert first.running


@pytest.mark.slow
def test_a_worker_takes_over_a_name_whose_worker_is_gone(
    nodes: NodeYard, own_server: EmbeddedServer, folder: Path
) -> None:
    env = environment({"bridge_lease": 1, "bridge_default_task": "shop.work"})
    first = nodes.worker("w1", app="shop", cwd=folder, env=env, arguments=QUICK)
    first.vanish()
    second = nodes.worker("w2", app="shop", cwd=folder, env=env, arguments=(*QUICK, "-n", "w1@%h"))
    assert second.running
    with own_server.client(decode_responses=True) as client:
        assert list(client.hgetall(KEYS.consumers)) == [first.hostname()]
