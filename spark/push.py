"""The job that pushes an event log into a ticket stream, each ticket in order.

    python -m spark.push events.csv.gz --url redis://localhost:6379/0
    spark-submit spark/push.py events.csv.gz --master yarn …

Each row becomes one entry: ``ticket_id``, ``task`` where asked for, and ``payload``, a JSON object of the other
columns. With ``--progress json`` standard output is JSON lines, for a supervisor:

    {"event": "started", "file": …, "stream": …, "partitions": 2}
    {"event": "pushed", "rows": 60000, "rows_per_s": 41200.0}            every half second while it writes
    {"event": "done", "rows": 141712, "rows_per_s": 43800.0, "seconds": 3.2}
    {"event": "failed", "error": "…"}                                     instead of "done"
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

if __package__ in (None, ""):
    # Started as a file: its own folder is on the path, where the project's folder must be.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import click

from routing.errors import ConfigurationError
from spark.address import check_server, check_url
from spark.eventlog import FORMATS, check_readable, format_of
from spark.failures import emit, told_in_one_line
from spark.options import DEFAULT_STREAM, DEFAULT_URL, OPTIONS
from spark.progress import EntryWatch


@dataclass(frozen=True)
class Push:
    """One push, as asked for."""

    file: str
    url: str
    stream: str
    key: str
    seq: str
    order: str | None
    task: str | None
    task_column: str | None
    partitions: int | None
    kind: str | None
    master: str | None
    log: Path | None
    #: Data source options that are passed on as they are.
    tuning: dict[str, str]


@click.command()
@click.argument("file")
@click.option("--url", default=DEFAULT_URL, envvar="TICKET_BRIDGE_URL", help="The Redis server [default: localhost].")
@click.option("--stream", default=DEFAULT_STREAM, show_default=True, help="The stream to append to.")
@click.option("--key", default="ticket_id", show_default=True, help="Column that names the ticket.")
@click.option(
    "--seq", default="seq", show_default=True, help="Column that orders the events of a ticket (whole numbers)."
)
@click.option("--order", help="Column of times by which tickets interleave, for example timestamp.")
@click.option("--task", help="Task to run for every event [default: the lane's].")
@click.option("--task-column", help="Column that names each event's task.")
@click.option(
    "--partitions", type=click.IntRange(min=1), help="Connections that write at once [default: as many as cores]."
)
@click.option("--format", "kind", type=click.Choice(FORMATS), help="Format of FILE [default: by its name].")
@click.option("--master", help="Spark master [default: local[*]].")
@click.option("--chunk-size", default=None, help="Rows per send.")
@click.option("--window", default=None, help="Sends that may be unanswered at once.")
@click.option("--max-payload", default=None, help="Largest payload in bytes.")
@click.option("--progress", type=click.Choice(["text", "json", "none"]), default="text", show_default=True)
@click.option("--spark-log", type=click.Path(path_type=Path), help="Keep what Spark says in this file.")
def main(
    file: str,
    url: str,
    stream: str,
    key: str,
    seq: str,
    order: str | None,
    task: str | None,
    task_column: str | None,
    partitions: int | None,
    kind: str | None,
    master: str | None,
    chunk_size: str | None,
    window: str | None,
    max_payload: str | None,
    progress: Literal["text", "json", "none"],
    spark_log: Path | None,
) -> None:
    """Push the events of FILE (CSV, JSON lines, both also .gz, or Parquet) into a stream, each ticket in order."""
    with told_in_one_line(as_json=progress == "json"):
        tuning = {"chunkSize": chunk_size, "window": window, "maxPayload": max_payload}
        asked = Push(
            file=file,
            url=check_url(url, called="--url"),
            stream=stream,
            key=key,
            seq=seq,
            order=order,
            task=task,
            task_column=task_column,
            partitions=partitions,
            kind=kind or format_of(file),
            master=master,
            log=spark_log,
            tuning={
                name: OPTIONS[name][1](name, value) and value for name, value in tuning.items() if value is not None
            },
        )
        if task and task_column:
            raise ConfigurationError("--task and --task-column exclude each other")
        # What fails here fails at once, not after the seconds that Java takes to start.
        check_readable(file)
        check_server(asked.url, stream)
        push(asked, progress)


def push(asked: Push, progress: Literal["text", "json", "none"]) -> int:
    """Push, reporting as asked; returns the number of entries written."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as fn

    from spark.eventlog import column
    from spark.messages import to_messages
    from spark.order import in_ticket_order
    from spark.session import local_session

    session = local_session("ticket-bridge push", master=asked.master, log=asked.log)
    try:
        rows = to_messages(
            session,
            asked.file,
            kind=asked.kind,
            key=asked.key,
            seq=asked.seq,
            order=asked.order,
            task=asked.task,
            task_column=asked.task_column,
        )
        partitions = asked.partitions or session.sparkContext.defaultParallelism
        ordered = in_ticket_order(
            rows.frame, key=rows.key, sequence=rows.sequence, time=rows.time, partitions=partitions
        )
        written = Observation("written")
        counted = ordered.select(column(rows.key), column(rows.sequence), *map(column, rows.fields)).observe(
            written, fn.count(fn.lit(1)).alias("rows")
        )
        if progress == "json":
            emit(event="started", file=asked.file, stream=asked.stream, partitions=partitions)
        started = time.monotonic()
        with EntryWatch(asked.url, asked.stream, progress):
            (
                counted.write.format("redisstream")
                .mode("append")
                .options(url=asked.url, stream=asked.stream, keyColumn=rows.key, seqColumn=rows.sequence)
                .options(fields=",".join(rows.fields), **asked.tuning)
                .save()
            )
        total = int(written.get["rows"])
        seconds = time.monotonic() - started
    finally:
        session.stop()
    rate = total / seconds if seconds else 0.0
    if progress == "json":
        emit(event="done", rows=total, rows_per_s=round(rate, 1), seconds=round(seconds, 3))
    elif progress == "text":
        print(f"pushed {total:,} events into {asked.stream} in {seconds:.1f} s, {rate:,.0f} per second", flush=True)
    return total


if __name__ == "__main__":
    main()
