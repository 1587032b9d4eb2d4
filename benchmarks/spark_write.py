"""``python -m benchmarks.spark_write``: how fast Spark writes a stream, against what the server can take at all.

Every way appends the same rows (a ticket, a number, a JSON payload of 100 bytes) to an empty stream of one server
without persistence, in turns, so that all of them share whatever else the machine does; medians over the rounds, and
ratios within each round. The first rounds are not counted: for some seconds Java compiles what turns out to be used
often, on the cores that the writing needs. ``--memory`` measures instead how much memory one and ten times as many rows
take.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from redis import Redis
from rich.console import Console
from rich.table import Table

from benchmarks.peaks import Peaks
from bridge.routing.errors import ConfigurationError, TicketBridgeError
from bridge.stack.embedded import EmbeddedServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM = "rows"
TICKETS = 1000
PARTITIONS = 4
#: At least this part of what redis-benchmark reaches, and this many times the usual way to write the same: sorted rows
#: are compared with a pipeline of sorted rows.
GOALS = {"unsorted": (0.60, "pipeline"), "sorted": (0.45, "sorted pipeline")}
TIMES_PIPELINE = 3.0

Way = Callable[[], float]


def server_benchmark() -> str:
    """The server's own benchmark. Raises `ConfigurationError` that says how to get one."""
    for name in ("redis-benchmark", "valkey-benchmark"):
        found = shutil.which(name)
        if found:
            return found
    raise ConfigurationError(
        "neither redis-benchmark nor valkey-benchmark is on the PATH; it comes with the server (Debian, Ubuntu: "
        "apt-get install redis-tools)"
    )


def rows_of(session: SparkSession, count: int) -> DataFrame:
    """The rows, made where they are needed."""
    payload = "concat('{\"n\": ', lpad(id, 10, '1'), ', \"text\": \"', repeat('x', 69), '\"}')"
    return session.range(0, count, 1, PARTITIONS).selectExpr(
        f"concat('T', lpad(id % {TICKETS}, 5, '0')) AS ticket_id", "id AS seq", f"{payload} AS payload"
    )


class Ways:
    """The ways of writing the same rows, each returning rows per second."""

    def __init__(self, session: SparkSession, server: EmbeddedServer, count: int) -> None:
        from bridge.spark.write.order import in_ticket_order

        self._server, self._count = server, count
        self._rows = rows_of(session, count).cache()
        self._rows.count()
        self._sorted = in_ticket_order(self._rows, key="ticket_id", sequence="seq", partitions=PARTITIONS)
        self.all: dict[str, tuple[str, Way]] = {
            "server": ("redis-benchmark -P 100 XADD", self._benchmark),
            "pipeline": ("foreachPartition, redis-py pipelines of 500", lambda: self._pipeline(self._rows)),
            "sorted pipeline": ("in_ticket_order, then the same", lambda: self._pipeline(self._sorted)),
            "unsorted": ("redisstream", lambda: self._write(self._rows)),
            "sorted": ("in_ticket_order, redisstream", lambda: self._write(self._sorted, seqColumn="seq")),
            "ticket": (
                "in_ticket_order, redisstream, idempotence=ticket",
                lambda: self._write(self._sorted, seqColumn="seq", idempotence="ticket"),
            ),
            "none": ("redisstream, idempotence=none", lambda: self._write(self._rows, idempotence="none")),
        }

    def _benchmark(self) -> float:
        entry = ["XADD", STREAM, "*", "ticket_id", "T__rand_int__", "payload", "x" * 100]
        arguments = [
            server_benchmark(),
            "-p",
            str(self._server.port),
            "-n",
            str(self._count),
            "-P",
            "100",
            "-r",
            "1000",
        ]
        said = subprocess.run([*arguments, "--csv", *entry], capture_output=True, text=True, check=True).stdout
        return float(said.strip().splitlines()[-1].split('","')[1].strip('"'))

    def _pipeline(self, given: DataFrame) -> float:
        url = self._server.url

        def send(rows: Iterator[Any]) -> None:
            client = Redis.from_url(url)
            pipe = client.pipeline(transaction=False)
            for row in rows:
                pipe.xadd(STREAM, {"ticket_id": row.ticket_id, "payload": row.payload})
                if len(pipe) >= 500:
                    pipe.execute()
            pipe.execute()
            client.close()

        return self._timed(lambda: given.foreachPartition(send))

    def _write(self, rows: DataFrame, **options: str) -> float:
        writing = rows.write.format("redisstream").mode("append").options(url=self._server.url, stream=STREAM)
        return self._timed(writing.options(fields="payload", **options).save)

    def _timed(self, work: Callable[[], None]) -> float:
        started = time.perf_counter()
        work()
        took = time.perf_counter() - started
        with self._server.client() as client:
            assert client.xlen(STREAM) == self._count, client.xlen(STREAM)
        return self._count / took


def measure(
    session: SparkSession, server: EmbeddedServer, count: int, rounds: int, warmup: int
) -> dict[str, list[float]]:
    """Rows per second of every way, by round; ``warmup`` rounds are run before, and not counted."""
    ways = Ways(session, server, count).all
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-warmup, rounds):
        for name, (_, way) in ways.items():
            with server.client() as client:
                client.flushall()
            rate = way()
            if turn >= 0:
                found[name].append(rate)
            label = f"round {turn + 1}" if turn >= 0 else "warm-up"
            print(f"{label:<9} {name:<15} {rate:>10,.0f} rows/s", file=sys.stderr, flush=True)
    return found


def show(console: Console, found: dict[str, list[float]]) -> None:
    """The medians, the ratios within the rounds, and the goals."""

    def ratio(name: str, to: str) -> float:
        return statistics.median(a / b for a, b in zip(found[name], found[to], strict=True))

    table = Table("way", "rows/s", "of the server's own", "times the pipeline", "the sorted pipeline", "rounds")
    for name, rates in found.items():
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        times = (f"{ratio(name, to):.2f}" for to in ("pipeline", "sorted pipeline"))
        table.add_row(name, f"{statistics.median(rates):,.0f}", f"{ratio(name, 'server'):.0%}", *times, spread)
    console.print(table)
    for name, (share, usual) in GOALS.items():
        reached = ratio(name, "server") >= share and ratio(name, usual) >= TIMES_PIPELINE
        console.print(
            f"goal: {name} at least {share:.0%} of the server's own and {TIMES_PIPELINE:.0f} times the {usual}: "
            f"{'reached' if reached else 'not reached'}"
        )


def memory(session: SparkSession, server: EmbeddedServer, count: int) -> None:
    """Shows the memory that ``count`` rows and ten times as many take, none of them cached."""
    from bridge.spark.write.order import in_ticket_order

    # The first write is the one that starts everything.
    for rows in (count, count, 10 * count):
        with server.client() as client:
            client.flushall()
        ordered = in_ticket_order(rows_of(session, rows), key="ticket_id", sequence="seq", partitions=PARTITIONS)
        with Peaks() as peaks:
            ordered.write.format("redisstream").mode("append").options(
                url=server.url, stream=STREAM, seqColumn="seq"
            ).save()
        click.echo(f"{rows:>12,} rows: {peaks}")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rows", default=1_000_000, show_default=True, type=click.IntRange(1000))
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Counted rounds.")
@click.option("--warmup", default=3, show_default=True, type=click.IntRange(1), help="Rounds before, not counted.")
@click.option("--memory", "memory_only", is_flag=True, help="Memory for these rows and ten times as many instead.")
def main(rows: int, rounds: int, warmup: int, memory_only: bool) -> None:
    """Measures the writer of the data source. Needs redis-benchmark or valkey-benchmark."""
    try:
        if not memory_only:
            server_benchmark()
        from bridge.spark.job.session import local_session

        session = local_session("benchmark", master="local[2]")
        with (
            tempfile.TemporaryDirectory() as folder,
            EmbeddedServer(data_dir=Path(folder), append_only=False) as server,
        ):
            if memory_only:
                memory(session, server, rows)
            else:
                show(
                    Console(width=None if sys.stdout.isatty() else 120), measure(session, server, rows, rounds, warmup)
                )
        session.stop()
    except TicketBridgeError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
