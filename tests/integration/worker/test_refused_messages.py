"""A task refuses its messages: a small model of attempts and order tells what real workers and a master must do."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import bridge
from bridge.app.refusing import Rejected
from bridge.audit.audit import audit
from bridge.routing.history import What, read_entry, rows_in
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import QUICK, LaneUnderTest
from tests.integration.worker.test_retry_notices import events_of

MODULE = "tests.apps.refusing"
MAX_ATTEMPTS = 3
TASKS = ("refusing.deliver", "refusing.answer", "refusing.eager")
#: The ends of one delivery, and how often each is drawn.
ENDS = {"done": 6, "fail": 1, "nack 5": 1, "nack": 1, "free 5": 2, "free": 1, "drop": 2, "dead": 1}


@dataclass
class Model:
    """What must become of the messages of one ticket: each delivery in order, and what the counters and logs have."""

    seen: list[Any] = field(default_factory=list)
    applied: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def message(self, n: int, ends: list[str]) -> None:
        attempt = 1
        for how in [*ends, "beyond"]:
            word = how.partition(" ")[0]
            self.seen.append([n, attempt, how])
            if word == "free":
                self.counts["nacked"] += 1
                continue
            if word in ("nack", "fail"):
                self.counts["failed"] += 1
                if attempt < MAX_ATTEMPTS:
                    attempt += 1
                    self.counts["retried"] += 1
                    continue
                word = "dead"
            elif word == "dead":
                self.counts["failed"] += 1
            if word in ("dead", "drop"):
                self.counts[{"drop": "dropped"}.get(word, word)] += 1
            else:
                self.counts["done"] += 1
                self.applied.append(str(n))
            return


def drawn(seed: int, tickets: int, each: int) -> dict[str, list[list[str]]]:
    """Ticket -> the ends of the deliveries of its messages."""
    draw = random.Random(seed)
    words, weights = list(ENDS), list(ENDS.values())
    return {
        f"T{ticket}": [draw.choices(words, weights, k=draw.randint(1, 6)) for _ in range(each)]
        for ticket in range(tickets)
    }


#: In each run, each of these pools, and each way of a message, once, with fewer tickets.
OFTEN = [(1, "prefork", "10", 20), (1, "threads", "0", 20)]
SELDOM = [(seed, pool, ms, 30) for seed in range(1, 8) for pool in ("prefork", "threads") for ms in ("10", "0")]


@pytest.mark.parametrize(
    ("seed", "pool", "bundle_ms", "tickets"),
    [*OFTEN, *(pytest.param(*values, marks=pytest.mark.long) for values in SELDOM)],
)
def test_any_sequence_of_ends_keeps_order_and_attempts(
    seed: int, pool: str, bundle_ms: str, tickets: int, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path, REFUSING_BUNDLE_MS=bundle_ms)
    plan = drawn(seed, tickets, each=10)
    models: dict[str, Model] = defaultdict(Model)
    for n in range(10):
        for ticket, messages in plan.items():
            models[ticket].message(n, messages[n])
            lane.push(ticket, {"n": n, "ends": messages[n]}, task=TASKS[(n + int(ticket[1:])) % len(TASKS)])
    nodes.worker("w1", app=MODULE, arguments=("--concurrency=2", f"--pool={pool}", *QUICK), env=lane.env)
    nodes.master("m1", app=MODULE, env=lane.env, ready_text="standing by")
    expected: Counter[str] = sum((model.counts for model in models.values()), Counter())
    wait_until(
        lambda: sum(lane.count(name) for name in ("done", "dropped", "dead")) == 10 * tickets,
        description="all messages to end",
        timeout_s=180,
    )

    seen = {t: [json.loads(one) for one in _strings(lane.redis.lrange(f"seen:{t}", 0, -1))] for t in plan}
    assert seen == {ticket: model.seen for ticket, model in models.items()}
    assert {t: lane.redis.lrange(f"log:{t}", 0, -1) for t in plan} == {t: m.applied for t, m in models.items()}
    assert {name: lane.count(name) for name in expected} == expected
    assert lane.count("stale") == lane.count("lost") == 0
    lane.assert_at_rest()
    verdict = audit(own_server.client(), lane.keys)
    assert verdict.clean, verdict.examples
    assert (verdict.rows[What.DROPPED], verdict.rows[What.NACKED]) == (expected["dropped"], expected["nacked"])
    if bundle_ms == "10" and pool == "prefork":
        assert _bundled(lane), "no message travelled in a bundle"


def _bundled(lane: LaneUnderTest) -> bool:
    """Whether two messages were dispatched at the same time to the same consumer under fences that follow."""
    rows = [row for id_, data in _history(lane) for row in read_entry(id_, data)]
    fences = {row.fence for row in rows}
    return any(row.fence + 1 in fences for row in rows)


def _history(lane: LaneUnderTest) -> list[tuple[str, bytes]]:
    found: Any = lane.redis.xrange(lane.keys.history)
    return [(id_, rows_in([name.encode() for pair in fields.items() for name in pair])) for id_, fields in found]


def _strings(found: Any) -> list[str]:
    return list(found)


# -- one lane for the tests below ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lane(valkey_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaneUnderTest]:
    folder = tmp_path_factory.mktemp("refused")
    with (
        EmbeddedServer(binary=valkey_binary, data_dir=folder / "server", append_only=False) as server,
        closing(ProcessYard(folder, server.url)) as yard,
    ):
        lane = LaneUnderTest(yard, server, folder)
        yard.worker("w1", app=MODULE, arguments=("--concurrency=2", "-E", *QUICK), env=lane.env)
        yard.master("m1", app=MODULE, env=lane.env, ready_text="standing by")
        lane.wait_consumers(1)
        yield lane


@pytest.fixture(scope="module")
def client(lane: LaneUnderTest) -> Any:
    made: Any = Celery("client", broker=lane.server.url, backend=lane.server.url, set_as_current=False)
    return bridge.install(made)


def answer(lane: LaneUnderTest, ticket: str, *ends: str) -> str:
    return lane.push(ticket, {"n": 0, "ends": list(ends)}, task="refusing.answer")


def test_a_caller_that_waits_gets_the_end_and_not_the_refusals_before_it(lane: LaneUnderTest, client: Any) -> None:
    with events_of(client) as heard:
        # Both waits are long enough to see the state between.
        refused = answer(lane, "waits", "nack 1500", "free 1500", "done")
        wait_until(lambda: client.AsyncResult(refused).state == "RETRY", description="the state RETRY")
        dropped, dead = answer(lane, "drops", "drop"), answer(lane, "dies", "dead")
        last = answer(lane, "ends", "nack 0", "nack 0", "nack 0")
        assert client.AsyncResult(refused).get(timeout=60) == "done"
        assert client.AsyncResult(dropped).get(timeout=60) is None
        for id_, kind, text in ((dead, bridge.Dead, "no such account"), (last, bridge.Nack, "not yet")):
            result = client.AsyncResult(id_)
            with pytest.raises(kind, match=text):
                result.get(timeout=60)
            assert result.state == "FAILURE"
        assert client.AsyncResult(dropped).state == "SUCCESS"
        ends = {refused: "task-succeeded", dropped: "task-succeeded", dead: "task-failed", last: "task-failed"}
        wait_until(lambda: all(end in heard[id_] for id_, end in ends.items()), description="the events")
        assert heard[refused].count("task-retried") == heard[last].count("task-retried") == 2
    letters = {letter["message_id"]: letter for letter in lane.dead_letters()}
    assert letters[dead]["reason"] == "asked not to come again"
    assert letters[dead]["error"] == "Dead: no such account"
    assert letters[dead]["attempts"] == "1"
    assert letters[last]["reason"] == "gave up after 3 attempts"


def test_a_rejected_message_that_travels_alone_has_one_result(lane: LaneUnderTest, client: Any) -> None:
    with events_of(client) as heard:
        id_ = answer(lane, "rejects", "reject")
        # The main process sends it last. A result that it stores is there by then.
        wait_until(lambda: "task-failed" in heard[id_], description="the event of the main process")
    result = client.AsyncResult(id_)
    assert (result.state, type(result.result), str(result.result)) == ("FAILURE", Rejected, "no")


def test_a_call_that_is_no_message_fails_with_the_refusal(lane: LaneUnderTest, client: Any) -> None:
    del lane
    for how, kind in (("nack", bridge.Nack), ("free", bridge.Nack), ("drop", bridge.Drop), ("dead", bridge.Dead)):
        result = client.send_task("refusing.call", (how,))
        with pytest.raises(kind):
            result.get(timeout=60)
        assert result.state == "FAILURE"


def test_the_history_has_the_reason_of_a_dropped_message(lane: LaneUnderTest) -> None:
    id_ = lane.push("reason", {"n": 0, "ends": ["free 0", "drop"]}, task="refusing.deliver")
    wait_until(
        lambda: _rows_of(lane, id_) == [(What.NACKED, 1, ""), (What.DROPPED, 1, "the ticket is closed")],
        description="the rows of the message",
    )


def _rows_of(lane: LaneUnderTest, message_id: str) -> list[tuple[What, int, str]]:
    rows = [row for id_, data in _history(lane) for row in read_entry(id_, data)]
    return [(row.what, row.attempt, row.why) for row in rows if row.message_id == message_id]
