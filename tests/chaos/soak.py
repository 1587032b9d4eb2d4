"""A long chaos run over an incident log, with a report: ``python -m tests.chaos.soak --help``.

The workers run the incident demo's own task. At the end the evidence is checked as in the short test, and the state of
every incident is compared with the one that Spark computes from the log alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import orjson
from redis import Redis

from bridge.routing.keys import LaneKeys
from bridge.stack.demo.verdict import compare_states
from bridge.stack.stopping import StopRequest
from bridge.testing.nodes.process import ROOT
from tests.chaos import draw, report
from tests.chaos.incident_log import LogError, count_rounds, original, read_log, rounds
from tests.chaos.result import Result
from tests.chaos.run import Plan, Run

VARIABLE = "TICKET_BRIDGE_INCIDENT_LOG"
WHERE_FROM = (
    "the real one is the 'Incident management process enriched event log' of the UCI Machine Learning Repository "
    "(doi 10.24432/C57S4H) as CSV with the columns ticket_id, seq (1, 2, ... within a ticket), activity, "
    "assignment_group, timestamp, opened_at (ISO), priority, made_sla; name it with --log or in " + VARIABLE
)
#: Generated events, at most: a log that is repeated is as good, and Spark reads it once.
GENERATED_AT_MOST = 150_000
#: Messages pushed and not settled, at most.
BACKLOG = 3000
CHUNK = 1000
#: The lane of `tasks`, under which the states are kept.
STATES = LaneKeys("ticket_stream", "concurrency_stream_group")


@click.command()
@click.option("--messages", default=300_000, show_default=True, help="At least this many messages.")
@click.option("--faults", default=300, show_default=True, help="How many faults.")
@click.option("--seed", type=int, help="Replays a draw [default: a new one, printed].")
@click.option("--hours", type=float, help="How long the faults go on [default: 2 s for each].")
@click.option("--report", "report_file", type=click.Path(path_type=Path), default=Path("soak.md"), show_default=True)
@click.option("--log", "log_file", type=click.Path(path_type=Path), envvar=VARIABLE, help="Incident log, CSV (.gz).")
@click.option("--cast", "cast_name", type=click.Choice(["mixed", "prefork"]), default="mixed", show_default=True)
@click.option("--bundle-ms", default=10.0, show_default=True, help="0: no bundles.")
@click.option("--lease", default=2.0, show_default=True, help="Seconds, of workers and leader.")
@click.option("--work-ms", default=1.0, show_default=True, help="How long an event's work takes, on average.")
@click.option("--keep", is_flag=True, help="Keep logs and ledger, also when all is well.")
def main(
    messages: int,
    faults: int,
    seed: int | None,
    hours: float | None,
    report_file: Path,
    log_file: Path | None,
    cast_name: str,
    bundle_ms: float,
    lease: float,
    work_ms: float,
    *,
    keep: bool,
) -> None:
    """Pushes an incident log through real workers while faults of every kind strike, and writes a report."""
    if log_file is not None and not log_file.is_file():
        raise click.UsageError(f"there is no incident log {log_file}; {WHERE_FROM}")
    seed = time.time_ns() % 1_000_000 if seed is None else seed
    pace_s = 2.0 if hours is None else hours * 3600 / max(1, faults)
    asked = {"messages": messages, "faults": faults, "pace": f"{pace_s:.2f} s", "cast": cast_name}
    asked |= {"bundles": f"{bundle_ms:g} ms", "lease": f"{lease:g} s", "work": f"{work_ms:g} ms"}
    folder = Path(tempfile.mkdtemp(prefix="ticket-bridge-soak-"))
    click.echo(f"seed {seed}; logs, ledger and data in {folder}")
    with StopRequest() as stop:
        name, log_file = _log(log_file, folder, messages)
        try:
            log = read_log(log_file, messages)
        except (LogError, OSError, ValueError) as exc:
            shutil.rmtree(folder)
            raise click.UsageError(f"{exc}; {WHERE_FROM}") from None
        repeated = count_rounds(log, messages)
        total = len(log) * repeated
        click.echo(f"{name}: {len(log):,} events, {repeated} times = {total:,} messages; Spark computes their states")
        states, spark = _spark(log_file, folder)
        plan = Plan(
            folder / "run",
            draw.MIXED if cast_name == "mixed" else draw.PREFORK,
            draw.script(seed, draw.spare(faults), pace_s),
            rounds(log, messages),
            faults=faults,
            messages=total,
            backlog=BACKLOG,
            rate=total / max(1.0, faults * pace_s),
            app="tests.chaos.soak_app",
            lease_s=lease,
            leader_lease_s=lease,
            bundle_ms=bundle_ms,
            max_attempts=10,
            env={"SOAK_WORK_MS": str(work_ms)},
        )
        try:
            with Run(plan, click.echo) as run:
                result = run.go(lambda: stop.requested)
                server = _server(run.redis)
                if spark.wait() != 0:
                    raise click.ClickException(f"Spark failed; see {folder / 'spark-incidents.log'}")
                compared, equal, differences = _compare(run.redis, states, result)
        finally:
            spark.kill()
            spark.wait()
    soak = report.Soak(seed, f"{name}, {repeated} times", asked, result, server, compared, equal, differences)
    report.write(soak, report_file)
    click.echo(report.as_markdown(report.as_dict(soak)))
    click.echo(f"report: {report_file} and {report_file.with_suffix('.json')}")
    if soak.passed and not keep:
        shutil.rmtree(folder)
    else:
        click.echo(f"logs and ledger are kept in {folder}")
    wrong = bool(result.violations) or equal != compared
    sys.exit(1 if wrong else 0)


def _log(given: Path | None, folder: Path, messages: int) -> tuple[str, Path]:
    """How the log is called, and where it is: the one that was given, or a generated one."""
    if given is not None:
        return f"the incident log {given.name}", given
    click.echo(f"no incident log was given, so one is generated; {WHERE_FROM}")
    events = min(messages, GENERATED_AT_MOST)
    out = folder / "events.csv.gz"
    arguments = ["--events", str(events), "--tickets", str(max(1, events // 6))]
    subprocess.run([sys.executable, "-m", "bridge.spark.generate", str(out), *arguments], cwd=ROOT, check=True)
    return "a generated log", out


def _spark(log_file: Path, folder: Path) -> tuple[Path, subprocess.Popen[bytes]]:
    """Starts the job that computes the expected states: where they will be, and the job."""
    states, said = folder / "states.jsonl", folder / "spark-incidents.log"
    command = [sys.executable, "-m", "bridge.spark.incidents", str(log_file.resolve()), "--out", str(states)]
    job = subprocess.Popen([*command, "--spark-log", str(said)], cwd=ROOT, start_new_session=True, env=os.environ)
    return states, job


def _compare(redis: Redis, states: Path, result: Result) -> tuple[int, int, list[str]]:
    """How many tickets can be compared with Spark's states, how many are equal, and the first differences."""
    by_name: dict[str, dict[str, str]] = {}
    for line in states.read_bytes().splitlines():
        state = orjson.loads(line)
        by_name[state["ticket_id"]] = state["state"]
    pushed: dict[str, int] = {}
    for message in result.messages:
        pushed[message.ticket] = message.n + 1
    # Of a run that was cut short, only tickets all of whose events were pushed have the state of the log.
    whole = [ticket for ticket, count in pushed.items() if count == int(by_name[original(ticket)]["events"])]
    expected = {ticket: by_name[original(ticket)] for ticket in whole}
    actual: dict[str, dict[str, str]] = {}
    for start in range(0, len(whole), CHUNK):
        chunk = whole[start : start + CHUNK]
        with redis.pipeline(transaction=False) as pipe:
            for ticket in chunk:
                pipe.hgetall(STATES.state(ticket))
            for ticket, found in zip(chunk, pipe.execute(), strict=True):
                actual[ticket] = {name: orjson.loads(value) for name, value in found.items()}
    equal, differences = compare_states(expected, actual)
    return len(expected), equal, differences


def _server(redis: Redis) -> str:
    info: Any = redis.info("server")
    name = info.get("server_name", "redis")
    return f"{name} {info.get('valkey_version') or info['redis_version']}, append-only file, fsync always"


if __name__ == "__main__":
    main()
