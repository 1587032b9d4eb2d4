"""Reading a stream into Spark, against a loop of XRANGE in redis-py: ``python -m benchmarks.spark_read``.

The loop runs in three ways: as ``pip install redis`` gives it; with hiredis, the parser in C that is installed here;
and with hiredis and ``decode_responses``, which gives text, as the data source does, where the others give bytes.

Each round reads the whole stream in every way, in turn, so all share whatever else the machine does; what counts is the
ratio within a round. The first rounds are not counted: for some seconds Java compiles what turns out to be used often,
on the cores that the reading needs. What a session's first read costs is shown apart. With ``--memory``: the peak of
the memory of Java and of the Python workers while a small and a large stream are read.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from redis import ConnectionPool, Redis

# What redis-py uses where hiredis is not installed. It has no public name, and here hiredis is.
from redis._parsers import _RESP2Parser

from benchmarks.peaks import Peaks
from bridge.spark.job.session import local_session
from bridge.spark.wire.address import connect
from bridge.stack.embedded import EmbeddedServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = "events"
PLAIN = "XRANGE loop, redis-py with its own parser"
#: At least so many times the plain loop.
TIMES_PLAIN = 3.0
#: Rows of one page of the loop: what people write, and faster than larger ones.
PAGE = 1000
#: Rows of one send while the stream is filled.
_CHUNK = 5000


def fill(server: EmbeddedServer, rows: int) -> None:
    """A stream of messages: ticket, sequence and a payload of 100 bytes, of a thousand tickets."""
    payload = b'{"amount": 3, "note": "' + b"x" * 75 + b'"}'
    connection = connect(server.url)
    try:
        for first in range(0, rows, _CHUNK):
            numbers = range(first, min(first + _CHUNK, rows))
            connection.send_packed_command([b"".join(_xadd(number, payload) for number in numbers)], check_health=False)
            for _ in numbers:
                connection.read_response(disable_decoding=True)
    finally:
        connection.disconnect()


def _xadd(number: int, payload: bytes) -> bytes:
    arguments = (
        b"XADD", STREAM.encode(), b"*", b"ticket_id", b"T%03d" % (number % 1000), b"seq", b"%d" % number,
        b"payload", payload,
    )  # fmt: skip
    return b"*%d\r\n" % len(arguments) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in arguments)


def by_loop(server: EmbeddedServer, **options: Any) -> int:
    """The plain way: XRANGE page by page, a dictionary per entry. ``options`` are those of redis-py's connections."""
    rows, start = 0, "-"
    pool = ConnectionPool.from_url(server.url, protocol=2, **options)
    with Redis.from_pool(pool) as client:
        while page := client.execute_command("XRANGE", STREAM, start, "+", "COUNT", PAGE):
            # redis-py has made a dictionary of each entry.
            rows += len(page)
            last = page[-1][0]
            start = f"({last if isinstance(last, str) else last.decode()}"
    return rows


def by_spark(session: SparkSession, server: EmbeddedServer, **options: str) -> int:
    """The data source, every column of every row brought into Spark."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as fn

    seen = Observation("seen")
    rows = session.read.format("redisstream").options(url=server.url, stream=STREAM, **options).load()
    rows.observe(seen, fn.count(fn.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    return int(seen.get["rows"])


@contextmanager
def stage(rows: int) -> Iterator[EmbeddedServer]:
    """A server with a stream of so many rows."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedServer(append_only=False, data_dir=Path(folder)) as server,
    ):
        fill(server, rows)
        yield server


@click.command()
@click.option("--rows", default=1_000_000, show_default=True, type=click.IntRange(min=1))
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=1), help="Counted rounds.")
@click.option("--warmup", default=4, show_default=True, type=click.IntRange(min=1), help="Rounds before, not counted.")
@click.option("--memory", is_flag=True, help="Memory with ROWS and ten times ROWS, instead of times.")
def main(rows: int, rounds: int, warmup: int, memory: bool) -> None:
    """Measures reading a stream into Spark."""
    session = local_session("ticket-bridge benchmark", master="local[2]")
    try:
        if memory:
            _memory(session, rows)
        else:
            _times(session, rows, rounds, warmup)
    finally:
        session.stop()


def _times(session: SparkSession, rows: int, rounds: int, warmup: int) -> None:
    with stage(rows) as server:
        ways: dict[str, Callable[[], int]] = {
            PLAIN: lambda: by_loop(server, parser_class=_RESP2Parser),
            "XRANGE loop, redis-py with hiredis": lambda: by_loop(server),
            "XRANGE loop, redis-py with hiredis, text": lambda: by_loop(server, decode_responses=True),
            "redisstream": lambda: by_spark(session, server),
            "redisstream, fields ticket_id,seq,payload": lambda: by_spark(
                session, server, fields="ticket_id,seq,payload"
            ),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        first: dict[str, float] = {}
        for turn in range(-warmup, rounds):
            for name, way in ways.items():
                started = time.perf_counter()
                found = way()
                assert found == rows, f"{name} read {found:,} of {rows:,} rows"
                rate = rows / (time.perf_counter() - started)
                click.echo(f"{f'round {turn + 1}' if turn >= 0 else 'warm-up':<9} {name:<50} {rate:>12,.0f} rows/s")
                first.setdefault(name, rate)
                if turn >= 0:
                    rates[name].append(rate)
    loops = [name for name in ways if name.startswith("XRANGE")]
    click.echo()
    for loop in loops:
        click.echo(f"{loop}: median {statistics.median(rates[loop]):,.0f} rows/s")
    for name in [name for name in ways if name not in loops]:
        click.echo(
            f"{name}: median {statistics.median(rates[name]):,.0f} rows/s; in the first round {first[name]:,.0f}"
        )
        for loop in loops:
            ratios = [rate / base for rate, base in zip(rates[name], rates[loop], strict=True)]
            click.echo(f"    {statistics.median(ratios):.1f} times ({min(ratios):.1f} to {max(ratios):.1f}) {loop}")
        reached = statistics.median(a / b for a, b in zip(rates[name], rates[PLAIN], strict=True)) >= TIMES_PLAIN
        click.echo(f"    goal: {TIMES_PLAIN:.0f} times the plain loop: {'reached' if reached else 'not reached'}")


def _memory(session: SparkSession, rows: int) -> None:
    # Java's heap takes the size that it is allowed to, sooner or later; so it is warm before anything counts.
    for number in (rows, rows, 10 * rows):
        with stage(number) as server, Peaks() as peaks:
            found = by_spark(session, server)
        assert found == number
        click.echo(f"{number:>12,} rows: {peaks}")


if __name__ == "__main__":
    main()
