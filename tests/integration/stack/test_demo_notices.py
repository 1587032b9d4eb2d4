"""The program in Node of the demo, with a real master over real HTTP."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bridge.stack.demo.ledger import read_ledger
from bridge.stack.demo.notices import CONSUMER, PROGRAM, TOKEN
from bridge.stack.demo.verdict import judge
from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST, free_port
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.http.http_consumers import SHORT_LEASE, HttpLane

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="no node here")


def test_it_goes_to_the_next_master_and_registers_again_after_its_lease(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = HttpLane(nodes, own_server, tmp_path, **SHORT_LEASE)
    lane.master("m1")
    # Nobody listens at the first address.
    masters = ",".join(f"http://{HOST}:{port}" for port in (free_port(), lane.ports["m1"]))
    ledger_dir = tmp_path / "of-node"
    ledger_dir.mkdir()
    command = ["node", str(PROGRAM), masters, CONSUMER, lane.keys.group, str(ledger_dir)]
    program = nodes.process("node", command, env={TOKEN: "any"}, cwd=tmp_path, wait=False)
    for seq in (1, 2, 3):
        lane.push("T1", {"seq": seq})
    lane.push("T2", {"seq": "1"})
    lane.wait_done(4)

    program.pause()
    wait_until(lambda: lane.redis.hlen(lane.keys.consumers) == 0, description="it to be taken for lost")
    lane.push("T1", {"seq": 4})
    program.resume()
    lane.wait_done(5)
    assert "the lease is over: registers again" in program.logs()

    ledger = read_ledger(ledger_dir).of(lane.keys.group)
    found = judge(ledger, {"T1": 4, "T2": 1}, {})
    assert found.clean, found
    assert [process.worker for process in read_ledger(ledger_dir).processes] == [CONSUMER]
    program.kill("SIGTERM")
    assert program.wait() == 0
    wait_until(lambda: lane.redis.hlen(lane.keys.consumers) == 0, description="it to be gone")
    lane.assert_at_rest()


def test_it_works_after_a_registration_that_waited_for_an_older_lease(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = HttpLane(nodes, own_server, tmp_path, **SHORT_LEASE)
    lane.master("m1")
    ledger_dir = tmp_path / "of-node"
    ledger_dir.mkdir()
    # Given a consumer of its name that never renews its lease: the registration waits for as long as a lease
    lane.consumer(CONSUMER)
    command = ["node", str(PROGRAM), f"http://{HOST}:{lane.ports['m1']}", CONSUMER, lane.keys.group, str(ledger_dir)]
    program = nodes.process("node", command, env={TOKEN: "any"}, cwd=tmp_path, wait=False)
    lane.push("T1", {"seq": 1})
    lane.wait_done(1)
    assert "the lease is over" not in program.logs()
    program.kill("SIGTERM")
    assert program.wait() == 0
