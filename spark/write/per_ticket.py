"""Appends rows by the last sequence number of each ticket, so that each row is in the stream once, in whichever
partition it comes.

For upstreams that give other partitions, or rows in another order, when they run again. Each chunk is answered before
the next is sent: if the server took a chunk after it refused an earlier one, the rows of the earlier one could never be
written. A chunk whose answer was lost is sent again, and the rows that it wrote are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator

from bridge.routing.errors import StreamFull, TicketBridgeError
from bridge.routing.layouts import layout_of, lost_layout
from bridge.routing.partitions import Layout
from bridge.routing.producing import places_of
from bridge.routing.pushes import Answer, Columns, Tickets, per_ticket_opening
from bridge.routing.return_codes import ReturnCode
from bridge.spark.wire.encoder import EncodedRows
from bridge.spark.wire.replies import Link, Trouble, given_up
from bridge.spark.write.appending import MAX_CHUNK_BYTES
from bridge.spark.write.patience import Patience


class PerTicket:
    """One attempt at one partition: ``add`` its rows, each ticket's in order, then ``finish``."""

    def __init__(
        self, link: Link, at: Tickets, columns: Columns, patience: Patience, *, chunk_rows: int, url: str
    ) -> None:
        """``url`` is for errors only, without its secrets."""
        self._link, self._at, self._columns, self._patience = link, at, columns, patience
        self._chunk_rows, self._url = chunk_rows, url
        #: How many rows were added, and how many of them were in the stream before.
        self.rows = 0
        self.found = 0
        #: How the stream is split. The server refuses chunks that go by another layout, and says its own.
        self._layout = Layout()

    def begin(self) -> None:
        """Does nothing: each chunk is compared on its own."""

    def add(self, rows: EncodedRows) -> None:
        """Appends those of the rows that are new.

        Raises ``StreamFull``, ``ServerUnavailable`` and ``RefusedByServer``; another attempt may go on.
        """
        for start, end in self._pieces(rows):
            new = self._append(rows, start, end)
            self.rows += end - start
            self.found += end - start - new

    def finish(self) -> None:
        """Does nothing: every chunk was answered."""

    def _pieces(self, rows: EncodedRows) -> Iterator[tuple[int, int]]:
        start = 0
        while start < len(rows):
            end = rows.fitting(start, self._chunk_rows, MAX_CHUNK_BYTES)
            yield start, end
            start = end

    def _append(self, rows: EncodedRows, start: int, end: int) -> int:
        """Appends one chunk; returns how many of its rows were new."""
        at = self._at
        while True:
            hashes = rows.hashes(start, end) if self._layout.is_split else ()
            places = places_of(at.stream, self._layout, hashes)
            opening = per_ticket_opening(at, self._columns, end - start, rows.present(start, end), places)
            try:
                self._link.send(opening, rows.wire(start, end))
                answer = self._link.answer()
            except Trouble as trouble:
                why = str(trouble)
                self._patience.wait(why, self._full if trouble.full else lambda reason: given_up(self._url, reason))
                continue
            if answer.code is ReturnCode.OK:
                self._patience.progress()
                return int(answer.detail)
            if answer.code is ReturnCode.LAYOUT:
                if answer.detail:
                    self._layout = layout_of(answer.detail, at.stream)
                else:
                    # A master that runs stores it again.
                    self._patience.wait(lost_layout(at.stream), lambda reason: given_up(self._url, reason))
                continue
            self._wait_for_room(answer, at.high_water or 0)

    def _wait_for_room(self, answer: Answer, limit: int) -> None:
        self._patience.wait(f"the stream holds {int(answer.detail):,} entries (highWater {limit:,})", self._full)

    def _full(self, why: str) -> TicketBridgeError:
        return StreamFull(f"{why}; writing the same rows again goes on where this ended")
