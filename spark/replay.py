"""The job that puts messages of an archive back into a stream, each ticket in order, once.

    python -m bridge.spark.replay archive --stream ticket_stream --from 2026-03-14T09:00 --to 2026-03-14T10:00
    python -m bridge.spark.replay archive --stream ticket_stream --dead-only --task shop.apply --dry-run
    spark-submit spark/replay.py archive --stream ticket_stream … --master yarn

The messages get new ids. Their tasks see the same ticket, task and payload as before, and they have the same options
(``due``, ``max_attempts`` …), unless the archive has only their dead letters. Those that have expired are left out,
unless ``--without-expires`` is given. A replay has a name, made from the archive, the selection and the stream. When it
is started again, after a crash or by mistake, it goes on where it was and adds nothing twice. ``--again`` is for a
deliberate second time.

With ``--progress json`` standard output is JSON lines, for a supervisor:

    {"event": "selected", "selected": 100, "missing": 0, "cut": 0, "unusable": 2, "expired": 0, "replayable": 98,
     "tickets": 7, "first_id": …}
    {"event": "started", "stream": …, "partitions": 2, "run": "replay-…"}
    {"event": "pushed", "rows": 50, "rows_per_s": 41200.0}                every half second while it writes
    {"event": "done", "rows": 98, "already": 0, "seconds": 3.2, "run": "replay-…"}
    {"event": "failed", "error": "…"}                                     instead of "done"
"""

from __future__ import annotations

import hashlib
import importlib
import json
import time
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    # Before all other imports. `start` says what for. A cluster may have a copy of this file alone, and the package.
    beside = not __package__ and Path(__file__).with_name("start.py").exists()
    importlib.import_module("start" if beside else "bridge.spark.start")

import click

from bridge.routing.errors import ConfigurationError, InputError, RunChanged
from bridge.routing.numbers import duration
from bridge.spark.archiving.reading import Range, check_archive
from bridge.spark.job.failures import emit, errors_in_one_line, one_line
from bridge.spark.job.options import job_options
from bridge.spark.job.session import job_session, parse_conf
from bridge.spark.wire.address import check_server, check_url
from bridge.spark.wire.options import DEFAULT_URL
from bridge.spark.write.options import OPTIONS, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bridge.spark.archiving.selection import Counts, Selection
    from bridge.spark.job.progress import Progress
    from bridge.spark.write.options import WriteOptions

#: Hexadecimal digits of a replay's name.
_DIGITS = 32


@dataclass(frozen=True)
class Replay:
    """The options of one replay."""

    archive: str
    selection: Selection
    stream: str
    run: str
    #: The writer's options, all of them; the URL is among them.
    options: dict[str, str] = field(repr=False)
    partitions: int | None = None
    dry_run: bool = False
    allow_missing: bool = False

    @property
    def parsed(self) -> WriteOptions:
        """The writer's options, checked."""
        return parse(self.options)


@click.command()
@click.argument("archive")
@click.option("--stream", help="The stream to append to; needed, since its tasks will run.")
@click.option("--url", default=DEFAULT_URL, envvar="TICKET_BRIDGE_URL", help="The Redis server [default: localhost].")
@click.option("--from", "start", help="Messages enqueued from this time on (UTC), or from this id on.")
@click.option("--to", "end", help="Messages enqueued before this time (UTC), or up to this id.")
@click.option("--ticket", "tickets", multiple=True, help="Messages of this ticket; may be given several times.")
@click.option("--task", "tasks", multiple=True, help="Messages of this task; may be given several times.")
@click.option("--dead-only", is_flag=True, help="Messages that ended in the dead letters.")
@click.option("--without-expires", is_flag=True, help="Send messages without their expiry, also expired ones.")
@click.option("--dry-run", is_flag=True, help="Show what would be replayed, and write nothing.")
@click.option("--allow-missing", is_flag=True, help="Leave out messages whose bodies are not in the archive.")
@click.option("--run-id", help="Name of this replay [default: made from archive, selection and stream].")
@click.option("--again", is_flag=True, help="A deliberate second time: under a new name.")
@click.option("--partitions", type=click.IntRange(min=1), help="Connections that write at once [default: cores].")
@click.option("--high-water", default=None, help="Entries in the stream at which the replay waits.")
@click.option("--max-wait", default=None, help="Longest wait without progress, in seconds.")
@click.option("--chunk-size", default=None, help="Rows per send.")
@click.option("--window", default=None, help="Sends that may be unanswered at once.")
@click.option("--max-payload", default=None, help="Largest payload in bytes.")
@job_options
def main(
    archive: str,
    stream: str | None,
    url: str,
    start: str | None,
    end: str | None,
    tickets: tuple[str, ...],
    tasks: tuple[str, ...],
    dead_only: bool,
    without_expires: bool,
    dry_run: bool,
    allow_missing: bool,
    run_id: str | None,
    again: bool,
    partitions: int | None,
    high_water: str | None,
    max_wait: str | None,
    chunk_size: str | None,
    window: str | None,
    max_payload: str | None,
    master: str | None,
    conf: tuple[str, ...],
    progress: Progress,
    spark_log: Path | None,
) -> None:
    """Put messages of ARCHIVE back into a stream, each ticket in order, once."""
    with errors_in_one_line(as_json=progress == "json"):
        if stream is None and not dry_run:
            raise ConfigurationError("--stream is missing: name the stream whose tasks are to run, or use --dry-run")
        if again and run_id:
            raise ConfigurationError("--again and --run-id exclude each other: --again makes a new name")
        tuning = {
            "highWater": high_water,
            "maxWait": max_wait,
            "chunkSize": chunk_size,
            "window": window,
            "maxPayload": max_payload,
        }
        within = Range.of(start, end)
        configuration = parse_conf(conf)
        given = {name: value for name, value in tuning.items() if value is not None}
        for name, value in given.items():
            OPTIONS[name][1](name, value)
        # Checked first, since Java takes seconds to start.
        check_archive(archive)
        if not dry_run:
            check_server(check_url(url, called="--url"), stream or "")

        from bridge.spark.archiving.selection import Selection

        selection = Selection(
            within, tuple(sorted(set(tickets))), tuple(sorted(set(tasks))), dead_only, without_expires
        )
        run = f"replay-{uuid.uuid4().hex}" if again else run_id or name_of(archive, selection, stream or "")
        asked = Replay(
            *(archive, selection, stream or "", run),
            options={"url": url, **({"stream": stream} if stream else {}), **given, "runId": run},
            partitions=partitions,
            dry_run=dry_run,
            allow_missing=allow_missing,
        )
        with job_session("ticket-bridge replay", master=master, log=spark_log, conf=configuration) as session:
            replay(session, asked, progress)


def name_of(archive: str, selection: Selection, stream: str) -> str:
    """The name of a replay. The same selection of the same archive into the same stream has the same name."""
    place = archive if "://" in archive else str(Path(archive).resolve())
    what = {"recipe": 1, "archive": place.rstrip("/"), "stream": stream, **asdict(selection)}
    if not selection.without_expires:
        # Names from before this option stay as they were.
        del what["without_expires"]
    text = json.dumps(what, sort_keys=True)
    return f"replay-{hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"


def replay(session: SparkSession, asked: Replay, progress: Progress = "none") -> Counts:
    """Replay, with progress as asked for. Returns the counts of what was selected.

    Raises ``InputError`` before anything is written when nothing is selected, or bodies are missing and that is not
    allowed.
    """
    from pyspark import StorageLevel

    from bridge.spark.archiving.selection import count, selected
    from bridge.spark.write.guard import began_ms, note_began
    from bridge.spark.write.message_options import EXPIRES

    options = asked.parsed
    now_ms = time.time_ns() // 1_000_000 if asked.dry_run else began_ms(options, asked.run)
    rows = selected(session, asked.archive, asked.selection, max_payload=options.max_payload, now_ms=now_ms)
    # Kept, so that counting and writing see the same rows even if the archive grows meanwhile.
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        counts = count(rows)
        _tell_counts(counts, progress)
        if not counts.selected:
            raise InputError(f"nothing in {asked.archive} is selected; are the times UTC, and the names right?")
        if counts.missing and not asked.allow_missing:
            raise InputError(
                f"{_what_is_missing(counts)}, and cannot be replayed; nothing was written: --allow-missing replays the "
                "others"
            )
        if not asked.dry_run:
            if EXPIRES in counts.options or counts.expired:
                note_began(options, asked.run, now_ms)
            _write(session, rows, asked, counts, progress)
        return counts
    finally:
        rows.unpersist()


def _write(session: SparkSession, rows: DataFrame, asked: Replay, counts: Counts, progress: Progress) -> None:
    from bridge.spark.archiving.selection import PLACE, in_replay_order
    from bridge.spark.job.progress import Display, WriteWatch, marked_partitions, marked_rows
    from bridge.spark.wire.address import connect

    options = asked.parsed
    connection = connect(options.url)
    try:
        already = min(marked_rows(connection, options, asked.run), counts.replayable)
        # The number of the first run, since each partition must have the same rows again, also on another machine.
        before = marked_partitions(connection, options, asked.run)
    finally:
        connection.disconnect()
    partitions = asked.partitions or before or session.sparkContext.defaultParallelism
    if progress == "json":
        emit(event="started", stream=asked.stream, partitions=partitions, run=asked.run)
    started = time.monotonic()
    ordered = in_replay_order(rows, partitions=partitions, max_payload=options.max_payload, options=counts.options)
    sent = ",".join(["task", *counts.options, "payload"])
    with WriteWatch(options, asked.run, Display(progress)):
        writer = ordered.write.format("redisstream").mode("append").options(**asked.options)
        try:
            writer.options(keyColumn="ticket_id", seqColumn=PLACE, fields=sent).save()
        except Exception as error:
            raise _advised(error, asked.run) from None
    seconds = time.monotonic() - started
    if progress == "json":
        emit(event="done", rows=counts.replayable, already=already, seconds=round(seconds, 3), run=asked.run)
    elif progress == "text":
        fresh = counts.replayable - already
        took = duration(seconds * 1000)
        print(f"replayed {fresh:,} messages into {asked.stream} in {took}, as {asked.run}", flush=True)
        if already:
            print(f"{already:,} were there already, from an earlier run of the same replay; --again replays them again")


def _what_is_missing(counts: Counts) -> str:
    """Which bodies the archive lacks."""
    gone, of = counts.missing - counts.cut, f"of {counts.selected:,} messages"
    parts = [f"{gone:,} {of} left their stream before they were archived"] if gone else []
    if counts.cut:
        parts.append(f"{counts.cut:,} {of} are there only as dead letters, with the beginnings of their bodies")
    return " and ".join(parts)


def _advised(error: Exception, run: str) -> Exception:
    """The error with advice for a replay, if its guard knows other rows."""
    if not isinstance(one_line(error), RunChanged):
        return error
    return RunChanged(
        f"{run} began with other messages, or with another number of partitions. If the archive has grown within the "
        "selection, end the selection with --to, or start again with --again"
    )


def _tell_counts(counts: Counts, progress: Progress) -> None:
    from bridge.spark.write.message_options import DUE

    if progress == "json":
        told = asdict(counts)
        delayed = told.pop("with_option").get(DUE, 0)
        emit(event="selected", replayable=counts.replayable, **told, delayed=delayed)
    elif progress == "text":
        span = f", ids {counts.first_id} to {counts.last_id}" if counts.first_id else ""
        print(f"selected {counts.selected:,} messages of {counts.tickets:,} tickets{span}", flush=True)
        if counts.missing:
            print(f"{_what_is_missing(counts)}: the archive lacks their bodies")
        if counts.expired:
            print(f"{counts.expired:,} have expired and are left out: --without-expires replays them, too")
        if counts.unusable:
            why = "no ticket, not text, a field twice, an empty task, too large, or an option that cannot be"
            print(f"{counts.unusable:,} are left out: no lane could process them ({why})")


if __name__ == "__main__":
    main()
