"""Small projects as their users would write them, each run from its folder in an environment with the wheel only."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from bridge.stack.ports import free_port
from bridge.testing.waiting import wait_until
from tests.adopters.conftest import MakeStand
from tests.adopters.environments import Environment

pytestmark = pytest.mark.slow


def test_django_with_settings_in_its_namespace_and_pushes_on_commit(
    stand: MakeStand, frameworks: Environment, tmp_path: Path
) -> None:
    project = stand("django_shop", frameworks, stream="orders", DATABASE=str(tmp_path / "orders.sqlite3"))
    project.run("manage.py", "migrate", "--run-syncdb", "--verbosity", "0")
    project.start("proj")

    project.run("manage.py", "place")
    project.wait_done(20)

    assert [json.loads(line) for line in project.run("manage.py", "booked")] == [list(range(10))] * 2
    assert [project.log(order) for order in "AB"] == [[str(n) for n in range(10)]] * 2


def test_django_credits_once_although_the_process_died_after_the_commit(
    stand: MakeStand, frameworks: Environment, tmp_path: Path
) -> None:
    project = stand("django_shop", frameworks, stream="orders", DATABASE=str(tmp_path / "orders.sqlite3"))
    project.run("manage.py", "migrate", "--run-syncdb", "--verbosity", "0")
    project.start("proj")

    project.run("manage.py", "credit")
    project.wait_done(1)

    assert project.count("retried") == 1, "the message did not run twice"
    assert project.run("manage.py", "balance") == ["10"]


def test_flask_whose_tasks_run_in_its_application_context(stand: MakeStand, frameworks: Environment) -> None:
    project = stand("flask_shop", frameworks)
    project.start("shop:celery_app")

    project.run("produce.py")
    project.wait_done(3)

    # The slow attempt was cut off, and rolled back within the context, too
    shop = "corner shop"
    assert project.log("T0") == [f"{shop} tea", f"{shop} undoes", f"{shop} slow", f"{shop} milk"]


@pytest.mark.long
def test_fastapi_that_pushes_from_its_event_loop(stand: MakeStand, frameworks: Environment) -> None:
    project = stand("fastapi_shop", frameworks)
    project.start("shop:celery_app")
    port = free_port()
    project.program("web", "uvicorn", "shop:web", "--port", str(port), ready_text="Uvicorn running on")

    lines = [f"line {n}" for n in range(20)]
    for order in ("A", "B"):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/orders/{order}",
            data=json.dumps(lines).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert len(set(json.load(answer))) == 20
    project.wait_done(40)

    assert [project.log(order) for order in "AB"] == [lines] * 2


@pytest.mark.long
def test_classes_with_a_base_of_the_companys_own(stand: MakeStand, frameworks: Environment) -> None:
    project = stand("class_shop", frameworks)
    project.start("shop")

    project.run("produce.py")
    wait_until(lambda: project.log("T0")[-1:] == ["5"], description="the last message", timeout_s=90)

    assert project.log("T0") == ["0", "1", "2", "4", "5"]
    assert [letter["error"] for letter in project.dead_letters()] == ["ValueError: always"]
    assert project.redis.lrange("failures", 0, -1) == ["ValueError T0"]


@pytest.mark.long
def test_shared_tasks_of_modules_that_know_no_app(stand: MakeStand, frameworks: Environment) -> None:
    project = stand("shared_shop", frameworks)
    project.start("worker_app")

    project.run("produce.py")
    project.wait_done(10)

    assert project.log("T0") == [f"{word} {n}" for n in range(5) for word in ("stock", "order")]


@pytest.mark.long
def test_a_project_whose_own_messages_are_msgpack(stand: MakeStand, frameworks: Environment) -> None:
    project = stand("msgpack_shop", frameworks)
    project.start("shop")

    assert project.run("produce.py") == ["b'bytes, which JSON has not' b'one two'"]
    project.wait_done(10)

    assert project.log("T0") == [str(n) for n in range(10)]


@pytest.mark.long
def test_beat_pushes_messages_with_tickets(stand: MakeStand, frameworks: Environment, tmp_path: Path) -> None:
    project = stand("beat_shop", frameworks)
    project.start("shop")
    project.program("beat", "celery", "-A", "shop", "beat", "--schedule", str(tmp_path / "schedule"))

    for ticket, word in (("T0", "scheduled"), ("T1", "added"), ("T2", "own")):
        wait_until(lambda t=ticket: len(project.log(t)) >= 3, description=f"messages of {ticket}", timeout_s=90)  # type: ignore[misc]
        assert set(project.log(ticket)) == {word}
    assert project.dead_letters() == []


def test_a_projects_own_tests_need_no_server(stand: MakeStand, frameworks: Environment) -> None:
    project = stand("eager_shop", frameworks)

    lines = project.run("-m", "pytest", "-q")

    assert "2 passed" in lines[-1], "\n".join(lines)
