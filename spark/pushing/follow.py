"""A push that follows a folder: files that appear there are written epoch by epoch, until a signal ends it.

The checkpoint says which files are done, and the guard on the server how much of the next epoch is written. So however
this process ends, kill -9 included, the next one with the same checkpoint goes on and writes nothing twice. After a
signal the running epoch has a few seconds to end. The checkpoint also says in which form an epoch that was cut off must
be written again: this machine may have other cores, and other files may be present.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as fn

from bridge.routing.errors import TicketBridgeError
from bridge.routing.numbers import count
from bridge.routing.stop_signal import StopSignal
from bridge.spark.job.eventlog import declared_columns, follow_events, present_columns
from bridge.spark.job.failures import Terminated, emit, one_line
from bridge.spark.job.progress import Display, WriteWatch
from bridge.spark.pushing.checkpoint import PUSH, Checkpoint, Form
from bridge.spark.pushing.messages import to_messages
from bridge.spark.pushing.plan import Follow, PushPlan, sent
from bridge.spark.pushing.rejects import divided, table_format
from bridge.spark.write.options import Idempotence, WriteOptions, parse_streaming
from bridge.spark.write.order import by_ticket

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Seconds between two looks into the folder, and between two looks at the query.
EVERY_S, QUERY_CHECK_S = 1, 1
#: Seconds that the running epoch has to end after the first signal.
GRACE_S = 10.0
_WRITTEN = "written"


def follow(session: SparkSession, plan: PushPlan) -> None:
    """Pushes files that appear, with progress as asked for, until a signal; with ``available_now``, the present files.

    Raises the error that ended the query; ``Terminated`` and ``KeyboardInterrupt`` only with ``available_now``.
    """
    assert plan.follow is not None
    _Following(session, plan, plan.follow).run()


def _form(session: SparkSession, plan: PushPlan, how: Follow, cut_off: Form | None) -> Form:
    """The form of the epochs: as asked for; else that of the epoch that was ``cut_off``; else of what there is now."""
    if how.schema is not None:
        columns = declared_columns(how.schema)
    elif cut_off is not None:
        columns = cut_off.columns
    else:
        columns = present_columns(session, plan.source, plan.kind, tolerant=plan.rejects is not None)
    present = cut_off.partitions if cut_off is not None else session.sparkContext.defaultParallelism
    return Form(plan.partitions or present, columns)


class _Following:
    """The queries of one push: one that writes, and one for rejected rows if they go to a folder."""

    def __init__(self, session: SparkSession, plan: PushPlan, how: Follow) -> None:
        self._plan, self._how = plan, how
        self._checkpoint = Checkpoint(session, how.checkpoint)
        self._cut_off = self._checkpoint.form_cut_off(url=plan.url, stream=plan.stream)
        self._form = form = _form(session, plan, how, self._cut_off)
        tolerant = plan.rejects is not None
        events = follow_events(
            session, plan.source, plan.kind, columns=form.columns, files=how.files, tolerant=tolerant
        )
        self._messages = to_messages(events, plan.mapping)
        self._options = plan.writer_options(self._messages.sequence, self._messages.fields)
        self._parsed: WriteOptions = parse_streaming(self._options)
        self._display = Display(plan.progress)
        self._reported = -1
        self._rows = 0
        self._epochs = 0

    def run(self) -> None:
        plan, started = self._plan, time.monotonic()
        # After all checks: a push that is refused must not claim the checkpoint.
        self._checkpoint.claim(url=plan.url, stream=plan.stream)
        if self._cut_off is None:
            self._checkpoint.keep(self._form)
        if plan.progress == "json":
            emit(
                event="started",
                file=plan.source,
                stream=plan.stream,
                partitions=self._form.partitions,
                ordered_by=self._messages.ordered_by,
                checkpoint=self._how.checkpoint,
            )
        elif plan.progress == "text":
            print(f"following {plan.source}; Ctrl-C or SIGTERM ends it", flush=True)
        with StopSignal() as stop:
            queries = self._start()
            self._checkpoint.begin()
            self._watch(queries, stop)
        seconds = time.monotonic() - started
        self._display.close()
        if stop.number is not None and self._how.available_now:
            # Some present files are not pushed: this is a failure.
            raise Terminated if stop.number == signal.SIGTERM else KeyboardInterrupt
        self._tell(seconds)

    def _start(self) -> list[StreamingQuery]:
        messages = self._messages
        queries = []
        if self._plan.rejects is not None:
            messages, rejects = divided(messages, limit=self._parsed.max_payload)
            queries.append(
                self._query(rejects, "rejects").format(table_format(self._plan.rejects)).start(self._plan.rejects)
            )
        # Each ticket on one connection. The writer sorts, since a streaming DataFrame cannot be sorted.
        placed = by_ticket(
            messages.frame,
            key=messages.key,
            partitions=self._form.partitions,
            sequence=messages.sequence,
            checks=messages.checks(self._parsed.max_payload),
        )
        rows = sent(messages, placed).observe(_WRITTEN, fn.count(fn.lit(1)).alias("rows"))
        writing = self._query(rows, PUSH).format("redisstream").options(**self._options)
        return [writing.start(), *queries]

    def _query(self, rows: DataFrame, name: str) -> Any:
        writer = rows.writeStream.queryName(name).outputMode("append")
        writer = writer.option("checkpointLocation", f"{self._how.checkpoint.rstrip('/')}/{name}")
        if self._how.available_now:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=f"{EVERY_S} seconds")

    def _watch(self, queries: list[StreamingQuery], stop: StopSignal) -> None:
        """Watches the queries until they end, or until a signal ends them."""
        deadline = None
        try:
            with WriteWatch(self._parsed, queries[0].id, self._display):
                while _still_running(queries):
                    self._report_epochs(queries[0])
                    if stop.number is None:
                        continue
                    deadline = deadline or time.monotonic() + GRACE_S
                    busy = any(query.status["isTriggerActive"] for query in queries)
                    if not busy or stop.count > 1 or time.monotonic() > deadline:
                        break
        except Exception as error:
            # Ctrl-C goes to the whole process group, Spark's workers included. Their end makes the epoch fail.
            if stop.number is None or _has_a_reason(error):
                raise
        finally:
            for query in queries:
                query.stop()
        self._report_epochs(queries[0])

    def _report_epochs(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            observed = progress.observedMetrics.get(_WRITTEN)
            rows = int(observed["rows"]) if observed is not None else 0
            # While no file appears, Spark reports the next epoch again and again, without rows.
            if progress.batchId <= self._reported or not rows:
                continue
            self._reported = progress.batchId
            self._rows += rows
            self._epochs += 1
            self._display.epoch(progress.batchId, rows, progress.batchDuration / 1000)

    def _tell(self, seconds: float) -> None:
        if self._plan.progress == "json":
            emit(event="done", rows=self._rows, epochs=self._epochs, seconds=round(seconds, 3))
        elif self._plan.progress == "text":
            # With idempotence=ticket, rows that were in the stream already are not counted.
            offered = self._parsed.idempotence is Idempotence.TICKET
            messages = count(self._rows, "message")
            done = f"offered {messages} to" if offered else f"pushed {messages} into"
            print(f"{done} {self._plan.stream} in {count(self._epochs, 'epoch')}", flush=True)


def _has_a_reason(error: Exception) -> bool:
    """Whether the error that ended a query has a known reason, other than the end of one of its processes."""
    try:
        return type(one_line(error)) is not TicketBridgeError
    except Exception:
        # Spark's errors ask Java for their messages, and Java has ended too.
        return False


def _still_running(queries: list[StreamingQuery]) -> bool:
    """Waits for a moment, then says whether any query still runs. Raises the error that ended a query."""
    running = [query for query in queries if query.isActive]
    if running:
        running[0].awaitTermination(QUERY_CHECK_S)
    for query in queries:
        if not query.isActive:
            query.awaitTermination(QUERY_CHECK_S)
    return bool(running)
