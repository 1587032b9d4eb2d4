"""A push of the present rows: one Spark job, or two if bad rows go to a folder."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as fn

from bridge.routing.errors import PayloadError, RunChanged
from bridge.routing.numbers import count, duration, rate
from bridge.spark.job.eventlog import TABLE, is_view, read_events
from bridge.spark.job.failures import emit, one_line
from bridge.spark.job.progress import Display, WriteWatch, marked_partitions, marked_rows
from bridge.spark.pushing.messages import USUAL_SEQUENCE, Messages, to_messages
from bridge.spark.pushing.plan import PushPlan, sent
from bridge.spark.pushing.rejects import divided, first_reasons, keep_rejects
from bridge.spark.pushing.run_id import run_id_of
from bridge.spark.wire.address import connect
from bridge.spark.write.options import Idempotence, WriteOptions, parse
from bridge.spark.write.order import in_ticket_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def push(session: SparkSession, plan: PushPlan) -> None:
    """Pushes, with progress as asked for. Raises ``InputError`` and ``PayloadError`` before anything is written."""
    _Batch(session, plan).run()


class _Batch:
    """The log as messages, and the name of their push."""

    def __init__(self, session: SparkSession, plan: PushPlan) -> None:
        self._plan = plan
        events = read_events(session, plan.source, plan.kind, tolerant=plan.rejects is not None)
        self._messages = to_messages(events, plan.mapping)
        options = plan.writer_options(self._messages.sequence, self._messages.fields)
        watermark = parse(options).idempotence is Idempotence.WATERMARK
        named = plan.run_id
        if named is None and not plan.again and (watermark or plan.rejects is not None):
            below = "/" if plan.kind == TABLE else str(Path(plan.source.removeprefix("file://")).resolve())
            # The files below a view say nothing of its rows.
            if plan.kind != TABLE or not is_view(session, plan.source):
                named = run_id_of(session, events, plan.mapping, stream=plan.stream, below=below)
        self._name = named or f"push-{uuid.uuid4().hex}"
        #: Whether the same push again would be recognised.
        self._known_again = named is not None or plan.again or not watermark
        #: The name for the data source. Only the watermark needs one; sequence numbers of tickets do not.
        self._run = self._name if watermark else None
        if watermark:
            options["runId"] = self._name
        self._options = options
        self._parsed: WriteOptions = parse(options)
        #: Rows of this push that are in the stream already, and the number of partitions in which they were written.
        self._already, partitions = self._before()
        if partitions and plan.partitions and partitions != plan.partitions:
            raise RunChanged(
                f"this push began with --partitions {partitions}: leave the option out to go on, or {self._once_more}"
            )
        # The number of the first run, since each partition must have the same rows again, also on another machine.
        self._partitions = plan.partitions or partitions or session.sparkContext.defaultParallelism

    def run(self) -> None:
        """Pushes. Rejected rows are written first, so that they are kept even if the push fails."""
        plan, messages = self._plan, self._messages
        self._tell_start()
        rejected = 0
        if plan.rejects is not None:
            messages, rejects = divided(messages, limit=self._parsed.max_payload)
            rejected = keep_rejects(rejects, plan.rejects, run=self._name)
        else:
            reasons = first_reasons(messages, limit=self._parsed.max_payload)
            if reasons:
                raise PayloadError(
                    f"{reasons}; nothing was pushed: correct them, or put such rows aside with --rejects FOLDER"
                )
        started = time.monotonic()
        total = self._write(messages)
        self._tell_end(total, rejected, time.monotonic() - started)

    def _before(self) -> tuple[int, int | None]:
        if self._run is None:
            return 0, None
        connection = connect(self._parsed.url)
        try:
            rows = marked_rows(connection, self._parsed, self._run)
            return rows, marked_partitions(connection, self._parsed, self._run)
        finally:
            connection.disconnect()

    def _write(self, messages: Messages) -> int:
        """Writes; returns the number of rows, those written before included."""
        ordered = in_ticket_order(
            messages.frame,
            key=messages.key,
            sequence=messages.sequence,
            time=messages.time,
            partitions=self._partitions,
            # The payloads were checked before. Another check would parse each of them twice more.
            checks=replace(messages.checks(self._parsed.max_payload), json=False),
        )
        counted = Observation("written")
        rows = sent(messages, ordered).observe(counted, fn.count(fn.lit(1)).alias("rows"))
        with WriteWatch(self._parsed, self._run, Display(self._plan.progress)):
            try:
                rows.write.format("redisstream").mode("append").options(**self._options).save()
            except Exception as error:
                raise self._advised(error) from None
        return int(counted.get["rows"])

    @property
    def _once_more(self) -> str:
        """What a user can do to push all rows of a push that was begun."""
        return "name another --run-id" if self._plan.run_id else "push all of it again with --again"

    def _advised(self, error: Exception) -> Exception:
        """The error with advice for a push, if its guard knows other rows."""
        if not isinstance(one_line(error), RunChanged):
            return error
        return RunChanged(
            f"{self._name} began with other messages: push the same rows with the same options (--max-payload, "
            f"--rejects), or {self._once_more}"
        )

    def _tell_start(self) -> None:
        plan, ordered_by = self._plan, self._messages.ordered_by
        if plan.progress == "json":
            emit(
                event="started",
                file=plan.source,
                stream=plan.stream,
                partitions=self._partitions,
                ordered_by=ordered_by,
                run=self._run,
            )
        elif plan.progress == "text" and ordered_by != f"column {plan.mapping.seq or USUAL_SEQUENCE}":
            print(f"no column orders the rows of a ticket: it is {ordered_by} (--seq names one)", flush=True)

    def _tell_end(self, total: int, rejected: int, seconds: float) -> None:
        plan = self._plan
        # With idempotence=ticket, no guard counts the rows that were in the stream already.
        counted = self._parsed.idempotence is not Idempotence.TICKET
        already = min(self._already, total)
        fresh = total - already
        speed = fresh / seconds if seconds else 0.0
        if plan.progress == "json":
            emit(
                event="done",
                rows=total,
                rows_per_s=round(speed, 1),
                seconds=round(seconds, 3),
                already=already if counted else None,
                rejected=rejected,
                run=self._run,
            )
        if plan.progress != "text":
            return
        done = f"pushed {count(fresh, 'message')} into" if counted else f"offered {count(fresh, 'message')} to"
        print(f"{done} {plan.stream} in {duration(seconds * 1000)}, {rate(speed)}", flush=True)
        if not counted:
            print(
                "messages whose number is not above the last one of their ticket are there already, and are not added"
            )
        if already:
            were = "was" if already == 1 else "were"
            print(
                f"{count(already, 'message')} {were} there already, from an earlier run of this push; "
                "--again pushes them again"
            )
        if rejected:
            print(f"{count(rejected, 'row')} could not be pushed: see {plan.rejects}, with a reason for each")
        if not self._known_again:
            print(
                "the push of a table has no name by itself: the same push again adds all rows again; --run-id names it"
            )
