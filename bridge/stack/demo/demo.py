"""``bridge demo``: the stack with data, a worker killed on the way, and a verdict.

1. Spark computes, from the log alone, the state that every incident must end in, while the stack comes up.
2. Spark pushes the log; the workers handle it meanwhile.
3. When 40 % of the work of all subscriptions is done, one worker gets SIGKILL, and another one is started.
4. When everything is handled, the ledger of executions and the states in Redis are compared with what Spark computed.
   Spark itself compares the states, too, in the table of `redisstate`.

One incident of fifty gets two follow-ups, which are delayed messages: the verdict says whether they came in time and in
order. The first subscription of the app keeps the states. One with the name `TRAIL` is judged, too: its trails in Redis
and its part of the ledger. One with the name `NOTICES` gets an HTTP consumer in Node, whose part of the ledger is
judged.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import orjson
from rich.console import Console

from bridge.link.connections import UNAVAILABLE
from bridge.routing.errors import ConfigurationError, InputError
from bridge.routing.keys import LaneKeys
from bridge.routing.records import parse
from bridge.stack.child import Child
from bridge.stack.demo.follow_ups import FOLLOW_UP_S, has_follow_ups, judge_follow_ups
from bridge.stack.demo.ledger import read_ledger
from bridge.stack.demo.notices import CONSUMER, NOTICES, TOKEN, URGENT, command, judge_notices
from bridge.stack.demo.progress import Counts, ProgressView, read_counts
from bridge.stack.demo.verdict import (
    EXAMPLES,
    DemoVerdict,
    TrailVerdict,
    compare_states,
    compare_trails,
    judge,
    time_to_reroute,
)
from bridge.stack.demo.verdict_table import verdict_table
from bridge.stack.stack import Plan, Stack

if TYPE_CHECKING:
    from bridge.settings.lane import LaneSettings
    from bridge.stack.stopping import StopRequest

#: The name of the subscription that keeps an audit trail.
TRAIL = "audit_trail"
GENERATED_EVENTS, GENERATED_TICKETS = 20_000, 3_500
#: Seconds after which the first follow-up of an incident is due.
FIRST_DUE_S = 1.5
#: Share of the messages that are handled when a worker is killed.
KILL_AT = 0.4
#: Seconds without any progress after which the run counts as stuck, once the push has begun.
PATIENCE_S = 60.0
#: Longest time for the jobs that read or make the log, and for the push until it begins (Java starts), in seconds.
JOB_TIMEOUT_S = 900.0
#: Seconds between two looks: until the kill, which should be in time, and after it.
QUICK_S, CALM_S = 0.02, 0.2
#: Tickets in one round trip when the states are read.
CHUNK = 1000


class Kill:
    """The killed worker, and its tickets in flight at that moment."""

    def __init__(self, name: str, replacement: str) -> None:
        self.name = name
        self.replacement = replacement
        self.pid = 0
        self.at_ns = 0
        #: Ticket -> (first fence, messages) of the run that was in flight there.
        self.interrupted: dict[str, tuple[int, int]] = {}


class Demo:
    """One run; a context manager that stops its stack."""

    def __init__(
        self,
        plan: Plan,
        stream: str,
        lanes: Mapping[str, Sequence[LaneSettings]],
        events: str | None,
        stop: StopRequest,
        console: Console,
    ) -> None:
        """``stream``: the app's. ``lanes``: those of each of its subscriptions. ``events``: the log. None: one is
        generated.

        Raises `InputError` for a log that does not exist, and `ConfigurationError` when the demo cannot work here.
        """
        if importlib.util.find_spec("pyspark") is None:
            raise ConfigurationError("the demo needs Spark: pip install 'ticket-bridge[spark,java]'")
        if events is not None and "://" not in events and not Path(events).exists():
            raise InputError(f"there is no file {events}")
        if plan.directory.exists() and any(plan.directory.iterdir()):
            raise ConfigurationError(f"the demo needs a folder of its own, and {plan.directory} is not empty")
        self.ledger_dir = plan.directory / "ledger"
        self.states_file = plan.directory / "states.jsonl"
        self._name, self._lanes = next(iter(lanes.items()))
        self._trail_lanes = lanes.get(TRAIL, ()) if self._name != TRAIL else ()
        self._notice_lanes = lanes.get(NOTICES, ()) if self._name != NOTICES else ()
        environment = {**plan.env, "BRIDGE_LEDGER_DIR": str(self.ledger_dir), FOLLOW_UP_S: str(FIRST_DUE_S)}
        with_ledger = Plan(**{**vars(plan), "env": environment, "http": bool(self._notice_lanes)})
        self.stack = Stack(with_ledger, [lane for each in lanes.values() for lane in each], stop, self._say)
        self._stream = stream
        self._events = events
        self._console = console
        self._push_began = False
        self._pushed: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.close()

    def run(self) -> DemoVerdict:
        """The whole run; prints the verdict and returns it.

        Raises `InputError`, `StackFailed`, and `Stopped`, when there can be no verdict.
        """
        self.ledger_dir.mkdir(parents=True)
        self._say(f"logs      {self.stack.plan.directory}")
        log = self._events or self._generate()
        spark_log = self.stack.plan.directory / "spark-incidents.log"
        expected_job = self.stack.start_job(
            "expected",
            "bridge.spark.incidents",
            log,
            *("--out", str(self.states_file), "--spark-log", str(spark_log)),
            *(f"--priority={priority}" for priority in URGENT),
        )
        self.stack.start()
        if self._notice_lanes:
            program = command(self.stack.http_url, self.ledger_dir)
            self.stack.start_program(CONSUMER, program, {TOKEN: self.stack.http_token})
            self._say(f"Node      {CONSUMER} handles the urgent events over HTTP, from {self.stack.http_url}")
        with self._console.status("Spark computes the state that every incident must end in"):
            self._await(expected_job)
        expected, urgent = self._expected()
        total = sum(int(state["events"]) for state in expected.values())
        self._say(f"log       {total:,} events of {len(expected):,} incidents")
        follow_ups = 2 * sum(map(has_follow_ups, expected))
        kill, problems = self._handle(log, total, follow_ups, sum(map(len, urgent.values())))
        verdict = self._judge(expected, urgent, kill, problems)
        self._print(verdict)
        text = orjson.dumps(verdict.as_dict(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        (self.stack.plan.directory / "verdict.json").write_bytes(text)
        return verdict

    # -- the steps ---------------------------------------------------------------------------------------------------

    def _generate(self) -> str:
        out = str(self.stack.plan.directory / "events.csv.gz")
        arguments = (out, "--events", str(GENERATED_EVENTS), "--tickets", str(GENERATED_TICKETS))
        self._await(self.stack.start_job("generate", "bridge.spark.generate", *arguments))
        return out

    def _await(self, job: Child) -> None:
        """Waits for a job's end. Raises `InputError` with its own words when it fails."""
        self.stack.wait_for(lambda: job.finished() == 0, f"the job {job.name} to end", JOB_TIMEOUT_S, CALM_S)

    def _expected(self) -> tuple[dict[str, dict[str, str]], dict[str, list[int]]]:
        """Incident -> the state that it must end in, and incident -> the numbers of its urgent events, if any."""
        states, urgent = {}, {}
        with self.states_file.open("rb") as lines:
            for line in lines:
                found = orjson.loads(line)
                states[found["ticket_id"]] = found["state"]
                if found["seqs"]:
                    urgent[found["ticket_id"]] = found["seqs"]
        return states, urgent

    def _handle(self, log: str, total: int, follow_ups: int, urgent: int) -> tuple[Kill, list[str]]:
        """Pushes the log and waits until it is handled, killing a worker on the way; the kill, and what went wrong."""
        kill = Kill("", f"w{len(self.stack.workers) + 1}")
        problems: list[str] = []
        push_job = self._start_push(log)
        progressed_at = time.monotonic()
        last: tuple[int, bool] | None = None
        with ProgressView(self._console, total + follow_ups, urgent) as view:

            def is_over() -> bool:
                nonlocal progressed_at, last
                if problems:
                    return True
                try:
                    counts = read_counts(self.stack.redis, self._lanes)
                    trail = read_counts(self.stack.redis, self._trail_lanes) if self._trail_lanes else None
                    notices = read_counts(self.stack.redis, self._notice_lanes) if self._notice_lanes else None
                except UNAVAILABLE:
                    # If the server is gone, the next look at the processes says so.
                    return False
                view.show(counts, trail, notices)
                by_workers = [one for one in (counts, trail) if one is not None]
                everything = [*by_workers, *([notices] if notices is not None else [])]
                settled = [one.settled for one in everything]
                if not kill.pid and sum(settled[: len(by_workers)]) >= KILL_AT * total * len(by_workers):
                    self._kill(kill, by_workers)
                now = (sum(settled) + counts.pushed, self._push_began)
                if now != last:
                    last, progressed_at = now, time.monotonic()
                patience_s = PATIENCE_S if self._push_began else JOB_TIMEOUT_S
                if time.monotonic() - progressed_at > patience_s:
                    problems.append(_stuck(min(everything, key=lambda one: one.settled), patience_s))
                    return True
                return push_job.finished() == 0 and min(settled) >= counts.pushed and bool(kill.pid)

            self.stack.wait_for(lambda: is_over() or bool(kill.pid), "40 % to be handled", poll_s=QUICK_S)
            self.stack.wait_for(is_over, "everything to be handled", poll_s=CALM_S)
        if push_job.finished() == 0 and self._pushed.get("rows") != total:
            problems.append(f"Spark says that it pushed {self._pushed.get('rows')} messages; the log has {total}")
        return kill, problems

    def _start_push(self, log: str) -> Child:
        def on_line(line: str) -> None:
            event = orjson.loads(line)
            if event.get("event") == "started":
                self._push_began = True
            if event.get("event") == "done":
                self._pushed.update(event)

        spark_log = self.stack.plan.directory / "spark-push.log"
        arguments = ("--url", self.stack.server.url, "--stream", self._stream, "--order", "timestamp")
        return self.stack.start_job(
            "push",
            "bridge.spark.push",
            log,
            *arguments,
            "--progress",
            "json",
            "--spark-log",
            str(spark_log),
            on_line=on_line,
        )

    def _kill(self, kill: Kill, found: Sequence[Counts]) -> None:
        """SIGKILL to the worker that has most to do; another one is started at once, under a name of its own."""
        names = {name: self.stack.worker_name(name) for name in self.stack.workers}
        busy = {name: sum(one.in_flight.get(full, 0) for one in found) for name, full in names.items()}
        kill.name = max(busy, key=lambda name: busy[name])
        kill.at_ns = time.monotonic_ns()
        kill.pid = self.stack.kill_worker(kill.name)
        consumer = self.stack.worker_name(kill.name)
        for lane in self._lanes:
            records: Any = self.stack.redis.hgetall(lane.keys.tickets)
            for ticket, raw in records.items():
                record = parse(raw)
                if record.in_flight and record.consumer == consumer:
                    kill.interrupted[ticket.decode()] = (record.fence, len(record.ids))
        self._say(
            f"kill -9   {kill.name} (pid {kill.pid}) with {len(kill.interrupted)} tickets in flight; "
            f"{kill.replacement} is started in its place"
        )
        self.stack.add_workers([kill.replacement], wait=False)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _judge(
        self, expected: dict[str, dict[str, str]], urgent: dict[str, list[int]], kill: Kill, problems: list[str]
    ) -> DemoVerdict:
        counts = read_counts(self.stack.redis, self._lanes)
        everything = read_ledger(self.ledger_dir)
        ledger = everything.of(self._name)
        processes = ledger.children_of(kill.pid)
        events = {ticket: int(state["events"]) for ticket, state in expected.items()}
        killed = dict.fromkeys(processes, kill.at_ns)
        findings = judge(ledger, events, killed)
        trail = None
        if self._trail_lanes:
            of_trail = read_counts(self.stack.redis, self._trail_lanes)
            complete, incomplete = compare_trails(expected, self._actual_trails(list(expected)))
            trail = TrailVerdict(of_trail.done, of_trail.dead, judge(everything.of(TRAIL), events, killed), complete)
            problems += [f"audit trail: {line}" for line in trail.findings.examples] + incomplete
        notices = None
        if self._notice_lanes:
            of_notices = read_counts(self.stack.redis, self._notice_lanes)
            notices = judge_notices(everything, urgent, of_notices.done, of_notices.dead)
            problems += [f"handled by Node: {line}" for line in notices.findings.examples]
        equal, differences = compare_states(expected, self._actual_states(list(expected)))
        read_by_spark = self._compare_in_spark(problems)
        follow_ups = judge_follow_ups(ledger, events, FIRST_DUE_S)
        return DemoVerdict(
            messages=sum(events.values()) + follow_ups.wanted,
            tickets=len(expected),
            done=counts.done,
            dead=counts.dead,
            findings=findings,
            states_equal=equal,
            states_read_by_spark=read_by_spark,
            problems=(*problems, *findings.examples, *differences, *self._dead_letters()),
            reroute=time_to_reroute(ledger, kill.interrupted, processes, kill.at_ns),
            killed=kill.name,
            lease_s=self._lanes[0].lease,
            trail=trail,
            follow_ups=follow_ups,
            notices=notices,
        )

    def _dead_letters(self) -> list[str]:
        """The first few of each lane, in words."""
        found: list[Any] = []
        for lane in (*self._lanes, *self._trail_lanes, *self._notice_lanes):
            letters_of_lane: Any = self.stack.redis.xrange(lane.keys.dead, count=EXAMPLES)
            found += letters_of_lane
        letters = [{name.decode(): value.decode(errors="replace") for name, value in f.items()} for _, f in found]
        return [
            f"dead: message {one.get('message_id')} of {one.get('ticket_id')}: {one.get('reason')}; {one.get('error')}"
            for one in letters
        ]

    def _actual_states(self, tickets: list[str]) -> dict[str, dict[str, str]]:
        states: dict[str, dict[str, str]] = {}
        # The states of a split stream are kept under the name of the whole.
        keys = LaneKeys(self._stream, self._lanes[0].keys.group)
        for start in range(0, len(tickets), CHUNK):
            chunk = tickets[start : start + CHUNK]
            with self.stack.redis.pipeline(transaction=False) as pipe:
                for ticket in chunk:
                    pipe.hgetall(keys.state(ticket))
                for ticket, found in zip(chunk, pipe.execute(), strict=True):
                    states[ticket] = {name.decode(): orjson.loads(value) for name, value in found.items()}
        return states

    def _compare_in_spark(self, problems: list[str]) -> int:
        """How many incidents have the expected state in the table that Spark reads (`redisstate`)."""
        result: dict[str, Any] = {}
        spark_log = self.stack.plan.directory / "spark-compare.log"
        job = self.stack.start_job(
            "compare",
            "bridge.spark.compare",
            *(str(self.states_file), "--url", self.stack.server.url, "--stream", self._stream),
            *("--group", self._lanes[0].keys.group, "--progress", "json", "--spark-log", str(spark_log)),
            "--any-result",
            on_line=lambda line: result.update(orjson.loads(line)),
        )
        with self._console.status("Spark reads the states"):
            self._await(job)
        problems += [f"state of {ticket} as Spark reads it: not the expected one" for ticket in result["differences"]]
        if result["other"]:
            problems.append(f"Spark reads the states of {result['other']} tickets that have no events")
        return int(result["equal"])

    def _actual_trails(self, tickets: list[str]) -> dict[str, list[bytes]]:
        trails: dict[str, list[bytes]] = {}
        for start in range(0, len(tickets), CHUNK):
            chunk = tickets[start : start + CHUNK]
            with self.stack.redis.pipeline(transaction=False) as pipe:
                for ticket in chunk:
                    pipe.lrange(f"trail:{ticket}", 0, -1)
                trails.update(zip(chunk, pipe.execute(), strict=True))
        return trails

    def _print(self, verdict: DemoVerdict) -> None:
        self._console.print(verdict_table(verdict))
        for problem in verdict.problems:
            self._say(f"wrong: {problem}")
        self._say("PASSED" if verdict.ok else "FAILED")

    def _say(self, line: str) -> None:
        self._console.print(line)


def _stuck(counts: Counts, for_s: float) -> str:
    """A sentence about a run that makes no progress."""
    dispatched = ", ".join(f"{n:,} on {name}" for name, n in counts.in_flight.items() if n) or "none"
    return (
        f"nothing moved for {for_s:g} s: pushed {counts.pushed:,}, done {counts.done:,}, dead {counts.dead:,}, "
        f"waiting {counts.waiting:,}, in flight {dispatched}, tickets that await a retry {counts.retrying:,}, "
        f"leader {counts.leader or 'none'}"
    )
