"""`bridge up` with Flower in a real browser: workers, and tasks by name with their tickets, also those that travelled
in bundles. Then the whole stack goes away when it is asked to.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import redis

from bridge.stack.ports import HOST, free_port
from bridge.testing.nodes.process import ProcessNode, python_module
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until
from tests.integration.stack.test_stack import UP, assert_goes_away, assert_is_whole

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
#: Options of the browser: no other network traffic, no profile, no dialogs.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Virtual time of the page in ms. Its scripts fetch the table within it.
    "--virtual-time-budget=10000",
)
TICKETS, EVENTS = 4, 60
TASK = "tasks.incidents.record_event"
#: What the script of the tasks page asks for: all tasks.
ALL_TASKS = (
    "/tasks/datatable?draw=1&start=0&length=1000&search[value]=&order[0][column]=0&columns[0][data]=name"
    "&order[0][dir]=asc"
)


@pytest.fixture(scope="module")
def browser() -> str:
    for name in BROWSERS:
        if shutil.which(name):
            return name
    pytest.skip(f"no browser to look at Flower with: none of {', '.join(BROWSERS)} is installed")


class Page:
    """Flower's pages as a browser renders them."""

    def __init__(self, browser: str, url: str, folder: Path) -> None:
        self._browser = browser
        self._url = url
        self._folder = folder
        self._visits = 0

    def text(self, path: str) -> str:
        """The page after its scripts ran, without its tags."""
        self._visits += 1
        profile = self._folder / f"profile-{self._visits}"
        command = [self._browser, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", f"{self._url}{path}"]
        seen = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        body = re.sub(r"<(script|style)\b.*?</\1>", "", seen, flags=re.DOTALL)
        return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body)).replace("&quot;", '"').replace("&#39;", "'")

    def answer(self, path: str) -> str:
        """What Flower sends, "" if it does not know the page. A browser takes seconds of a processor for a look, so it
        looks when there is something to see.
        """
        try:
            with urlopen(f"{self._url}{path}", timeout=30) as sent:
                return str(sent.read().decode())
        except HTTPError:
            return ""


@dataclass
class Stack:
    up: ProcessNode
    folder: Path
    flower_url: str
    client: redis.Redis


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("flower")
    yard = ProcessYard(folder, "redis://127.0.0.1:1/0")
    port, flower_port = free_port(), free_port()
    ports = ("--port", str(port), "--flower-port", str(flower_port))
    size = ("--workers", "2", "--concurrency", "1")
    command = python_module("bridge", "up", "--dir", str(folder / "stack"), *size, *ports)
    try:
        up = yard.process("up", command, ready_text=UP, wait=False)
        up.wait_ready(timeout_s=90)
        with redis.Redis(host=HOST, port=port, decode_responses=True) as client:
            yield Stack(up, folder, f"http://{HOST}:{flower_port}", client)
    finally:
        yard.close()


@pytest.fixture(scope="module")
def page(browser: str, stack: Stack) -> Page:
    return Page(browser, stack.flower_url, stack.folder)


def push(client: redis.Redis, events: range) -> list[str]:
    """Pushes one event of each ticket at a time, in one pipeline. Returns the message ids."""
    with client.pipeline() as pipe:
        for seq in events:
            for ticket in range(TICKETS):
                fields: dict[Any, Any] = {
                    "ticket_id": f"INC-{ticket}",
                    "seq": seq,
                    "activity": "Active",
                    "timestamp": "2024-03-04T08:00:00",
                }
                pipe.xadd("ticket_stream", fields)
        return [str(id_) for id_ in pipe.execute()]


def handled(client: redis.Redis) -> int:
    return int(client.hget("{ticket_stream}:concurrency_stream_group:counts", "done") or 0)


def celery_messages(client: redis.Redis) -> int:
    """Number of pushes to lists: one for every Celery message."""
    found: Any = client.info("commandstats")
    return int(found["cmdstat_lpush"]["calls"])


@pytest.mark.browser
def test_the_workers_page_lists_the_workers(page: Page) -> None:
    wait_until(
        lambda: [one["status"] for one in json.loads(page.answer("/workers?json=1"))["data"]] == [True, True],
        description="Flower to know both workers",
        timeout_s=90,
    )

    def both_online() -> bool:
        seen = page.text("/workers")
        return all(re.search(rf"{name}@\S+ Online", seen) for name in ("w1", "w2"))

    wait_until(both_online, description="both workers to be online in Flower", timeout_s=180)


@pytest.mark.browser
def test_the_tasks_page_shows_every_message_with_its_ticket(page: Page, stack: Stack) -> None:
    client = stack.client
    # The first ones travel alone, so that the master measures a short task. The others are a backlog.
    done = handled(client)
    ids = push(client, range(1, 2))
    wait_until(lambda: handled(client) == done + len(ids), description="the first events to be handled")
    before = celery_messages(client)
    ids += push(client, range(2, EVENTS + 1))
    wait_until(lambda: handled(client) == done + len(ids), description="all events to be handled", timeout_s=90)
    assert celery_messages(client) - before < (EVENTS - 1) * TICKETS / 2, "they were to travel in bundles"

    def all_known() -> bool:
        found = json.loads(page.answer(ALL_TASKS))["data"]
        return [one["state"] for one in found] == ["SUCCESS"] * len(ids)

    wait_until(all_known, description=f"Flower to know all {len(ids)} tasks", timeout_s=90)

    def all_there() -> str:
        seen = page.text("/tasks")
        return seen if f"of {len(ids)} tasks" in seen and not re.search("STARTED|RECEIVED", seen) else ""

    seen = wait_until(all_there, description=f"all {len(ids)} tasks in Flower, and successful", timeout_s=180)
    rows = re.findall(rf"{re.escape(TASK)} (\d+-\d+) (?:\S+ )?SUCCESS \('(INC-\d)', (\S+)", seen)
    assert len(rows) == 15, seen  # a page of the table
    assert {id_ for id_, *_ in rows} <= set(ids)
    assert "bridge.bundle" not in seen


@pytest.mark.browser
def test_a_task_has_a_page_of_its_own_with_its_ticket(page: Page, stack: Stack) -> None:
    fields: dict[Any, Any] = {"ticket_id": "INC-alone", "seq": 1, "timestamp": "2024-03-04T08:00:00"}
    id_ = stack.client.xadd("ticket_stream", fields)

    wait_until(lambda: "SUCCESS" in page.answer(f"/task/{id_!s}"), description="Flower to know the task", timeout_s=90)

    def succeeded() -> bool:
        seen = page.text(f"/task/{id_!s}")
        return TASK in seen and "INC-alone" in seen and "SUCCESS" in seen

    wait_until(succeeded, description="the task's own page", timeout_s=180)


def test_the_whole_stack_came_up_and_goes_away_when_asked(stack: Stack) -> None:
    """The last test: it ends the stack."""
    assert_is_whole(stack.up, stack.folder / "stack")
    assert_goes_away(stack.up, signal.SIGINT)
