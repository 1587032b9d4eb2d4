"""What Celery's options, handlers and calls mean for a message: each row of docs/reference/celery-options.md."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.result import AsyncResult

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import QUICK, LaneUnderTest

MODULE = "tests.apps.celerys"


class Options(LaneUnderTest):
    """One lane for all tests here: every test has tickets of its own."""

    def seen(self, ticket: str) -> list[str]:
        found: Any = self.redis.lrange(f"seen:{ticket}", 0, -1)
        return list(found)

    def handle(self, ticket: str, task: str, payload: Any = None, count: int = 1) -> str:
        """Pushes messages of a ticket, and waits for one more message behind them. Returns the id of the first."""
        ids = [self.push(ticket, payload, task=task) for _ in range(count)]
        self.push(ticket, None, task="behind")
        wait_until(lambda: "behind" in self.seen(ticket), description=f"the message behind {task}", timeout_s=90)
        return ids[0]

    def before_the_last(self, ticket: str) -> list[str]:
        """What the tasks of the ticket wrote, without the last message."""
        *rest, last = self.seen(ticket)
        assert last == "behind"
        return rest

    def error_of(self, ticket: str) -> str:
        """The reason of the ticket's only dead letter. Empty: it has none."""
        found = [fields["error"] for fields in self.dead_letters() if fields["ticket_id"] == ticket]
        assert len(found) <= 1
        return found[0] if found else ""


@pytest.fixture(scope="module")
def lane(valkey_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Options]:
    folder = tmp_path_factory.mktemp("options")
    with (
        EmbeddedServer(binary=valkey_binary, data_dir=folder / "server", append_only=False) as server,
        closing(ProcessYard(folder, server.url)) as nodes,
    ):
        lane = Options(nodes, server, folder)
        nodes.worker("w1", app=MODULE, arguments=("-c", "2", *QUICK), wait=False)
        nodes.master("m1", app=MODULE, ready_text="standing by")
        lane.wait_consumers(1)
        yield lane


@pytest.fixture
def caller(lane: Options, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tasks' app, as in a process that calls tasks."""
    from tests.apps import celerys

    monkeypatch.setattr(celerys.app.conf, "broker_url", lane.server.url)
    monkeypatch.setattr(celerys.app.conf, "result_backend", lane.server.url)
    return celerys


def result(lane: Options, id_: str) -> AsyncResult:
    app = Celery("caller", broker=lane.server.url, backend=lane.server.url, set_as_current=False)
    return AsyncResult(id_, app=app)


def test_a_task_that_takes_something_else_gives_up_at_once(lane: Options) -> None:
    lane.handle("signature", "adds", 1)
    assert lane.error_of("signature") == (
        "ConfigurationError: the task adds cannot handle messages: it takes (x, y, z), and must take "
        "(self, ticket_id, payload) with bind=True, or (ticket_id, payload)"
    )


def test_an_expired_message_is_a_dead_letter_and_its_result_revoked(lane: Options) -> None:
    first = lane.push("expires", 4.2, task="expires")
    late = lane.handle("expires", "expires", 0)
    assert lane.before_the_last("expires") == ["ran"]
    assert lane.error_of("expires") == "Revoked: expired (4)"
    assert result(lane, first).get(timeout=60) == "in time"
    assert result(lane, late).state == "REVOKED"


def test_an_expected_error_is_retried_as_any_other(lane: Options) -> None:
    id_ = lane.handle("throws", "fails")
    assert lane.before_the_last("throws") == ["0 PENDING", "1 RETRY", "2 RETRY"]
    assert lane.error_of("throws") == "KeyError: 'expected'"
    assert result(lane, id_).state == "FAILURE"


@pytest.mark.parametrize(
    ("task", "error"),
    [
        ("retries", "ValueError: no"),
        ("annotated", "ValueError: no"),
        ("retries_once", "MaxRetriesExceededError: gave up after 2 attempts"),
    ],
)
def test_max_retries_is_kept(lane: Options, task: str, error: str) -> None:
    lane.handle(task, task)
    assert lane.before_the_last(task) == ["0", "1"]
    assert lane.error_of(task) == error


@pytest.mark.parametrize(
    ("name", "value"), [("args", ["T", "other"]), ("kwargs", {"payload": "other"}), ("queue", "other"), ("priority", 9)]
)
def test_a_retry_with_other_arguments_gives_up_at_once(lane: Options, name: str, value: Any) -> None:
    ticket = f"changes {name}"
    lane.handle(ticket, "changes", {name: value})
    assert lane.before_the_last(ticket) == ["0"]
    assert f"retry({name}=…): a message comes again as it is" in lane.error_of(ticket)


def test_a_retry_with_its_own_arguments_is_one(lane: Options) -> None:
    lane.handle("repeats", "repeats")
    assert lane.before_the_last("repeats") == ["0", "1"]
    assert lane.error_of("repeats") == ""


def test_a_replacement_gives_up_at_once(lane: Options) -> None:
    lane.handle("replaces", "replaces")
    assert lane.before_the_last("replaces") == ["0"]
    assert "the replacement of a message would run without the order of its ticket" in lane.error_of("replaces")
    assert lane.seen("elsewhere") == []


def test_autoretry_comes_again_when_it_says(lane: Options) -> None:
    lane.handle("auto", "auto")
    assert lane.before_the_last("auto") == ["0", "1"]
    assert lane.error_of("auto") == ""


def test_the_bridge_handles_a_lost_process_whatever_acks_late_says(lane: Options) -> None:
    lane.handle("dies", "dies")
    assert lane.before_the_last("dies") == ["1", "2"]
    # Celery itself sent no message again
    assert lane.redis.llen("celery") == 0


def test_states_of_its_own_are_seen(lane: Options) -> None:
    id_ = lane.handle("progress", "progress")
    assert lane.before_the_last("progress") == ["PROGRESS"]
    assert result(lane, id_).get(timeout=60) == "done"


def test_a_rate_limit_holds(lane: Options) -> None:
    lane.handle("limited", "limited", count=8)
    times = [float(at) for at in lane.before_the_last("limited")]
    # The first one may start at once. The rate limit allows one more each fifth of a second.
    assert times[-1] - times[0] > 6 * 0.2 * 0.8


def test_a_rate_limit_of_an_operator_holds_and_is_taken_away(lane: Options) -> None:
    app = Celery("operator", broker=lane.server.url, set_as_current=False)

    def limit(rate: str) -> None:
        [reply] = app.control.rate_limit("quick", rate, reply=True, timeout=10)
        assert "ok" in next(iter(reply.values()))

    def seconds(round_: str, count: int) -> float:
        began = time.monotonic()
        before = lane.count("done")
        for n in range(count):
            lane.push(f"{round_}{n % 20}", None, task="quick")
        wait_until(lambda: lane.count("done") >= before + count, description="the messages to be done", timeout_s=180)
        return time.monotonic() - began

    # So short that it travels in bundles.
    assert seconds("before", 200) < 4
    limit("20/s")
    assert seconds("limited", 100) > 4
    assert 4 < seconds("still", 100) < 15
    limit("0")
    # The lane learns of that with a renewal of the lease.
    wait_until(lambda: seconds("after", 200) < 4, description="bundles again", timeout_s=180)


@pytest.mark.parametrize(
    ("payload", "seen", "error"),
    [("ignore", ["0"], ""), ("reject", ["0"], "Reject: 'no'"), ("requeue", ["0", "1"], "Reject: 'no'")],
)
def test_ignored_is_done_and_rejected_is_dead(lane: Options, payload: str, seen: list[str], error: str) -> None:
    lane.handle(payload, "ends", payload)
    assert lane.before_the_last(payload) == seen
    assert lane.error_of(payload) == error


@pytest.mark.parametrize(
    ("payload", "seen"),
    [
        ("well", ["before_start", "ran", "on_success", "after_return SUCCESS"]),
        (
            "fails once",
            ["before_start", "ran", "on_retry ValueError", "before_start", "ran", "on_success", "after_return SUCCESS"],
        ),
        (
            "fails",
            ["before_start", "ran", "on_retry ValueError"] * 2
            + ["before_start", "ran", "on_failure ValueError", "after_return FAILURE"],
        ),
        (
            "too soon",
            ["before_start", "on_retry ValueError", "before_start", "ran", "on_success", "after_return SUCCESS"],
        ),
    ],
)
def test_handlers_are_called_and_a_failure_that_comes_again_is_a_retry(
    lane: Options, payload: str, seen: list[str]
) -> None:
    ticket = f"handled {payload}"
    lane.handle(ticket, "handled", payload)
    assert lane.before_the_last(ticket) == seen


def test_priorities_change_no_order(lane: Options) -> None:
    lane.push("priority", 1, task="plain")
    lane.handle("priority", "dies")
    assert lane.before_the_last("priority") == ["ticket", "1", "2"]


def test_calls_links_and_canvas_are_ordinary_celery(lane: Options, caller: Any) -> None:
    plain = caller.plain
    calls: dict[str, Any] = {
        "delay": lambda: plain.delay("delay", None),
        "link": lambda: plain.apply_async(("link", None), link=plain.si("link", 2)),
        "chain": lambda: chain(plain.si("chain", 1), plain.si("chain", 2)).apply_async(),
        "group": lambda: group(plain.si("group", 1), plain.si("group", 2)).apply_async(),
        "chord": lambda: chord([plain.si("chord", 1)], plain.si("chord", 2)).apply_async(),
    }
    for call in calls.values():
        call()
    for ticket in calls:
        count = 1 if ticket == "delay" else 2
        wait_until(lambda t=ticket, n=count: len(lane.seen(t)) == n, description=f"the {ticket} to run")  # type: ignore[misc]
        assert lane.seen(ticket) == ["no ticket"] * count


def test_the_methods_of_a_tasks_own_request_are_called_also_under_a_backlog(lane: Options) -> None:
    # Few fail: more would open the circuit breaker
    failing = ["requested 0", "requested 20"]
    tickets = [f"requested {n}" for n in range(40)]
    for n in range(8):
        for ticket in tickets:
            lane.push(ticket, "fails once" if n == 5 and ticket in failing else None, task="requested")
    for ticket in tickets:
        lane.handle(ticket, "requested")
    called = {ticket: [*["accepted"] * 9, "behind"] for ticket in tickets}
    called |= {ticket: [*["accepted"] * 10, "behind", "failure", "retry"] for ticket in failing}
    # They are called in the main process, and the pool process may have ended all by then
    wait_until(lambda: {ticket: sorted(lane.seen(ticket)) for ticket in tickets} == called, description="all calls")


def test_a_hard_time_limit_calls_no_method_of_a_tasks_own_request(lane: Options) -> None:
    """Celery's own would store a failure, and the message comes again."""
    lane.handle("requested late", "requested_late")
    called = ["accepted", "accepted", "behind", "soft timeout"]
    wait_until(lambda: sorted(lane.seen("requested late")) == called, description="all calls")
    assert lane.error_of("requested late") == ""


def test_a_push_of_what_takes_something_else_is_refused(caller: Any) -> None:
    with pytest.raises(Exception, match="the task adds cannot handle messages"):
        caller.adds.push("T", 1)


def test_a_delayed_push_says_when_it_is_due(caller: Any) -> None:
    id_ = caller.plain.push("T", 1, delay=5)
    with closing(caller.app.bridge.client) as client:
        [(_, fields)] = client.xrange("ticket_stream", id_, id_)
    assert 5000 <= int(fields[b"due"]) - int(id_.partition("-")[0]) < 5100


def test_every_row_of_the_page_names_a_test_that_is_here() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "celery-options.md").read_text(encoding="utf-8")
    rows = [
        line for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| in Celery", "|---"))
    ]
    names = [name for row in rows for name in row.rsplit("|", 2)[1].replace("`", "").split(", ")]
    assert len(rows) >= 15
    known = {
        name
        for path in (Path(__file__).parents[2]).rglob("test_*.py")
        for name in re.findall(r"^ *def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    missing = [name.strip() for name in names if name.strip() not in known]
    assert missing == [], json.dumps(missing)
