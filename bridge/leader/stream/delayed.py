"""The leader's timer of delayed messages: it moves those that are due to the messages that wait, and takes them in.

A delayed message is pending under a name of its own (`LaneKeys.delayed_consumer`) and a member of a sorted set. It has
no memory here, however many there are. The leader knows only when the next one is due. Then one script moves some of
them, by the server's clock, with their entries (`bridge.routing.delaying`). The leader does that behind each read of
the stream and before it dispatches. So a message that is due goes before those that were added later, whenever the
leader looks: what was added before it is in the picture, and what came later is not dispatched yet. Only when more are
due at once than a turn moves, or than the lane keeps ready, do some take their places later.

Many may be due at one moment. The leader moves them as fast as they are dispatched, and a few in each turn, so that
the turns are short, and it goes on reading. Their tickets and all others take turns (`bridge.leader.picture.ready`).

For one lease after a step of the server's clock, a message must be due without that step as well
(`ServerClock.due_ms`). A clock that is set back makes messages late.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bridge.leader.picture.ready import ENOUGH_MESSAGES
from bridge.leader.stream.delay_sets import due_times, say_removed
from bridge.leader.stream.reading import BESIDE_BYTES
from bridge.routing.delaying import MOST, Moved, move_due
from bridge.routing.ids import IdKey, Place, id_in, id_key, id_text, late_place

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term
    from bridge.leader.stream.reading import Reading
    from bridge.routing.batch import Batch

#: Most calls of the script in one turn of the loop.
CALLS = 2
#: How many it moves in a call, once the lane has enough work and needs only as many as are done. While the lane hurries
#: there is one call in a turn.
SLICE = 200
#: Seconds until the next try when the script moved nothing that was due by the clock here.
AGAIN_S = 0.05
#: Seconds until the next call when some were moved: at a high rate, many are moved at once.
GATHER_S = 0.005
#: How far, in ms, the server's clock may be ahead of what is known of it here.
AHEAD_MS = 20


class Delayed:
    """The delayed messages of one lane, on the leader's thread."""

    def __init__(self, term: Term, lane: Lane, steps: Steps, reading: Reading) -> None:
        self._term = term
        self._lane = lane
        self._steps = steps
        self._reading = reading
        self._keys = term.keys
        #: Nothing is moved before this time (monotonic seconds), unless more was read.
        self._again_at = 0.0
        self._tried_at: tuple[int, int] | None = None
        #: Whether more were due than the last turn moved.
        self.flooded = False
        #: Whether tickets waited for some messages when this term began.
        self._has_held = False

    def begin(self, read_to: IdKey) -> list[Any]:
        """Learns when the next message is due, and whether any is late. To be called before the lane is read.

        ``read_to``: the key up to which earlier leaders have read the stream. A message may be due that was added
        before an entry of its ticket that they read. It goes first, so some are moved here. The scan of the lane finds
        them, but for those whose entries were deleted: the server does not keep these pending. They are returned, for
        `refuse_deleted`.
        """
        deleted: list[Any] = []
        late, held, rows = self._term.wire.call_many(
            [
                ("ZCARD", self._keys.late),
                ("ZCARD", self._keys.holding),
                ("ZRANGE", self._keys.delayed, 0, 0, "WITHSCORES"),
            ]
        )
        self._lane.has_late = late > 0
        self._has_held = held > 0
        self._lane.next_due_ms = int(float(rows[1])) if rows else None
        self._reads_to(read_to)
        for _ in range(CALLS):
            due = self._lane.next_due_ms
            if due is None or due >= self._now_ms:
                break
            moved = self._move_some(MOST, read_to, [])
            self._lane.next_due_ms = moved.next_ms
            self._lane.has_late |= bool(moved.entries)
            deleted += [entry for entry in moved.entries if not entry[1]]
        return deleted

    def refuse_deleted(self, entries: Sequence[Any], batch: Batch) -> None:
        """Makes dead letters of messages that were moved, and whose entries are gone."""
        for entry in entries:
            self._reading.take_late(entry, int(float(entry[2])), batch)

    # -- when ------------------------------------------------------------------------------------------------------

    @property
    def _now_ms(self) -> int:
        """The time by which messages are due."""
        return self._term.clock.due_ms()

    def timeout_s(self) -> float | None:
        """In how many seconds the next message is to be moved; None: not by time alone."""
        lane, due = self._lane, self._lane.next_due_ms
        if due is None or lane.behind or lane.has_enough_late:
            return None
        return max((due + 1 - self._now_ms) / 1000, self._again_at - time.monotonic(), 0.0)

    def read_with(self, entries: Sequence[Any]) -> None:
        """These new entries are taken in next. What is due before the last of them was added is late at once."""
        self._reads_to(id_key(entries[-1][0].decode()) if entries else (0, 0))

    def _reads_to(self, last: IdKey) -> None:
        self._lane.late_before_ms = min(last[0], self._now_ms + AHEAD_MS)

    # -- moving ----------------------------------------------------------------------------------------------------

    def run(self, batch: Batch) -> None:
        """Moves what is due. Nothing in a step with operators' orders: such an order may have cancelled or rescheduled
        it, which is not in Redis yet.
        """
        lane, due = self._lane, self._lane.next_due_ms
        if due is None or lane.behind or lane.has_enough_late or batch.orders:
            return
        if due >= max(self._now_ms, min(lane.read_to[0], self._now_ms + AHEAD_MS)):
            return
        if lane.read_to == self._tried_at and time.monotonic() < self._again_at:
            return
        for _ in range(1 if lane.fresh.hurries else CALLS):
            if not self._move(batch):
                return

    def _move(self, batch: Batch) -> bool:
        """Moves some messages. Returns whether more are to be moved now, and there is room for them."""
        lane, settings = self._lane, self._term.settings
        # Fresh messages wait for the turn of the loop.
        most = SLICE if lane.fresh.hurries else max(SLICE, ENOUGH_MESSAGES - lane.held)
        count = max(1, min(MOST, settings.window - lane.held, most))
        # What this step delays is not in Redis yet. What is due later comes after it.
        coming = [int(due) for due in batch.delayed[::2]]
        moved = self._move_some(count, lane.read_to, coming)
        lane.next_due_ms = min([*coming, *([] if moved.next_ms is None else [moved.next_ms])], default=None)
        for entry in moved.entries:
            self._reading.take_late(entry, int(float(entry[2])), batch)
        more = self.flooded = moved.next_ms is not None and moved.next_ms < moved.before_ms
        if not (more or coming):
            pause_s = GATHER_S if moved.entries else AGAIN_S
            self._tried_at, self._again_at = lane.read_to, time.monotonic() + pause_s
        return more and not lane.has_enough_late

    def _move_some(self, count: int, read_to: IdKey, coming: Sequence[int]) -> Moved:
        """Calls the script. ``coming``: times before which a message must be due."""
        term, settings = self._term, self._term.settings
        limits = [*coming, *([] if term.clock.is_settled() else [term.clock.settled_ms()])]
        moved = move_due(
            *(term.redis, term.leadership, count, id_text(read_to)),
            before_ms=min(limits, default=None),
            history_cap=self._steps.history_cap.with_next() if settings.history else 0,
            limit=settings.max_payload + BESIDE_BYTES,
            names=self._reading.names,
        )
        if moved.foreign:
            say_removed(self._keys.delayed, moved.foreign)
        if settings.history:
            self._steps.history_cap.wrote(len(moved.entries))
        return moved

    # -- where late messages are -------------------------------------------------------------------------------------

    def late_among(self, ids: Sequence[str]) -> dict[str, int]:
        """Those of ``ids`` that are late -> when they were due."""
        if not self._lane.has_late:
            return {}
        return due_times(self._term, self._keys.late, ids)

    def held_among(self, ids: Sequence[str]) -> dict[str, int]:
        """Those of ``ids`` for which their tickets wait -> when they are due. Only those from before this term."""
        return due_times(self._term, self._keys.holding, ids) if self._has_held else {}

    def late_from(self, start: Place, most: int) -> tuple[list[tuple[Place, str]], Place | None]:
        """The late messages from ``start`` on, by their places: at most ``most`` of them, and the place where the next
        ones begin (None: there are none).
        """
        if not self._lane.has_late:
            return [], None
        found: list[tuple[Place, str]] = []
        offset = 0
        while True:
            flat = self._term.wire.call(
                *("ZRANGEBYSCORE", self._keys.late, start[0], "+inf", "WITHSCORES", "LIMIT", offset, most + 1)
            )
            for member, score in zip(flat[::2], flat[1::2], strict=True):
                # Another one, which somebody wrote by hand, is removed elsewhere (`ids_in`).
                if (id_ := id_in(member)) is not None and (place := late_place(int(float(score)), id_)) >= start:
                    found.append((place, id_))
            if len(found) > most:
                return found[:most], found[most][0]
            if len(flat) <= 2 * most:
                return found, None
            offset += most + 1
