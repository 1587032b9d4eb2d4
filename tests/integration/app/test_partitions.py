"""A stream of several partitions: masters lead and workers serve each of them, and a message has one id everywhere."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import bridge
from bridge.routing.keys import LaneKeys, layout_key
from bridge.routing.partitions import partition_of
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import Kept, LaneUnderTest

STREAM = "ticket_stream"
GROUP = "concurrency_stream_group"


class Partitions:
    """The lanes of `tests.apps.counter` on the partitions of the test's own server."""

    def __init__(self, nodes: NodeYard, server: EmbeddedServer, folder: Path, count: int) -> None:
        self.count = count
        conf = json.dumps({"bridge_partitions": count})
        self.lane = LaneUnderTest(nodes, server, folder, COUNTER_CONF=conf, CELERY_RESULT_BACKEND=server.url)
        self.keys = [LaneKeys(f"{STREAM}:p{n}", GROUP) for n in range(count)]
        self.redis: Any = self.lane.redis
        self.app: Any = Celery("counter", broker=server.url, backend=server.url, set_as_current=False)
        self.app.conf.bridge_partitions = count
        bridge.install(self.app)

    def task(self, name: str) -> Any:
        def run(self: Any, ticket_id: str, payload: Any) -> None:
            del self, ticket_id, payload

        return self.app.task(bind=True, name=f"counter.{name}", lazy=False, shared=False)(run)

    def done(self) -> int:
        return sum(int(self.redis.hget(keys.counts, "done") or 0) for keys in self.keys)

    def wait_done(self, count: int) -> None:
        wait_until(lambda: self.done() >= count, description=f"{count} done", timeout_s=90)

    @property
    def nodes(self) -> NodeYard:
        return self.lane.nodes

    def end_test(self) -> None:
        """Nothing but messages is left."""

    def is_at_rest(self) -> bool:
        def rests(keys: LaneKeys) -> bool:
            pending = self.redis.xpending(keys.stream, keys.group)
            return not (pending["pending"] or self.redis.xlen(keys.outcomes) or self.redis.exists(keys.tickets))

        return all(rests(keys) for keys in self.keys)

    def forget(self) -> None:
        self.lane.forget()
        self.redis.delete(*(key for keys in self.keys for key in (keys.counts, keys.dead)))


def begin(nodes: NodeYard, server: EmbeddedServer, folder: Path) -> Partitions:
    four = Partitions(nodes, server, folder, 4)
    four.lane.worker("w1", wait=False)
    four.lane.master("m1")
    return four


@pytest.fixture(scope="module")
def kept(valkey_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept[Partitions]]:
    with closing(Kept(valkey_binary, tmp_path_factory, begin)) as made:
        yield made


@pytest.fixture
def served(kept: Kept[Partitions]) -> Iterator[Partitions]:
    """Four partitions that a master leads and a worker serves."""
    yield from kept.lend()


@pytest.fixture
def four(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> Partitions:
    return Partitions(nodes, own_server, tmp_path, 4)


def test_each_ticket_is_handled_in_order_on_the_lane_of_its_partition(four: Partitions) -> None:
    four.lane.worker("w1", wait=False)
    four.lane.worker("w2", wait=False)
    four.lane.master("m1", wait=False)
    append = four.task("append")
    append.push_many([(f"T{n % 10}", {"n": n}) for n in range(400)])
    four.wait_done(400)
    for t in range(10):
        assert four.lane.log(f"T{t}") == list(range(t, 400, 10))
    shares = [int(four.redis.hget(keys.counts, "done") or 0) for keys in four.keys]
    assert shares == [40 * sum(partition_of(f"T{t}", 4) == n for t in range(10)) for n in range(4)]
    assert not four.redis.exists(STREAM)
    assert not four.redis.keys(f"{{{STREAM}}}:*")
    # Masters of one process lead all of them, under one name.
    holders = {four.redis.get(keys.leader).partition(" ")[2] for keys in four.keys}
    assert len(holders) == 1


def test_masters_that_are_named_for_partitions_lead_these_and_no_others(four: Partitions) -> None:
    ours = [f"{GROUP}:p0,{GROUP}:p3", f"{GROUP}:p1", f"{GROUP}:p2"]
    masters = [four.lane.master(f"m{n}", "--lanes", lanes) for n, lanes in enumerate(ours)]

    def leaders() -> list[str | None]:
        tokens = four.redis.mget([keys.leader for keys in four.keys])
        return [token and token.split(":")[-2] for token in tokens]

    pids = [str(masters[n].pid) for n in (0, 1, 2, 0)]
    wait_until(lambda: leaders() == pids, description="each to lead its partitions", timeout_s=90)
    # A partition that there is not: nothing has changed.
    before = four.redis.get(layout_key(STREAM))
    refused = four.lane.master("m3", "--lanes", f"{GROUP}:p4", wait=False)
    wait_until(lambda: not refused.running, description="the master to end", timeout_s=90)
    assert refused.exit_code == 2
    assert f"--lanes {GROUP}:p4: there is no such lane; the stream has the partitions p0 to p3" in refused.logs()
    assert (leaders(), four.redis.get(layout_key(STREAM))) == (pids, before)


def test_the_partitions_of_a_killed_master_go_to_the_others_and_each_ticket_keeps_its_order(four: Partitions) -> None:
    for name in ("w1", "w2"):
        four.lane.worker(name, wait=False)
    masters = [four.lane.master(name) for name in ("m1", "m2", "m3")]

    def leaders() -> list[str]:
        """The number of the process that leads each partition; of those that are led."""
        tokens = four.redis.mget([keys.leader for keys in four.keys])
        return [token.split(":")[-2] for token in tokens if token]

    wait_until(lambda: len(leaders()) == 4, description="each partition to be led", timeout_s=90)
    append = four.task("append")
    numbers = iter(range(600))

    def push(count: int) -> None:
        append.push_many([(f"T{n % 10}", {"n": n // 10, "ms": 5}) for n in islice(numbers, count)])

    for master in masters[:2]:
        before = four.done()
        push(200)
        wait_until(lambda before=before: four.done() >= before + 50, description="some to be done")  # type: ignore[misc]
        master.kill_main()
        gone = str(master.pid)
        wait_until(
            lambda gone=gone: len(leaders()) == 4 and gone not in leaders(),  # type: ignore[misc]
            description="the others to lead its partitions",
            timeout_s=90,
        )
    push(200)
    four.wait_done(600)
    assert set(leaders()) == {str(masters[2].pid)}
    for t in range(10):
        assert four.lane.log(f"T{t}") == list(range(60))
    four.lane.assert_no_overlap()


def test_a_message_in_the_wrong_partition_is_a_dead_letter_that_names_the_right_one(served: Partitions) -> None:
    right = partition_of("T1", 4)
    for n in range(4):
        served.redis.xadd(f"{STREAM}:p{n}", {"ticket_id": "T1", "task": "counter.append", "payload": '{"n": 1}'})
    served.wait_done(1)
    wrong = [keys for n, keys in enumerate(served.keys) if n != right]
    wait_until(lambda: all(served.redis.xlen(keys.dead) == 1 for keys in wrong), description="three dead letters")
    letters = [letter for keys in wrong for _, letter in served.redis.xrange(keys.dead)]
    assert {letter["error"] for letter in letters} == {f"partition {right} of 4"}
    assert {letter["reason"] for letter in letters} == {"the ticket belongs to another partition"}
    assert served.lane.log("T1") == [1]


def test_the_same_stream_id_on_two_partitions_is_two_messages(served: Partitions) -> None:
    tickets = {partition_of(f"T{n}", 4): f"T{n}" for n in range(20)}
    id_ = f"{time.time_ns() // 1_000_000}-7"
    # Results, one with effects, and in bundles: messages that wait behind others
    for round_, task in enumerate(("context", "add")):
        entry = f"{id_.partition('-')[0]}-{7 + round_}"
        for n, ticket in tickets.items():
            fields = {"ticket_id": ticket, "task": f"counter.{task}", "payload": json.dumps({"n": n})}
            served.redis.xadd(served.keys[n].stream, fields, id=entry)
    served.wait_done(8)
    first, second = id_, f"{id_.partition('-')[0]}-8"
    for n, ticket in tickets.items():
        context = served.app.AsyncResult(f"{first}@p{n}").get(timeout=60)
        assert context["id"] == ticket
        assert context["message_id"] == context["task_id"] == f"{first}@p{n}"
        assert served.app.AsyncResult(f"{second}@p{n}").get(timeout=60) == {"n": n, "attempt": 1}
    assert not served.app.AsyncResult(first).ready()


# Without effects: results of such messages are in the test before this one.
@pytest.mark.parametrize("name", ["add", pytest.param("held_result", marks=pytest.mark.long)])
def test_the_result_of_a_push_is_found_by_what_push_returned(served: Partitions, name: str) -> None:
    # Many at once travel in bundles.
    ids = served.task(name).push_many([(f"T{n % 20}", {"n": n}) for n in range(200)])
    assert [served.app.AsyncResult(id_).get(timeout=30)["n"] for id_ in ids] == list(range(200))
    assert len({id_.partition("@")[2] for id_ in ids}) == 4


def test_members_with_another_setting_use_the_stream_as_it_is(four: Partitions) -> None:
    [id_] = four.task("append").push_many([("T42", {"n": 1})])
    assert id_.endswith("@p1")
    other = json.dumps({"bridge_partitions": 2})
    worker = four.lane.worker("w1", COUNTER_CONF=other)
    master = four.lane.master("m1", COUNTER_CONF=json.dumps({}))
    four.wait_done(1)
    assert four.lane.log("T42") == [1]
    worker.wait_for_log("ticket_stream has 4 partitions, and bridge_partitions is 2: the stream is used as it is")
    master.wait_for_log("and bridge_partitions is 1: the stream is used as it is; set bridge_partitions = 4")


def test_a_stream_that_is_in_use_is_not_split_by_a_setting(four: Partitions) -> None:
    four.lane.push("T42", {"n": 1})
    four.lane.worker("w1")
    four.lane.master("m1").wait_for_log("has 1 partition, and bridge_partitions is 4")
    four.task("append").push("T42", {"n": 2})
    four.lane.wait_done(2)
    assert four.lane.log("T42") == [1, 2]
    assert four.redis.keys(f"{STREAM}:p*") == []
    assert not four.redis.exists(layout_key(STREAM))


def test_the_first_master_stores_the_layout(four: Partitions) -> None:
    four.lane.master("m1")
    found = json.loads(four.redis.get(layout_key(STREAM)))
    assert (found["partitions"], found["generation"]) == (4, 0)
    assert abs(found["since_ms"] - time.time() * 1000) < 60_000


def test_a_failed_attempt_a_death_and_a_revoke_name_the_message_by_its_id(served: Partitions) -> None:
    flaky, dies, held = served.task("flaky"), served.task("dies"), served.task("held")
    ids = [flaky.push("A", {"n": 1, "until": 2}), dies.push("B", {"n": 2, "until": 2})]
    served.wait_done(2)
    assert served.lane.log("A") == [1]
    assert served.lane.log("B") == [2]
    assert served.app.AsyncResult(ids[0]).get(timeout=60) == "done"
    held.push("C", {"n": 3, "gate": "open"})
    wait_until(lambda: list(served.lane.ledger.glob("held-C-3-*")), description="the first message to run")
    revoked = held.push("C", {"n": 4})
    served.app.control.revoke(revoked, reply=True, timeout=5)
    held.push("C", {"n": 5})
    (served.lane.ledger / "open").touch()
    served.wait_done(4)
    assert served.lane.log("C") == [3, 5]
    keys = served.keys[partition_of("C", 4)]
    [(_, letter)] = served.redis.xrange(keys.dead)
    assert letter["message_id"] == revoked.partition("@")[0]
