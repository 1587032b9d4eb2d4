"""Options of one message with real workers: its attempts, its time limit, its expiry, its priority."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from bridge.routing.history import read_entry, rows_in
from bridge.routing.message_options import EXPIRED
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard, broker_environment
from bridge.testing.waiting import wait_until
from tests.integration.lanes import QUICK, LaneUnderTest
from tests.integration.servers import run_command

MODULE = "tests.apps.refusing"


class Rules(LaneUnderTest):
    def start(self, pool: str = "prefork", concurrency: int = 1) -> Any:
        self.nodes.master("m1", app=MODULE, env=self.env, ready_text="standing by")
        arguments = (f"--concurrency={concurrency}", f"--pool={pool}", *QUICK)
        worker = self.nodes.worker("w1", app=MODULE, arguments=arguments, env=self.env)
        self.wait_consumers(1)
        return worker

    def add(self, ticket: str, payload: str, task: str = "refusing.sleep", **options: int) -> str:
        fields: dict[Any, Any] = {"ticket_id": ticket, "task": task, "payload": payload, **options}
        id_: Any = self.redis.xadd(self.keys.stream, fields)
        return str(id_)

    def noted(self, name: str) -> list[str]:
        found: Any = self.redis.lrange(name, 0, -1)
        return list(found)

    def letter(self, message_id: str) -> dict[str, str]:
        def found() -> list[dict[str, str]]:
            return [one for one in self.dead_letters() if one["message_id"] == message_id]

        [letter] = wait_until(found, description=f"the dead letter of {message_id}", timeout_s=90)
        return letter


@pytest.fixture
def lane(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> Rules:
    return Rules(nodes, own_server, tmp_path)


@pytest.mark.parametrize("pool", ["prefork", pytest.param("gevent", marks=pytest.mark.long)])
def test_a_task_that_runs_past_the_time_of_its_message_is_stopped_and_charged(pool: str, lane: Rules) -> None:
    lane.start(pool)
    # Long enough that each attempt begins before it is struck, however busy the machine is.
    late = lane.add("T", "600", timeout=2000, max_attempts=2)
    after = lane.add("T", "0", timeout=20_000)
    lane.wait_done(2)
    letter = lane.letter(late)
    assert letter["reason"] == "gave up after 2 attempts"
    assert letter["error"] == "TimeLimitExceeded: TimeLimitExceeded(2.0,)"
    assert after != late
    assert (lane.noted("began:T"), lane.noted("ended:T")) == (["1", "2", "1"], ["1"])
    assert lane.log("T") == [0]
    lane.assert_at_rest()


def test_where_the_pool_cannot_stop_a_task_it_fails_when_it_ends_and_the_worker_says_so(lane: Rules) -> None:
    worker = lane.start("threads")
    late = lane.add("T", "1", timeout=100, max_attempts=2)
    lane.add("T", "0", timeout=20_000)
    lane.wait_done(2)
    assert "TimeLimitExceeded" in lane.letter(late)["error"]
    assert (lane.noted("began:T"), lane.noted("ended:T")) == (["1", "2", "1"], ["1", "2", "1"])
    assert lane.log("T") == [0]
    assert worker.logs().count("this pool cannot stop a task") == 1
    lane.assert_at_rest()


def test_a_message_that_expires_while_it_waits_for_its_worker_is_dead_by_the_same_rule(lane: Rules) -> None:
    lane.start()
    # Read before that begins which takes the only process: what expires in two seconds does so before the process is
    # free, however late it comes. It was sent to the worker before it expires, unless this machine is slow.
    now_ms = int(time.time() * 1000)
    lane.add("busy", "2.5")
    wait_until(lambda: lane.noted("began:busy"), description="the task to begin")
    sent, behind = lane.add("A", "0", expires=now_ms + 2000), lane.add("busy", "0", expires=now_ms + 2000)
    never = lane.add("B", "0", expires=now_ms - 1)
    runs = lane.add("C", "0", expires=now_ms + 60_000)
    lane.wait_done(5)
    assert {lane.letter(id_)["reason"] for id_ in (sent, behind, never)} == {EXPIRED}
    assert lane.count("expired") == 3
    assert lane.count("done") == 2
    assert lane.noted("began:C") == ["1"]
    assert runs not in {letter["message_id"] for letter in lane.dead_letters()}
    lane.assert_at_rest()


def test_ticket_show_says_the_attempts_of_the_message_and_how_often_it_was_refused(lane: Rules) -> None:
    lane.start()
    ends = json.dumps({"n": 0, "ends": ["fail", "free 60000"]})
    lane.add("T", ends, task="refusing.deliver", max_attempts=2)
    wait_until(lambda: lane.count("nacked") == 1, description="the refusal")
    shown = run_command(broker_environment(lane.server.url), "ticket", "show", "T", app=MODULE)
    assert shown.returncode == 0, shown.stderr
    text = " ".join(shown.stdout.split())
    assert re.search(r"attempt 2 of 2 is due in \S+ .*: nacked 1 time since \S+\+00:00: bank closed", text), text


def test_options_and_refusals_hold_for_delayed_messages_too(lane: Rules) -> None:
    lane.start()
    now_ms = int(time.time() * 1000)
    ends = json.dumps({"n": 1, "ends": ["free 20", "nack 20", "done"]})
    # Its ticket waits for it, also while it is refused; then the next one, which was added later.
    held = lane.add("H", ends, task="refusing.deliver", due=now_ms + 1000, hold=1, max_attempts=2)
    lane.add("H", json.dumps({"n": 2, "ends": ["done"]}), task="refusing.deliver")
    # It is overtaken, and has expired when its time comes.
    late = lane.add("O", "0", due=now_ms + 1500, expires=now_ms + 1200)
    lane.add("O", "0")
    # Its ticket would wait for it for years, and waits until it expires.
    never = lane.add("N", "0", due=now_ms + 10**12, hold=1, expires=now_ms + 1200)
    lane.add("N", "0")
    lane.wait_done(6)
    assert lane.letter(late)["reason"] == lane.letter(never)["reason"] == EXPIRED
    assert lane.noted("began:O") == lane.noted("began:N") == ["1"]
    seen = [json.loads(one) for one in lane.noted("seen:H")]
    assert seen == [[1, 1, "free 20"], [1, 1, "nack 20"], [1, 2, "done"], [2, 1, "done"]]
    assert held not in {letter["message_id"] for letter in lane.dead_letters()}
    wait_until(lambda: lane.redis.zcard(lane.keys.holding) == 0, description="no message to be held")
    lane.assert_at_rest()


def test_a_bad_option_is_a_dead_letter_that_says_which(lane: Rules) -> None:
    lane.start()
    bad = lane.add("T", "0", priority=10)
    lane.add("T", "0", max_attempts=2, priority=9)
    lane.wait_done(2)
    letter = lane.letter(bad)
    assert letter["reason"] == "an option of the message cannot be read"
    assert letter["error"] == "priority is not a whole number from 0 to 9"
    assert lane.noted("began:T") == ["1"]


def test_a_ticket_with_a_higher_priority_is_handled_before_those_that_wait_longer(lane: Rules) -> None:
    for n in range(40):
        lane.add(f"low{n}", "0.02")
    for n in range(5):
        lane.add(f"high{n}", "0.02", priority=5)
    lane.start()
    wait_until(lambda: lane.count("done") == 45, description="all messages to end", timeout_s=90)
    done: Any = lane.redis.execute_command("KEYS", "ended:*")
    assert len(done) == 45
    # The leader read all of them before the worker came.
    place = {ticket: at for at, ticket in enumerate(_order(lane))}
    assert max(place[f"high{n}"] for n in range(5)) < min(place[f"low{n}"] for n in range(10, 40))


def _order(lane: Rules) -> list[str]:

    found: Any = lane.redis.xrange(lane.keys.history)
    rows = []
    for id_, fields in found:
        rows += read_entry(id_, rows_in([name.encode() for pair in fields.items() for name in pair]))
    return [row.ticket for row in sorted(rows, key=lambda row: row.started_us)]
