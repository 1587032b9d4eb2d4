"""Progress of a write, seen from the server: how many entries the stream has got since the write began.

Spark tells a driver nothing about rows that a running task has written. The stream itself does, at the price of one
small command per report, and it does so from any cluster. Entries that others add meanwhile are counted too, so this
is what a person watches; the number at the end of a job is Spark's own count.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Literal, Self, cast

import redis

from routing.errors import TicketBridgeError
from spark.address import RedisConnection, connect
from spark.failures import emit

#: Seconds between two reports.
INTERVAL_S = 0.5


class EntryWatch:
    """Reports while its ``with`` block runs. Trouble with the server ends the reports, never the write."""

    def __init__(self, url: str, stream: str, progress: Literal["text", "json", "none"]) -> None:
        self._url = url
        self._stream = stream
        self._progress = progress
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._report, name="progress", daemon=True)

    def __enter__(self) -> Self:
        if self._progress != "none":
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._progress != "none":
            self._thread.join()
        if self._progress == "text" and sys.stdout.isatty():
            print("\r\033[K", end="", flush=True)

    def _report(self) -> None:
        try:
            connection = connect(self._url)
            try:
                self._watch(connection)
            finally:
                connection.disconnect()
        except (TicketBridgeError, redis.RedisError, OSError):
            return

    def _watch(self, connection: RedisConnection) -> None:
        at_first = entries_added(connection, self._stream)
        at, reported = time.monotonic(), 0
        while not self._over.wait(INTERVAL_S):
            rows = entries_added(connection, self._stream) - at_first
            if rows <= reported:
                # Spark reads and sorts, or waits for the server: nothing to tell.
                at = time.monotonic()
                continue
            now = time.monotonic()
            rate = (rows - reported) / (now - at)
            at, reported = now, rows
            if self._progress == "json":
                emit(event="pushed", rows=rows, rows_per_s=round(rate, 1))
            elif sys.stdout.isatty():
                print(f"\r{rows:,} events, {rate:,.0f} per second ", end="", flush=True)
            else:
                print(f"{rows:,} events, {rate:,.0f} per second", flush=True)


def entries_added(connection: RedisConnection, stream: str) -> int:
    """How many entries the stream has ever got; before version 7.0, which does not know, how many it has."""
    connection.send_command("XINFO", "STREAM", stream)
    try:
        answer = cast(list[object], connection.read_response(disable_decoding=True))
    except redis.ResponseError:
        return 0
    told = dict(zip(answer[::2], answer[1::2], strict=False))
    return cast(int, told.get(b"entries-added", told.get(b"length", 0)))
