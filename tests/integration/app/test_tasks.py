"""The example app on a real worker and a real master: states, refusals and the ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bridge.routing.keys import LaneKeys
from bridge.stack.demo.ledger import Kind, read_ledger
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tasks.incidents import State, fold, record_event

KEYS = LaneKeys("ticket_stream", "concurrency_stream_group")


def event(seq: int, activity: str = "Active") -> dict[str, str]:
    return {
        "seq": str(seq),
        "activity": activity,
        "timestamp": f"2024-03-04T08:{seq:02d}:00",
        "assignment_group": f"Group {seq % 3}",
        "opened_at": "2024-03-04T07:59:00",
        "priority": "3 - Moderate",
        "made_sla": "true",
    }


def push(server: EmbeddedServer, ticket: str, *events: dict[str, str]) -> None:
    """Pushes straight into the stream, as a service without Celery does."""
    with server.client() as client:
        for one in events:
            # The fields are the payload.
            fields: dict[Any, Any] = {"ticket_id": ticket, **one}
            client.xadd(KEYS.stream, fields)


def state_of(server: EmbeddedServer, ticket: str) -> State:
    with server.client(decode_responses=True) as client:
        found: Any = client.hgetall(KEYS.state(ticket))
        return {name: json.loads(value) for name, value in found.items()}


def folded(*events: Mapping[str, Any]) -> State:
    state: State = {}
    for one in events:
        state = fold(state, one)
    return state


@pytest.fixture
def ledger_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "ledger"
    directory.mkdir()
    return directory


@pytest.fixture
def lane(nodes: NodeYard, ledger_dir: Path) -> NodeYard:
    """A master and one worker of the example app, whose executions are recorded."""
    env = {"BRIDGE_LEDGER_DIR": str(ledger_dir), "BRIDGE_LEASE": "4"}
    nodes.master("m1", app="tasks", env=env, ready_text="leading", wait=False)
    nodes.worker("w1", app="tasks", env=env, wait=False)
    for node in nodes.nodes:
        node.wait_ready()
    return nodes


def test_the_state_in_redis_is_the_fold_of_the_events(own_server: EmbeddedServer, lane: NodeYard) -> None:
    activities = ["New", "Active", "Awaiting Vendor", "Resolved", "Active", "Closed"]
    events = [event(n, activity) for n, activity in enumerate(activities, 1)]
    for ticket in ("INC1", "INC2"):
        push(own_server, ticket, *events)
    wait_until(
        lambda: [state_of(own_server, ticket) for ticket in ("INC1", "INC2")] == [folded(*events)] * 2,
        description="the states to be those of all events",
    )


def test_beside_an_event_without_a_time_no_time_passes() -> None:
    without = {**event(2), "timestamp": ""}
    assert folded(event(1), without, event(3), event(4))["sla_seconds"] == "60"
    assert folded(event(1), {**without, "timestamp": None})["updated_at"] == ""


def test_an_event_out_of_order_changes_nothing_and_ends_in_the_dead_letters(
    own_server: EmbeddedServer, lane: NodeYard
) -> None:
    push(own_server, "INC1", event(1), event(3), event(2))
    with own_server.client(decode_responses=True) as client:
        wait_until(lambda: client.xlen(KEYS.dead), description="the dead letter", timeout_s=90)
        [(_, letter)] = client.xrange(KEYS.dead)
    assert letter["error"] == "OutOfOrder: incident INC1 got event 3 where event 2 was due"
    assert letter["ticket_id"] == "INC1"
    wait_until(lambda: state_of(own_server, "INC1") == folded(event(1), event(2)), description="event 2 to be applied")


def test_the_ledger_has_a_start_and_an_end_for_every_execution(
    own_server: EmbeddedServer, lane: NodeYard, ledger_dir: Path
) -> None:
    push(own_server, "INC1", event(1), event(2), event(4))
    wait_until(
        lambda: {r.kind for r in read_ledger(ledger_dir).records} == set(Kind), description="the failure's record"
    )
    ledger = read_ledger(ledger_dir)
    assert [(r.kind, r.seq) for r in sorted(ledger.records, key=lambda r: r.at_ns)][:6] == [
        (Kind.START, 1),
        (Kind.DONE, 1),
        (Kind.START, 2),
        (Kind.DONE, 2),
        (Kind.START, 4),
        (Kind.FAILED, 4),
    ]
    assert {r.ticket for r in ledger.records} == {"INC1"}
    assert all(r.fence > 0 and r.attempt == 1 for r in ledger.records[:6])
    worker = lane.nodes[1]
    assert worker.pid is not None
    assert {r.pid for r in ledger.records} <= ledger.children_of(worker.pid)


def test_the_ledger_survives_a_kill_of_all_processes(
    own_server: EmbeddedServer, lane: NodeYard, ledger_dir: Path
) -> None:
    push(own_server, "INC1", event(1))
    wait_until(lambda: len(read_ledger(ledger_dir).records) == 2, description="the records of one execution")
    lane.nodes[1].vanish()
    assert [r.kind for r in read_ledger(ledger_dir).records] == [Kind.START, Kind.DONE]


def test_called_without_the_bridge_it_says_how_to_call_it() -> None:
    with pytest.raises(RuntimeError, match=r"record_event\.push"):
        record_event("INC1", event(1))
