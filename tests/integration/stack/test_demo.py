"""`bridge demo` on small logs: the verdict is green for an honest app and red for one that is not."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.spark.generate import incident_log, write_log
from bridge.stack.demo.follow_ups import has_follow_ups
from bridge.stack.demo.notices import URGENT
from bridge.stack.ports import port_is_taken
from bridge.testing.nodes.process import ROOT, ProcessNode, python_module
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until

EVENTS, TICKETS = 1000, 150
#: Two of each incident of this log that has any.
FOLLOW_UPS = 2 * sum(has_follow_ups(f"INC{n:07}") for n in range(1, TICKETS + 1))
SMALL = ("--workers", "2", "--concurrency", "1", "--masters", "1", "--lease", "1.5", "--no-flower")


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[ProcessYard]:
    """No server: the demo starts its own."""
    made = ProcessYard(tmp_path, "redis://127.0.0.1:1/0")
    yield made
    made.close()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "events.csv.gz"
    write_log(incident_log(EVENTS, TICKETS, seed=5), path)
    return path


def demo(
    yard: ProcessYard, *arguments: str, app: str = "tasks", cwd: Path = ROOT, env: dict[str, str] | None = None
) -> ProcessNode:
    command = python_module("bridge", "-A", app, "demo", "--dir", str(yard.folder / "run"), *arguments)
    return yard.process("demo", command, cwd=cwd, env=env, wait=False)


def java_that_waits(home: Path) -> Path:
    """A ``JAVA_HOME``. Its Java has a version, and does nothing else: it writes the file ``waits``, and sleeps."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        textwrap.dedent(f"""\
            #!/bin/sh
            case "$*" in
            *-version*) echo 'java.home = {home}'; echo 'openjdk version "17.0.1"' ;;
            *) touch {home}/waits; exec sleep 600 ;;
            esac
        """)
    )
    program.chmod(0o755)
    return home


def verdict_of(yard: ProcessYard) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((yard.folder / "run" / "verdict.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.spark
@pytest.mark.slow
class TestWithSpark:
    def test_an_honest_run_passes(self, yard: ProcessYard, log: Path) -> None:
        run = demo(yard, "--events", str(log), *SMALL, "--json")
        assert run.wait(timeout_s=600) == 0, run.logs()
        verdict = verdict_of(yard)
        assert verdict["ok"] is True
        later = verdict["follow_ups"]
        assert (later["wanted"], later["came"], later["early"], later["reordered"]) == (FOLLOW_UPS, FOLLOW_UPS, 0, 0)
        assert verdict["messages"] == verdict["done"] == EVENTS + FOLLOW_UPS
        assert verdict["tickets"] == verdict["states_equal"] == verdict["states_read_by_spark"] == TICKETS
        faults = ("lost", "reordered", "overlapped", "unexpected", "dead")
        assert [verdict[fault] for fault in faults] == [0] * len(faults)
        assert verdict["killed"] in ("w1", "w2")
        assert verdict["throughput_per_s"] > 0
        assert verdict["problems"] == []
        trail = verdict["trail"]
        assert trail["ok"] is True
        assert (trail["done"], trail["complete"]) == (EVENTS + FOLLOW_UPS, TICKETS)
        assert [trail[fault] for fault in faults] == [0] * len(faults)
        if verdict["reroute"] is not None:
            assert verdict["reroute"]["max_s"] > 0
        said = run.logs()
        if shutil.which("node") is None:
            assert "Node      no HTTP consumer: there is no program `node`" in said
        else:
            urgent = sum(row["priority"] in URGENT for row in incident_log(EVENTS, TICKETS, seed=5))
            notices = verdict["notices"]
            assert urgent > 0
            assert (notices["ok"], notices["messages"], notices["done"]) == (True, urgent, urgent)
            assert [notices[fault] for fault in faults] == [0] * len(faults)
            assert re.search(rf"handled by Node +│ +{urgent} │ of {urgent} urgent events, over HTTP: 0 lost", said)
        assert '"ok": true' in said
        assert "PASSED" in said
        assert "kill -9" in said
        assert re.search(
            rf"follow-ups +│ +{FOLLOW_UPS} │ of {FOLLOW_UPS} delayed messages, 0 early, 0 out of order", said
        )
        assert re.search(r"audit trails +│ +150 │ of 150 complete", said)
        assert run.survivors() == []

    @pytest.mark.long
    def test_a_run_on_a_split_stream_passes(self, yard: ProcessYard, log: Path) -> None:
        (yard.folder / "split.py").write_text("from tasks import app\n\napp.conf.bridge_partitions = 2\n")
        run = demo(yard, "--events", str(log), *SMALL, app="split", cwd=yard.folder)
        assert run.wait(timeout_s=600) == 0, run.logs()
        verdict = verdict_of(yard)
        assert (verdict["done"], verdict["states_equal"]) == (EVENTS + FOLLOW_UPS, TICKETS)
        assert verdict["states_read_by_spark"] == TICKETS
        assert (verdict["trail"]["done"], verdict["trail"]["complete"]) == (EVENTS + FOLLOW_UPS, TICKETS)
        assert verdict["follow_ups"]["came"] == FOLLOW_UPS

    @pytest.mark.long
    def test_an_app_with_one_subscription_is_judged_alone(self, yard: ProcessYard, log: Path) -> None:
        run = demo(yard, "--events", str(log), *SMALL, env={"BRIDGE_AUDIT_TRAIL": "0", "BRIDGE_NOTICES": "0"})
        assert run.wait(timeout_s=600) == 0, run.logs()
        verdict = verdict_of(yard)
        assert (verdict["trail"], verdict["notices"]) == (None, None)
        assert "audit trail" not in run.logs()
        assert "Node" not in run.logs()

    @pytest.mark.long
    def test_a_dishonest_app_fails_and_the_verdict_says_why(self, yard: ProcessYard, log: Path) -> None:
        # The end of one event is missing in the ledger, that of another is written twice with an older number, one
        # incident has a wrong priority, and the first event of the log is changed in its audit trail.
        (yard.folder / "dishonest.py").write_text(
            textwrap.dedent("""
                from bridge.stack.demo.ledger import Kind, Record
                from tasks import app
                import tasks.incidents as incidents
                import tasks.trail as trail

                line_of = trail.line_of

                def altered(event):
                    line = line_of(event)
                    return f"{line}?" if event["src_row"] == "1" else line

                trail.line_of = altered
                honest = incidents.fold

                def fold(state, event):
                    changed = honest(state, event)
                    if event["src_row"] == "1":
                        changed["made_sla"] = "perhaps"
                    return changed

                incidents.fold = fold
                encode = Record.encode

                def tampered(record):
                    if record.subscription == "audit_trail":
                        return encode(record)
                    if record.kind is Kind.DONE and (record.ticket, record.seq) == ("INC0000002", 1):
                        return b""
                    if record.kind is Kind.DONE and (record.ticket, record.seq) == ("INC0000003", 2):
                        return encode(record._replace(seq=9999)) + encode(record)
                    return encode(record)

                Record.encode = tampered
            """)
        )
        last = {row["ticket_id"]: row for row in incident_log(EVENTS, TICKETS, seed=5)}
        run = demo(yard, "--events", str(log), *SMALL, app="dishonest", cwd=yard.folder)
        assert run.wait(timeout_s=600) == 1, run.logs()
        verdict = verdict_of(yard)
        assert verdict["ok"] is False
        assert verdict["lost"] == 1
        assert verdict["reordered"] >= 2
        changed = any(row["src_row"] == "1" for row in last.values())
        assert verdict["states_equal"] == verdict["states_read_by_spark"] == TICKETS - changed
        said = run.logs()
        assert "wrong: lost: INC0000002 event 1 never succeeded" in said
        assert "wrong: reordered: INC0000003 event 9999 succeeded after event 1" in said
        assert (verdict["trail"]["ok"], verdict["trail"]["complete"]) == (False, TICKETS - 1)
        assert re.search(r"wrong: audit trail of INC\d+: \d+ events, not those of the log", said)
        assert "FAILED" in said
        assert run.survivors() == []

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            # The first is refused before Java starts. Errors about columns are tested with the jobs.
            pytest.param("orders.txt", "cannot tell the format of ", id="format"),
            pytest.param("orders.csv", "the log has no column 'ticket_id'", id="columns", marks=pytest.mark.long),
        ],
    )
    def test_a_log_that_a_job_refuses_is_one_clear_line(self, yard: ProcessYard, name: str, said: str) -> None:
        other = yard.folder / name
        other.write_text("order,amount\n1,20\n")
        run = demo(yard, "--events", str(other), *SMALL)
        assert run.wait(timeout_s=300) == 1
        errors = [line for line in run.logs().splitlines() if line.startswith("Error: ")]
        assert len(errors) == 1, run.logs()
        assert errors[0].startswith(f"Error: {said}")
        assert "Traceback" not in run.logs()
        assert run.survivors() == []

    def test_ctrl_c_in_the_middle_stops_everything_without_a_verdict(self, yard: ProcessYard, log: Path) -> None:
        old = yard.folder / "bin" / "node"
        old.parent.mkdir()
        old.write_text("#!/bin/sh\nexit 1\n")
        old.chmod(0o755)
        # While Spark computes: this Java does not come to an end
        env = {"PATH": f"{old.parent}:{os.environ['PATH']}", "JAVA_HOME": str(java_that_waits(yard.folder / "java"))}
        run = demo(yard, "--events", str(log), *SMALL, env=env)
        wait_until(lambda: "workers   w1, w2" in run.logs(), description="the workers", timeout_s=180)
        wait_until((yard.folder / "java" / "waits").exists, description="Spark to start its Java", timeout_s=180)
        assert f"Node      no HTTP consumer: {old} does not run, or is older than version 18\n" in run.logs()
        port = int(run.logs().split("redis://127.0.0.1:")[1].split("/")[0])
        assert port_is_taken(port)
        run.send(signal.SIGINT)
        assert run.wait(timeout_s=90) == 130
        assert run.logs().splitlines()[-1] == "stopped before the end: no verdict"
        assert run.survivors() == []
        assert not port_is_taken(port)


def test_a_missing_log_is_one_clear_line(yard: ProcessYard) -> None:
    run = demo(yard, "--events", "no/such/log.csv")
    assert run.wait(timeout_s=90) == 1
    assert run.logs() == "Error: there is no file no/such/log.csv\n"


def test_a_folder_with_something_in_it_is_refused(yard: ProcessYard, log: Path) -> None:
    (yard.folder / "run").mkdir()
    (yard.folder / "run" / "mine.txt").write_text("precious")
    run = demo(yard, "--events", str(log))
    assert run.wait(timeout_s=90) == 2
    assert run.logs() == f"Error: the demo needs a folder of its own, and {yard.folder / 'run'} is not empty\n"
    assert [path.name for path in (yard.folder / "run").iterdir()] == ["mine.txt"]
