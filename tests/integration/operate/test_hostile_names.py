"""Names of streams, groups, apps, tickets and tasks that do harm where a program takes them for more than data."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import broker_environment
from bridge.testing.nodes.yard import ProcessYard
from tests.integration.lanes import QUICK, WITH_AND_WITHOUT_BUNDLES, LaneUnderTest
from tests.integration.servers import run_command

#: A name with characters that globs, shells, logs, scripts and key patterns treat specially.
ANYWHERE = "tests.apps.anywhere"
HOSTILE = "a b:c'\"\\*?[x]%7B\n\tünd " + "x" * 480


@pytest.mark.parametrize("bundle_ms", WITH_AND_WITHOUT_BUNDLES)
def test_names_of_any_kind_are_data(bundle_ms: str, own_server: EmbeddedServer, tmp_path: Path) -> None:
    names = {"bridge_stream": HOSTILE[:512], "bridge_group": HOSTILE[::-1][:500], "bridge_master": HOSTILE[:100]}
    with closing(ProcessYard(tmp_path, own_server.url)) as yard:
        lane = LaneUnderTest(yard, own_server, tmp_path, COUNTER_BUNDLE_MS=bundle_ms, ANYWHERE_CONF=json.dumps(names))
        lane.keys = LaneKeys(names["bridge_stream"], names["bridge_group"])
        yard.master("m1", app=ANYWHERE, env=lane.env, wait=False)
        yard.worker("w:1*[x]", app=ANYWHERE, arguments=("--concurrency=2", *QUICK), env=lane.env)
        lane.wait_consumers(1)
        tickets = [HOSTILE[:512].rstrip(), "{x}", "}", "a\x00b", "\n", "é" * 256, "-", "__proto__", '"', "\u202e"]
        tickets = [ticket for ticket in tickets if len(ticket.encode()) <= 512]
        for n in range(10):
            for ticket in tickets:
                lane.push(ticket, {"n": n})
        lane.push("flaky\n", {"n": 0, "until": 2}, "counter.flaky")
        lane.push("dead {", {"n": 0, "until": 9}, "counter.flaky")
        lane.push("x" * 513, {"n": 0})
        lane.push("T", {"n": "x" * (1024 * 1024)})
        lane.redis.xadd(lane.keys.stream, {b"\xff": b"\xfe", "ticket_id": b"\xff\xfe"})
        lane.wait_done(len(tickets) * 10 + 5)
        for ticket in tickets:
            assert lane.log(ticket) == list(range(10))
        assert lane.log("flaky\n") == [0]
        assert lane.redis.xlen(lane.keys.dead) == 4
        lane.assert_at_rest()
        # The commands show them, and none fails.
        environment = {**broker_environment(own_server.url), **lane.env}
        for arguments in (["status"], ["status", "--json"], ["ticket", "show", "dead {"], ["dead", "list"]):
            done = run_command(environment, *arguments, app=ANYWHERE)
            assert done.returncode == 0, done.stderr
            assert "Traceback" not in done.stderr
