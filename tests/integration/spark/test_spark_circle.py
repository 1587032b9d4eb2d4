"""The full circle: log → Spark → bridge → workers → history → archive → report, and its numbers are the log's.

And the other half of trusting it: a stream that is fed faster than it is worked off stays as short as it was told to.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import redis

from bridge.spark import archive, push, report
from bridge.spark.generate import incident_log
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.nodes.process import ProcessNode, python_module
from bridge.testing.waiting import wait_until
from tests.integration.lanes import APP, LaneUnderTest
from tests.integration.spark.spark_jobs import JobsHere, without_java

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

#: Attempts of the app under test, after which a message is dead.
MAX_ATTEMPTS = 3
APPEND, FLAKY = "counter.append", "counter.flaky"
PARTITIONS = 2


@dataclass(frozen=True)
class Event:
    """One row of the log, and what must become of it."""

    ticket: str
    n: int
    task: str
    #: The attempt that succeeds; more than there are: it ends in the dead letters.
    until: int
    time: str

    @property
    def dead(self) -> bool:
        return self.until > MAX_ATTEMPTS

    @property
    def executions(self) -> int:
        return min(self.until, MAX_ATTEMPTS)

    def row(self, **more: Any) -> str:
        named = {"ticket_id": self.ticket, "n": self.n, "task": self.task, "until": self.until, "at": self.time}
        return json.dumps({**named, **more}) + "\n"


def make_events(count: int, tickets: int, seed: int) -> list[Event]:
    """A generated incident log in which some events fail once or twice, and a few for good."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    events = []
    for row in incident_log(count, tickets, seed):
        until = rng.choices((1, 2, 3, 99), (93, 4, 2, 1))[0]
        task = APPEND if until == 1 else FLAKY
        events.append(Event(row["ticket_id"], int(row["seq"]), task, until, row["timestamp"]))
    return events


def per_ticket(events: list[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event.n):
        found[event.ticket].append(event)
    return found


class Trace(threading.Thread):
    """How long the stream was after each write to it, exactly: from every command that the server carried out.

    Looking at its length now and then could miss the moment when it was too long.
    """

    END = "the-trace-is-over"

    def __init__(self, server: EmbeddedServer, stream: str) -> None:
        super().__init__(name="trace", daemon=True)
        self._client = server.client(socket_timeout=None)
        self._stream = stream
        self._listening = threading.Event()
        self._gone: set[str] = set()
        self.length = 0
        self.longest = 0
        self.added = 0

    def begin(self) -> None:
        self.start()
        assert self._listening.wait(10)

    def end(self) -> None:
        self._client.echo(self.END)
        self.join(30)
        assert not self.is_alive()

    def run(self) -> None:
        # The server of a test that failed goes first.
        with suppress(redis.ConnectionError), self._client.monitor() as monitor:
            self._listening.set()
            for heard in monitor.listen():
                word, _, rest = heard["command"].partition(" ")
                if word.upper() == "ECHO" and rest == self.END:
                    return
                key, _, rest = rest.partition(" ")
                if key == self._stream:
                    self._count(word.upper(), rest)

    def _count(self, word: str, rest: str) -> None:
        if word == "XADD":
            self.length += 1
            self.added += 1
            self.longest = max(self.longest, self.length)
        elif word == "XDEL":
            # Scripts begin with a removal of nothing, which a full server lets through.
            gone = set(rest.split()) - {"0-0"} - self._gone
            self._gone |= gone
            self.length -= len(gone)


def said(node: ProcessNode) -> list[dict[str, Any]]:
    """What a job said so far; nothing but JSON lines, not even a word of Spark's."""
    return [json.loads(line) for line in node.logs().splitlines()]


def test_the_report_of_a_log_that_went_the_whole_way_says_what_the_log_says(
    nodes: NodeYard, own_server: EmbeddedServer, jobs_here: JobsHere, tmp_path: Path
) -> None:
    # Given a log with events that fail, and a bridge with two workers
    events = make_events(240, 30, seed=17)
    log = tmp_path / "events.jsonl"
    log.write_text("".join(event.row() for event in events))
    # A machine that starts a Java may stand still for a second or two: no lease is to end of that, all is counted once
    lane = LaneUnderTest(nodes, own_server, tmp_path, COUNTER_LEASE="20", COUNTER_LEADER_LEASE="20")
    for worker in [lane.worker(name, "--concurrency=1", wait=False) for name in ("w1", "w2")]:
        worker.wait_ready(timeout_s=300)
    lane.master("m1", wait=False).wait_ready(timeout_s=300)
    high, chunk = 100, 25
    # When it is pushed, while it is worked off, into a stream that may not become long
    trace = Trace(own_server, lane.keys.stream)
    trace.begin()
    arguments = ["--seq", "n", "--order", "at", "--task-column", "task", "--partitions", str(PARTITIONS)]
    limits = ["--high-water", str(high), "--chunk-size", str(chunk)]
    pushed = jobs_here(push.main, log, "--url", own_server.url, *arguments, *limits)[-1]
    lane.wait_done(len(events), timeout_s=180)
    lane.assert_at_rest()
    # Then every event ran once in its ticket's order, and the stream was never longer than it may be
    assert (pushed["rows"], pushed["already"]) == (len(events), 0)
    for ticket, own in per_ticket(events).items():
        assert lane.log(ticket) == [event.n for event in own if not event.dead]
    # And what was done has left it; dead letters' messages stay, since they can be replayed only from there
    dead = [event for event in events if event.dead]
    wait_until(lambda: lane.redis.xlen(lane.keys.stream) == len(dead), description="what is done to leave the stream")
    trace.end()
    assert (trace.added, trace.length) == (len(events), len(dead)), "the trace is not exact"
    assert trace.longest < high + chunk
    assert len(lane.dead_letters()) == len(dead)

    # When the lane is archived, and the archive reported on
    kept, shown = tmp_path / "archive", tmp_path / "report"
    archived = jobs_here(archive.main, kept, "--url", own_server.url, "--allow-data-loss")
    assert archived[-1]["event"] == "done"
    summary = jobs_here(report.main, kept, "--out", shown)[-1]
    # Then its numbers are the log's
    executions = sum(event.executions for event in events)
    retries = executions - len(events)
    expected = {
        "messages": len(events),
        "tickets": len(per_ticket(events)),
        "done": len(events) - len(dead),
        "dead": len(dead),
        "refused": 0,
        "undone": 0,
        "executions": executions,
        "retries": retries,
        # Every execution but the one that succeeds.
        "failures": executions - (len(events) - len(dead)),
        "losses": 0,
    }
    assert {"event": summary["event"], **{name: summary[name] for name in expected}} == {"event": "done", **expected}
    # ticket by ticket
    tickets = {row["ticket_id"]: row for row in pq.read_table(shown / "tables" / "tickets").to_pylist()}
    assert {ticket: counts(row) for ticket, row in tickets.items()} == {
        ticket: counts_of(own) for ticket, own in per_ticket(events).items()
    }
    # and task by task
    tasks = {row["task"]: row for row in pq.read_table(shown / "tables" / "tasks").to_pylist()}
    assert {task: counts(row) for task, row in tasks.items()} == {
        task: counts_of([event for event in events if event.task == task]) for task in (APPEND, FLAKY)
    }
    # The dead letters name the messages that were to die, and why
    letters = pq.read_table(kept / "dead").to_pylist()
    assert Counter(letter["ticket_id"] for letter in letters) == Counter(event.ticket for event in dead)
    assert {letter["attempts"] for letter in letters} == {MAX_ATTEMPTS}
    page = (shown / "report.html").read_text()
    assert f"{len(events):,}" in page


COUNTED = ("messages", "done", "dead", "executions", "retries", "failures")


def counts(row: dict[str, Any]) -> dict[str, int]:
    return {name: row[name] for name in COUNTED}


def counts_of(events: list[Event]) -> dict[str, int]:
    dead = sum(event.dead for event in events)
    executions = sum(event.executions for event in events)
    values = (len(events), len(events) - dead, dead, executions, executions - len(events))
    return dict(zip(COUNTED, (*values, executions - (len(events) - dead)), strict=True))


# Long: `test_spark_push_follow.py` has a push that follows a folder and waits, the test above a bounded stream, and the
# demo's test a push as a process.
@pytest.mark.long
@pytest.mark.parametrize("java", ["any", "wheel"])
def test_a_stream_that_is_fed_faster_than_it_is_worked_off_stays_short(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path, java: str
) -> None:
    # Given a folder that files go on appearing in, and workers that are slower; and perhaps no Java but the wheel's
    tickets, each, files, high, chunk = 25, 20, 4, 100, 25
    folder = tmp_path / "landing"
    folder.mkdir()
    lane = LaneUnderTest(nodes, own_server, tmp_path)

    def land(number: int) -> None:
        part = range(each * number // files, each * (number + 1) // files)
        rows = [Event(f"T{t}", n, APPEND, 1, "").row(ms=8) for n in part for t in range(tickets)]
        random.Random(number).shuffle(rows)
        hidden = folder / f".{number}"
        hidden.write_text("".join(rows))
        hidden.rename(folder / f"{number}.jsonl")

    land(0)
    trace = Trace(own_server, lane.keys.stream)
    trace.begin()
    arguments = ["--format", "json", "--follow", "--checkpoint", str(tmp_path / "checkpoint"), "--seq", "n"]
    limits = ["--high-water", str(high), "--chunk-size", str(chunk), "--partitions", str(PARTITIONS)]
    places = ["--master", "local[2]", "--progress", "json"]
    # A process as a user starts it, from its start to its end by a signal
    command = python_module("bridge", "-A", APP, "spark", "push", str(folder), *arguments, *limits, *places)
    address = {"CELERY_BROKER_URL": own_server.url, "CELERY_RESULT_BACKEND": own_server.url}
    only_wheel = without_java(tmp_path) if java == "wheel" else {}
    pushing = nodes.process("push", command, env={**address, **only_wheel}, wait=False)
    for worker in [lane.worker(name, "--concurrency=1", wait=False) for name in ("w1", "w2")]:
        worker.wait_ready(timeout_s=300)
    # When it is full before anybody takes anything out, and then goes on to be fed
    wait_until(
        lambda: not pushing.running or any(line["event"] == "waiting" for line in said(pushing)),
        description="the push to wait for room",
        timeout_s=300,
    )
    assert pushing.running, pushing.logs()
    assert java == "any" or list((tmp_path / "cache").rglob("bin/java"))
    lane.master("m1", wait=False).wait_ready(timeout_s=300)
    for number in range(1, files):
        land(number)
    lane.wait_done(tickets * each, timeout_s=300)
    assert pushing.terminate(timeout_s=180) == 0, pushing.logs()
    lane.assert_at_rest()
    wait_until(lambda: lane.redis.xlen(lane.keys.stream) == 0, description="what is done to leave the stream")
    trace.end()
    # Then it was full, never over it, and everything arrived: once, in order, one at a time
    assert (trace.added, trace.length) == (tickets * each, 0), "the trace is not exact"
    assert high <= trace.longest < high + chunk
    lane.assert_logs(tickets, each)
    lane.assert_no_overlap()
    lines = said(pushing)
    assert (lines[-1]["event"], lines[-1]["rows"]) == ("done", tickets * each)
    assert sum(line["rows"] for line in lines if line["event"] == "epoch") == tickets * each
    assert all("stream" in line["reason"] for line in lines if line["event"] == "waiting")
    wait_until(lambda: not pushing.survivors(), description="the end of all")
