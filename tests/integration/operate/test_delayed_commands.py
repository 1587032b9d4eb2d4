"""``bridge delayed`` with a real leader and a real worker, on a stream of four partitions."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bridge.app.lanes import newest_lanes_of
from bridge.inspect.delayed import Mode, Selection, soonest_first
from bridge.operate.delayed import change
from bridge.protocol.orders import DelayedAct
from bridge.routing.connection import with_raw_replies
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.app.test_partitions import Partitions
from tests.integration.operate.test_partitioned_commands import TICKETS, Operated


@pytest.fixture
def four(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> Operated:
    return Operated(nodes, own_server, tmp_path)


def ids_of(document: Any) -> list[str]:
    return [one["message_id"] for one in document["messages"]]


def started(four: Operated) -> Any:
    """The task that appends to the log of its ticket."""
    four.lane.worker("w1", wait=False)
    four.lane.master("m1", wait=False)
    task = four.task("append")
    task.push("warm", {"n": 0})
    four.wait_done(1)
    return task


def test_delayed_messages_of_all_partitions_are_listed_and_changed(four: Operated) -> None:
    append = started(four)
    ids = append.push_many([(ticket, {"n": n}, {"delay": 3600 + n}) for n, ticket in enumerate(TICKETS)])
    held = append.push(TICKETS[0], {"n": 9}, delay=1800, hold=True)
    append.push(TICKETS[0], {"n": 10})
    # The server is asked, since a command is a process of its own.
    wait_until(
        lambda: sum(four.redis.zcard(keys.delayed) + four.redis.zcard(keys.holding) for keys in four.keys) == 5,
        description="all to be delayed",
        timeout_s=90,
    )
    assert ids_of(four.json("delayed", "list")) == [held, *ids]
    assert ids_of(four.json("delayed", "list", "--ticket", TICKETS[2])) == [ids[2]]
    assert ids_of(four.json("delayed", "list", "--hold")) == [held]
    shown = four.json("delayed", "show", ids[3])
    assert (shown["payload"], shown["ticket_id"]) == ({"n": 3}, TICKETS[3])
    assert append.AsyncResult(ids[0]).state == "PENDING"

    # A ticket says what it waits for.
    wait_until(
        lambda: four.json("ticket", "show", TICKETS[0])["waiting"]["count"] == 1, description="one behind", timeout_s=90
    )
    found = four.json("ticket", "show", TICKETS[0])
    assert found["retry"]["is_held"]
    assert held in found["why"]
    assert four.json("ticket", "show", TICKETS[1])["state"] == "delayed"
    statuses = [four.json("status", "--stream", keys.stream) for keys in four.keys]
    assert [one["delayed"] for one in statuses] == [2, 1, 1, 1]
    assert [one["in_flight"] for one in statuses] == [0, 0, 0, 0]

    # They are changed, each in its partition.
    assert "cancelled 1 delayed message" in four.command("delayed", "cancel", ids[1])
    assert "made due 2 delayed messages" in four.command("delayed", "now", ids[2], held)
    four.wait_done(4)
    assert (four.lane.log(TICKETS[2]), four.lane.log(TICKETS[0])) == ([2], [9, 10])
    assert "rescheduled 1 delayed message to 20" in four.command(
        "delayed", "reschedule", "--ticket", TICKETS[3], "--delay", "0.5", "--yes"
    )
    four.wait_done(5)
    assert four.lane.log(TICKETS[3]) == [3]
    assert ids_of(four.json("delayed", "list")) == [ids[0]]
    # Those that are over are refused, and nothing is changed.
    for id_ in (ids[1], ids[2], held):
        said = four.command("delayed", "cancel", ids[0], id_, code=1)
        assert id_ in said
        assert len(said.splitlines()) == 1
    assert ids_of(four.json("delayed", "list")) == [ids[0]]
    assert sum(int(four.redis.hget(keys.counts, "cancelled") or 0) for keys in four.keys) == 1
    four.command("delayed", "cancel", "--all", "--yes")
    assert four.json("delayed", "list")["total"] == 0
    assert four.lane.log(TICKETS[1]) == []


def test_a_message_that_has_begun_is_not_changed(four: Operated) -> None:
    started(four)
    held = four.task("held").push(TICKETS[0], {"n": 1, "gate": "open"}, delay=0.2)
    wait_until(lambda: list(four.lane.ledger.glob("held-*")), description="it to run", timeout_s=90)
    for command in (["cancel"], ["now"], ["reschedule", "--delay", "9"]):
        said = four.command("delayed", command[0], held, *command[1:], code=1)
        assert held in said
        assert " not delayed" in said
    (four.lane.ledger / "open").touch()
    four.wait_done(2)


def test_a_delay_of_each_kind_is_kept_by_the_servers_clock(four: Operated) -> None:
    append = started(four)
    began = time.monotonic()
    eta = datetime.now(UTC) + timedelta(seconds=2)
    append.push_many(
        [(TICKETS[0], {"n": 2}, {"delay": 1}), (TICKETS[0], {"n": 3}, {"eta": eta}), (TICKETS[0], {"n": 1})]
    )
    append.push(TICKETS[1], {"n": 1}, delay=1, hold=True)
    append.push(TICKETS[1], {"n": 2})
    four.wait_done(6)
    assert time.monotonic() - began >= 1.9
    assert [four.lane.log(ticket) for ticket in TICKETS[:2]] == [[1, 2, 3], [1, 2]]


class Listed(RuleBasedStateMachine):
    """What is listed is what was pushed, without what was cancelled, came due or is over."""

    partitions: Partitions
    task: Any

    @initialize()
    def start(self) -> None:
        self.lanes = newest_lanes_of(self.task.app, None)
        self.redis = with_raw_replies(self.partitions.lane.server.client())
        for message in list(soonest_first(self.redis, self.lanes, Selection())):
            list(change(self.redis, self.lane_of(message.id), DelayedAct.CANCEL, [message]))
        #: Message -> (due, mode).
        self.there: dict[str, tuple[int, Mode]] = {}

    def lane_of(self, id_: str) -> Any:
        return next(lane for lane in self.lanes if lane.id_suffix == id_[id_.index("@") :])

    @rule(ticket=st.sampled_from(TICKETS), rows=st.lists(st.tuples(st.integers(600, 605), st.booleans()), max_size=6))
    def push(self, ticket: str, rows: list[tuple[int, bool]]) -> None:
        at = datetime.now(UTC).replace(microsecond=0)
        etas = [at + timedelta(seconds=seconds) for seconds, _ in rows]
        own = [{"eta": eta, "hold": hold} for eta, (_, hold) in zip(etas, rows, strict=True)]
        ids = self.task.push_many([(ticket, {"n": 0}, one) for one in own])
        for id_, eta, (_, hold) in zip(ids, etas, rows, strict=True):
            self.there[id_] = (int(eta.timestamp()) * 1000, Mode.HOLD if hold else Mode.OVERTAKE)

    @precondition(lambda self: self.there)
    @rule(data=st.data(), act=st.sampled_from([DelayedAct.CANCEL, DelayedAct.RESCHEDULE]))
    def change(self, data: st.DataObject, act: DelayedAct) -> None:
        self.settle()
        id_ = data.draw(st.sampled_from(sorted(self.there)))
        due_ms = (int(time.time()) + data.draw(st.integers(600, 605))) * 1000 if act is DelayedAct.RESCHEDULE else None
        [message] = [one for one in soonest_first(self.redis, self.lanes, Selection()) if one.id == id_]
        [result] = change(self.redis, self.lane_of(id_), act, [message], due_ms)
        assert result.why is None
        if due_ms is None:
            del self.there[id_]
        else:
            self.there[id_] = (due_ms, self.there[id_][1])

    @invariant()
    def listed(self) -> None:
        if hasattr(self, "there"):
            self.settle()

    def settle(self) -> None:
        """Waits until the leader has read what was pushed, and compares."""

        def found() -> list[tuple[str, int, Mode]]:
            return [(one.id, one.due_ms, one.mode) for one in soonest_first(self.redis, self.lanes, Selection())]

        wait_until(lambda: len(found()) == len(self.there), description=f"{len(self.there)} to be listed")
        now = found()
        assert {id_: (due_ms, mode) for id_, due_ms, mode in now} == self.there
        assert [due_ms for _, due_ms, _ in now] == sorted(due_ms for due_ms, _ in self.there.values())

    def teardown(self) -> None:
        if hasattr(self, "redis"):
            self.redis.close()


def test_what_is_listed_is_what_was_pushed_without_the_changes(four: Operated) -> None:
    task = started(four)
    machine = type("Machine", (Listed,), {"partitions": four, "task": task})
    run_state_machine_as_test(
        machine, settings=hypothesis_settings(max_examples=8, stateful_step_count=12, deadline=None)
    )
    # Those that wait are not lost, nor are those that were cancelled.
    four.json("audit")
