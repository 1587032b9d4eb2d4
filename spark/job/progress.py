"""Progress of a job, and of a write as the server sees it: how many rows it has added, and what it waits for.

Spark does not tell a driver how many rows a running task has written. The server does, with two small commands per
report and from any cluster: the guard of the push counts its rows, and the writers note what they wait for. Without a
guard, the new entries of the stream are counted, those of others too. This is for a person who watches. The number at
the end of a job is Spark's own count.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self, cast

import redis

from bridge.routing.errors import TicketBridgeError
from bridge.routing.keys import layout_key
from bridge.routing.layouts import layout_of
from bridge.routing.numbers import count, duration, rate
from bridge.routing.pushes import guard_of
from bridge.routing.terminal import ProgressDisplay, console
from bridge.spark.job.failures import emit
from bridge.spark.wire.address import RedisConnection, connect
from bridge.spark.write.guard import waiting
from bridge.spark.write.options import WriteOptions

#: How a job reports progress: for a person, for a program, or not at all.
Progress = Literal["text", "json", "none"]
#: Seconds between two reports.
INTERVAL_S = 0.5


class Display:
    """Shows a job's progress: JSON for a program; for a person one line that is replaced, or a line for each change."""

    def __init__(self, progress: Progress) -> None:
        self.wanted = progress != "none"
        self._json = progress == "json"
        self._display = ProgressDisplay(console())
        self._live = progress == "text" and self._display.is_live

    def rows(self, rows: int, speed: float) -> None:
        """The number of written rows, and the rate per second."""
        if self._json:
            emit(event="pushed", rows=rows, rows_per_s=round(speed, 1))
        else:
            self._show(f"{count(rows, 'message')}, {rate(speed)}")

    def waiting(self, rows: int, reason: str, seconds: float) -> None:
        """Nothing was written for so many seconds, for this reason."""
        if self._json:
            emit(event="waiting", reason=reason, seconds=round(seconds, 1))
        elif self._live:
            self._show(f"{count(rows, 'message')}, waiting for {duration(seconds * 1000)}: {reason}")
        else:
            # Without the seconds, so that each reason is shown once and not twice a second.
            self._show(f"waiting: {reason}")

    def epoch(self, epoch: int, rows: int, seconds: float) -> None:
        """An epoch of a streaming write is done."""
        if self._json:
            emit(event="epoch", epoch=epoch, rows=rows, seconds=round(seconds, 3))
        else:
            self._show(f"epoch {epoch}: {count(rows, 'message')} in {duration(seconds * 1000)}")

    def table(self, name: str, rows: int) -> None:
        """A table is written. A person sees this on a terminal only."""
        if self._json:
            emit(event="table", name=name, rows=rows)
        elif self._live:
            self._show(f"{name}: {count(rows, 'row')}")

    def close(self) -> None:
        """Removes the live line."""
        self._display.close()

    def _show(self, line: str) -> None:
        if self.wanted:
            self._display.show(line)


class WriteWatch:
    """Reports while its ``with`` block runs. An error of the server ends the reports, never the write.

    ``run`` names the guard that counts the rows. Without it all new entries of the stream are counted.
    """

    def __init__(self, options: WriteOptions, run: str | None, display: Display) -> None:
        self._options = options
        self._run = run
        self._display = display
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._report, name="progress", daemon=True)

    def __enter__(self) -> Self:
        if self._display.wanted:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._display.wanted:
            self._thread.join()
        self._display.close()

    def _report(self) -> None:
        with suppress(TicketBridgeError, redis.RedisError, OSError):
            connection = connect(self._options.url)
            try:
                self._watch(connection)
            finally:
                connection.disconnect()

    def _watch(self, connection: RedisConnection) -> None:
        counted, total = self._count(connection), 0
        at = time.monotonic()
        while not self._over.wait(INTERVAL_S):
            before, counted = counted, self._count(connection)
            now = time.monotonic()
            # The guard of a streaming query drops earlier epochs. Then it counts less than before, and no row is new.
            fresh = max(0, counted - before)
            total += fresh
            if fresh:
                self._display.rows(total, fresh / (now - at))
            else:
                self._waits(connection, total)
            at = now

    def _waits(self, connection: RedisConnection, rows: int) -> None:
        notes = waiting(connection, self._options.stream)
        if notes:
            self._display.waiting(rows, notes[0].why, notes[0].for_s)

    def _count(self, connection: RedisConnection) -> int:
        if self._run is None:
            return entries_added(connection, self._options.stream)
        return marked_rows(connection, self._options, self._run)


def marked_rows(connection: RedisConnection, options: WriteOptions, run: str) -> int:
    """How many rows of a batch its guard counts; of a streaming query, those of its last epochs."""
    marks = _marks(connection, options, run)
    return sum(int(value.split(b" ")[0]) for field, value in marks.items() if field.rpartition(b"/")[2].isdigit())


def marked_epochs(connection: RedisConnection, options: WriteOptions, run: str) -> set[int]:
    """The epochs of which the guard of a streaming query has notes."""
    epochs = (field.partition(b"/")[0] for field in _marks(connection, options, run))
    return {int(epoch) for epoch in epochs if epoch.isdigit()}


def marked_partitions(connection: RedisConnection, options: WriteOptions, run: str) -> int | None:
    """The number of partitions in which a batch of this name was written before; None if there was none."""
    found = _marks(connection, options, run).get(b"0/of")
    return int(found) if found else None


def _marks(connection: RedisConnection, options: WriteOptions, run: str) -> dict[bytes, bytes]:
    connection.send_command("HGETALL", guard_of(options.stream, run, options.guard_key))
    answer = cast(list[bytes], connection.read_response(disable_decoding=True))
    return dict(zip(answer[::2], answer[1::2], strict=True))


def entries_added(connection: RedisConnection, stream: str) -> int:
    """How many entries were ever added to the stream, of a split one to all partitions.

    Servers before 7.0 do not know: how many there are.
    """
    connection.send_command("GET", layout_key(stream))
    stored = cast("bytes | None", connection.read_response(disable_decoding=True)) or b""
    return sum(_entries_added(connection, name) for name in layout_of(stored, stream).streams(stream))


def _entries_added(connection: RedisConnection, stream: str) -> int:
    connection.send_command("XINFO", "STREAM", stream)
    try:
        answer = cast(list[object], connection.read_response(disable_decoding=True))
    except redis.ResponseError:
        return 0
    values = dict(zip(answer[::2], answer[1::2], strict=False))
    return cast(int, values.get(b"entries-added", values.get(b"length", 0)))
