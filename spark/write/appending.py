"""Appends the rows of one partition, each row once, whatever happens: the heart of the writer.

The guard (``bridge.spark.write.guard``) is authoritative: its mark says how many rows of the partition are in the
stream. A chunk carries the mark that it expects and the mark that it leaves. A script compares, appends and moves the
mark in one step. So chunks may be sent without waiting for each other: after a chunk that was not taken, the next ones
find another mark than they expect, and are not taken either.

After any answer but ``OK``, pending answers are read or given up, the guard's mark is read, and sending goes on from
that mark. This one way covers all cases: a full stream or server (the writer waits), a broken connection with unknown
answers, a server that was restarted or replaced, another attempt of the same task beside this one, and an earlier
attempt that wrote a part. Rows after the mark are sent again. Rows before it are only compared with the mark's digest,
so other rows, or rows in another order, are refused and never mixed in.

Only the chunks without an answer are kept in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import redis

from bridge.routing.errors import RowsMissing, RunChanged, StreamFull, TicketBridgeError
from bridge.routing.layouts import layout_of, lost_layout
from bridge.routing.partitions import Layout
from bridge.routing.producing import places_of
from bridge.routing.pushes import Answer, Columns, Partition, once_opening
from bridge.routing.return_codes import ReturnCode
from bridge.spark.wire.encoder import EncodedRows
from bridge.spark.wire.replies import Link, Trouble, given_up
from bridge.spark.write.guard import Mark, mark_of
from bridge.spark.write.patience import Patience

#: A chunk has at most this many bytes, unless a single row has more: the server works on one at a time.
MAX_CHUNK_BYTES = 1024 * 1024
_NOTHING = memoryview(b"")


@dataclass(frozen=True)
class Chunk:
    """Rows that are sent together: those of ``rows`` from ``start`` to before ``end``."""

    rows: EncodedRows | None
    start: int
    end: int
    before: Mark
    after: Mark

    @property
    def wire(self) -> memoryview:
        return _NOTHING if self.rows is None else self.rows.wire(self.start, self.end)

    @property
    def present(self) -> bytes:
        return b"" if self.rows is None else self.rows.present(self.start, self.end)

    @property
    def hashes(self) -> Sequence[int]:
        return () if self.rows is None else self.rows.hashes(self.start, self.end)

    def split(self, rows: int, names: bytes) -> tuple[Chunk, Chunk]:
        """The same rows as two chunks, the first with ``rows`` rows."""
        assert self.rows is not None
        cut = self.start + rows
        middle = self.before.after(self.rows.wire(self.start, cut), rows, names)
        first = Chunk(self.rows, self.start, cut, self.before, middle)
        return first, Chunk(self.rows, cut, self.end, middle, self.after)


class Appending:
    """One attempt at one partition: ``add`` its rows in order, then ``finish``."""

    def __init__(
        self,
        link: Link,
        at: Partition,
        columns: Columns,
        patience: Patience,
        *,
        chunk_rows: int,
        window: int,
        url: str,
    ) -> None:
        """``window``: chunks that may be unanswered. ``url`` is for errors only, without its secrets."""
        self._link, self._at, self._columns, self._patience = link, at, columns, patience
        self._chunk_rows, self._window, self._url = chunk_rows, window, url
        #: Part of the digest: the same values under other names are other rows.
        self._names = "\0".join(columns.names).encode()
        #: The mark after the last row that was added.
        self._here = Mark()
        #: The guard's mark, while it is ahead of the rows that were added, or is the partition's end.
        self._ahead: Mark | None = None
        self._unanswered: deque[Chunk] = deque()
        #: How the stream is split. The server refuses chunks that go by another layout, and says its own.
        self._layout = Layout()
        #: How many rows earlier attempts had written when this one began.
        self.found = 0

    @property
    def rows(self) -> int:
        """How many rows were added."""
        return self._here.rows

    def begin(self) -> None:
        """Reads how far earlier attempts came. Raises ``ServerUnavailable`` when the server stays away."""
        self._recover(None)
        self.found = 0 if self._ahead is None else self._ahead.rows

    def add(self, rows: EncodedRows) -> None:
        """Sends these rows. Those that are in the stream already are only compared.

        Raises ``RunChanged`` when they differ, and ``StreamFull``, ``ServerUnavailable``, ``RefusedByServer`` and
        ``RowsMissing``. After any error the guard and the stream agree, and another attempt may go on.
        """
        start = 0
        while start < len(rows):
            while len(self._unanswered) >= self._window:
                self._settle()
            if self._ahead is not None:
                start += self._compare(rows, start, self._ahead)
                continue
            end = rows.fitting(start, self._chunk_rows, MAX_CHUNK_BYTES)
            after = self._here.after(rows.wire(start, end), end - start, self._names)
            chunk = Chunk(rows, start, end, self._here, after)
            self._here = after
            self._unanswered.append(chunk)
            start = end
            try:
                self._send(chunk)
            except Trouble as trouble:
                self._recover(trouble)

    def finish(self) -> None:
        """Waits until all rows are written, and marks the partition as complete. Raises as ``add`` does."""
        end = Mark(self._here.rows, self._here.digest, over=True)
        while self._unanswered:
            self._settle()
        if self._ahead is None:
            self._unanswered.append(Chunk(None, 0, 0, self._here, end))
            try:
                self._send(self._unanswered[-1])
            except Trouble as trouble:
                self._recover(trouble)
            while self._unanswered:
                self._settle()
        if self._ahead is not None and self._ahead != end:
            raise self._changed(f"this attempt has {end.rows} rows, but {self._ahead.rows} were written")

    def _send(self, chunk: Chunk) -> None:
        count = 0 if chunk.rows is None else chunk.end - chunk.start
        hashes = chunk.hashes if self._layout.is_split else ()
        places = places_of(self._at.stream, self._layout, hashes)
        marks = (chunk.before.text, chunk.after.text)
        opening = once_opening(self._at, *marks, self._columns, count, chunk.present, places)
        self._link.send(opening, chunk.wire)

    def _settle(self) -> None:
        """Waits for the oldest answer."""
        try:
            answer = self._link.answer()
        except Trouble as trouble:
            self._recover(trouble)
            return
        if answer.code is ReturnCode.OK:
            self._taken()
        else:
            self._recover(answer)

    def _taken(self) -> None:
        self._unanswered.popleft()
        self._patience.progress()

    def _recover(self, met: Trouble | Answer | None) -> None:
        """Goes on after any answer but ``OK``. On return, every chunk was taken or is sent again."""
        while True:
            try:
                while self._link.pending:
                    # The answers are not looked at: the guard says what became of the chunks.
                    self._drop_answer()
                self._judge(met)
                found = self._mark()
                self._align(found)
                if not self._unanswered:
                    return
                # The oldest chunk goes alone: until it is taken, the others need not be sent.
                self._send(self._unanswered[0])
                answer = self._link.answer()
                if answer.code is not ReturnCode.OK:
                    met = answer
                    continue
                self._taken()
                for chunk in self._unanswered:
                    self._send(chunk)
                return
            except Trouble as trouble:
                met = trouble

    def _drop_answer(self) -> None:
        try:
            self._link.answer()
        except Trouble:
            # A full server refuses each of them; one that is away has closed the connection.
            return

    def _judge(self, met: Trouble | Answer | None) -> None:
        """Waits where waiting helps, else raises."""
        if isinstance(met, Trouble):
            self._patience.wait(str(met), self._full if met.full else lambda why: given_up(self._url, why))
        elif met is not None and met.code is ReturnCode.WAIT:
            limit = self._at.high_water or 0
            self._patience.wait(f"the stream holds {int(met.detail):,} entries (highWater {limit:,})", self._full)
        elif met is not None and met.code is ReturnCode.CONFLICT:
            raise self._other_count(met.detail)
        elif met is not None and met.code is ReturnCode.LAYOUT:
            if not met.detail:
                # A master that runs stores it again.
                self._patience.wait(lost_layout(self._at.stream), lambda why: given_up(self._url, why))
                return
            self._layout = layout_of(met.detail, self._at.stream)
        elif met is not None and met.code is ReturnCode.LATE:
            raise RunChanged(f"{self._name}: a later epoch is committed already; this attempt is a straggler")

    def _mark(self) -> Mark:
        try:
            mark, count = mark_of(self._link.client(), self._at)
        except (redis.RedisError, OSError) as error:
            raise self._link.failed(error) from None
        if None not in (count, self._at.count) and count != self._at.count:
            raise self._other_count(str(count))
        return mark

    def _align(self, found: Mark) -> None:
        """Drops the chunks that the guard says are written, after comparing them with its mark."""
        waiting = self._unanswered
        oldest = waiting[0].before if waiting else self._here
        if found.rows < oldest.rows:
            raise RowsMissing(
                f"{self._name}: {oldest.rows} rows were acknowledged, and the guard knows of {found.rows}: the server "
                "lost its last writes (a failover, a restart), or keys were deleted; run it again to write the rest"
            )
        while waiting and (waiting[0].after.rows, waiting[0].after.over) <= (found.rows, found.over):
            done = waiting.popleft()
            self._same(done.after, found)
        if waiting and found.rows > waiting[0].before.rows:
            cut = waiting.popleft()
            first, rest = cut.split(found.rows - cut.before.rows, self._names)
            self._same(first.after, found)
            waiting.appendleft(rest)
        if waiting:
            self._same(waiting[0].before, found)
            if found.over:
                raise self._changed(f"it was complete with {found.rows} rows, and this attempt has more")
        elif found.over or found.rows > self._here.rows:
            self._same(self._here, found)
            self._ahead = found

    def _compare(self, rows: EncodedRows, start: int, ahead: Mark) -> int:
        """Skips rows that are in the stream already; returns how many."""
        count = min(len(rows) - start, ahead.rows - self._here.rows)
        if not count:
            raise self._changed(f"it was complete with {ahead.rows} rows, and this attempt has more")
        self._here = self._here.after(rows.wire(start, start + count), count, self._names)
        self._same(self._here, ahead)
        if self._here.rows == ahead.rows and not ahead.over:
            self._ahead = None
        return count

    def _same(self, mine: Mark, found: Mark) -> None:
        if mine.rows == found.rows and mine.digest != found.digest:
            raise self._changed(
                f"its first {found.rows} rows are other ones, or in another order, or have other fields"
            )

    @property
    def _name(self) -> str:
        return f"partition {self._at.number} of write {self._at.guard!r}"

    def _other_count(self, first: str) -> RunChanged:
        return RunChanged(
            f"{self._name}: the first attempt had {first} partitions, this one has {self._at.count}; write it again "
            "with as many, or under another runId"
        )

    def _changed(self, what: str) -> RunChanged:
        return RunChanged(
            f"{self._name} was written in part by an earlier attempt, and this one differs: {what}. Nothing was added. "
            "Give every attempt the same rows in the same order (in_ticket_order), or use idempotence=ticket"
        )

    def _full(self, why: str) -> TicketBridgeError:
        return StreamFull(
            f"{why}; {self._here.rows} rows of {self._name} were sent; a run of the same runId goes on there"
        )
