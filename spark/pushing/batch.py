"""A push of what is there now: one Spark job, or two where bad rows have a place to go."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as fn

from bridge.routing.errors import PayloadError, RunChanged
from bridge.spark.job.eventlog import read_events
from bridge.spark.job.failures import emit
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
    """Push, reporting as asked. Raises ``InputError`` and ``PayloadError`` before anything was written."""
    _Batch(session, plan).run()


class _Batch:
    """The log as messages, and the name under which they are pushed."""

    def __init__(self, session: SparkSession, plan: PushPlan) -> None:
        self._plan = plan
        events = read_events(session, plan.source, plan.kind, tolerant=plan.rejects is not None)
        self._messages = to_messages(events, plan.mapping)
        options = plan.writer_options(self._messages.sequence, self._messages.fields)
        watermark = parse(options).idempotence is Idempotence.WATERMARK
        named = plan.run_id
        if named is None and not plan.again and (watermark or plan.rejects is not None):
            named = run_id_of(session, events, plan.mapping, stream=plan.stream)
        self._name = named or f"push-{uuid.uuid4().hex}"
        #: Whether the same push again is known for what it is.
        self._known_again = named is not None or plan.again or not watermark
        #: The name that the data source is told: only what counts rows knows names, sequence numbers need none.
        self._run = self._name if watermark else None
        if watermark:
            options["runId"] = self._name
        self._options = options
        self._parsed: WriteOptions = parse(options)
        #: Rows of this push that are there already, and in how many partitions they were written.
        self._already, partitions = self._before()
        if partitions and plan.partitions and partitions != plan.partitions:
            raise RunChanged(
                f"this push began with --partitions {partitions}: leave the option out to go on, or push all of "
                "it once more with --again"
            )
        # As before, whatever machine this is: the rows of a partition must be the same ones again.
        self._partitions = plan.partitions or partitions or session.sparkContext.defaultParallelism

    def run(self) -> None:
        """Push, and say so. The rejected rows first: they are put aside even when the push is broken off."""
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
        """Write; returns how many rows there are, written now or before."""
        ordered = in_ticket_order(
            messages.frame,
            key=messages.key,
            sequence=messages.sequence,
            time=messages.time,
            partitions=self._partitions,
            # Whether it is JSON was asked of all of it before; once more would be two more parses of each.
            checks=replace(messages.checks(self._parsed.max_payload), json=False),
        )
        counted = Observation("written")
        rows = sent(messages, ordered).observe(counted, fn.count(fn.lit(1)).alias("rows"))
        with WriteWatch(self._parsed, self._run, Display(self._plan.progress)):
            rows.write.format("redisstream").mode("append").options(**self._options).save()
        return int(counted.get["rows"])

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
            print(f"no column orders the events of a ticket: it is {ordered_by} (--seq names one)", flush=True)

    def _tell_end(self, total: int, rejected: int, seconds: float) -> None:
        plan = self._plan
        # By the tickets' last numbers each chunk is asked for on its own, and no guard counts what was there.
        counted = self._parsed.idempotence is not Idempotence.TICKET
        already = min(self._already, total)
        fresh = total - already
        rate = fresh / seconds if seconds else 0.0
        if plan.progress == "json":
            emit(
                event="done",
                rows=total,
                rows_per_s=round(rate, 1),
                seconds=round(seconds, 3),
                already=already if counted else None,
                rejected=rejected,
                run=self._run,
            )
        if plan.progress != "text":
            return
        done = f"pushed {fresh:,} events into" if counted else f"offered {fresh:,} events to"
        print(f"{done} {plan.stream} in {seconds:.1f} s, {rate:,.0f} per second", flush=True)
        if not counted:
            print("of these, what is not above the last number of its ticket was there already, and is not added")
        if already:
            print(f"{already:,} events were there already, from an earlier push of the same; --again pushes them anew")
        if rejected:
            print(f"{rejected:,} rows could not be pushed: {plan.rejects} has them, each with the reason")
        if not self._known_again:
            print("what this table holds has no name of its own: the same push again adds it again; --run-id names it")
