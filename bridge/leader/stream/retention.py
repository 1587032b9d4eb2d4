"""What is done leaves the stream: the leader removes entries that every group of the stream has done with.

Nothing of this is on the path of a message: ids of what was acknowledged gather in memory, and leave some hundred at a
time. An entry leaves when all of this holds:

- it was delivered to every group of the stream, and is pending in none: who reads the stream through a group of its
  own misses nothing, and a group that nobody reads any more keeps all that it has not read (`XGROUP DESTROY` it);
- no dead letter of any lane of the stream is about it, since only what is still there can be replayed in order;
- it was added longer ago than ``bridge_retention`` seconds.

Two ways lead there. While nothing is to be kept for a time and the stream has one group, the ids that the leader itself
acknowledged are removed as they are: no look at the stream is needed. All the rest (another group was slower, a letter
was dropped, another leader was deposed, entries that are old enough now) is found by going through the stream, a page
at a time, again and again; and only in a turn in which the pending list was compared with the picture and agreed
(`bridge.leader.repair.manual_changes`), as it was held against the history when the lane was read
(`bridge.leader.takeover.acknowledged`): an XACK by hand does not make a message done, and must not cost its entry.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from typing import TYPE_CHECKING

from bridge.routing.ids import id_key
from bridge.routing.keys import LaneKeys
from bridge.routing.retention import done, letters, remove

if TYPE_CHECKING:
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term
    from bridge.routing.transitions import Advanced, Batch

#: Ids that gather before they are removed; and the most entries in one page of a look.
BATCH = 500
#: Longest time for one look through the stream, in seconds: the leader has other things to do.
BUDGET_S = 0.02
#: Seconds between two looks from the beginning of the stream.
AGAIN_S = 15.0
#: Letters in one page: each may hold a payload and a traceback, which the server reads for it.
LETTERS = 100


#: What is an id, in what letters say: anybody may have written one.
is_id = re.compile(r"\d{1,20}-\d{1,20}").fullmatch


class Retention:
    """Works for the leader, on the leader's thread."""

    def __init__(self, term: Term, steps: Steps) -> None:
        self._term = term
        self._keys = term.keys
        self._keep_s = term.settings.retention
        steps.after_commit.append(self.settled)
        #: Acknowledged by this leader, and not dead: may go now.
        self._ready: list[str] = []
        #: Groups beside the lane's own; None: not known.
        self._others: frozenset[bytes] | None = None
        #: Where the next page begins, as XRANGE takes it.
        self._cursor = "-"
        #: Whether this look came to the end of what is old enough, and when the next one begins (monotonic).
        self._ended = False
        self._again_at = 0.0
        #: Messages that have a letter, and up to which letter that is known, for each key of dead letters.
        self._dead: set[str] = set()
        self._read_to: dict[str, str] = {}
        #: The same messages in the order of their ids; None: not put in order yet.
        self._sorted: list[tuple[int, int]] | None = None

    def settled(self, _done: Advanced, batch: Batch) -> None:
        """Takes note of what a batch acknowledged; removes it when it is enough for a call."""
        if self._keep_s != 0 or self._others:
            return
        if batch.dead:
            # A letter's first two words are its message's id, by name.
            dead = {letter[1] for letter in batch.dead}
            self._ready += [id_ for id_ in batch.acknowledged if id_ not in dead]
        else:
            self._ready += batch.acknowledged
        if len(self._ready) >= BATCH:
            self.remove()

    def remove(self) -> None:
        """Removes what has gathered, unless the stream turns out to have another group."""
        if not self._ready:
            return
        if remove(self._term.redis, self._term.leadership, (), self._ready) is None:
            # Going through the stream finds them again when the other group has done with them, too.
            self._others = None
            self._again_at = 0.0
        self._ready.clear()

    def sweep(self) -> None:
        """Goes on through the stream, as far as it gets in `BUDGET_S`. To be called when the pending list agrees."""
        if self._keep_s is None:
            return
        started = time.monotonic()
        if self._ended and started >= self._again_at:
            self._cursor, self._ended = "-", False
            # Letters may have been dropped since: all are read anew.
            self._dead.clear()
            self._sorted = None
            self._read_to.clear()
        until = started + BUDGET_S
        end = f"{max(0, int(self._term.clock.server_ms() - self._keep_s * 1000))}-{2**64 - 1}"
        while time.monotonic() < until:
            spared = self._spared(BATCH)
            found = done(self._term.redis, self._keys.stream, self._cursor, end, BATCH, spared=spared)
            self._others = found.groups - {self._keys.group.encode()}
            # After the entries: whatever of them is dead has its letter by now.
            if not self._know_letters(found.groups, until):
                return
            ids = [id_ for id_ in found.ids if id_ not in self._dead]
            if ids and remove(self._term.redis, self._term.leadership, self._others, ids) is None:
                return
            if found.last:
                self._cursor = f"({found.last}"
            if not found.more:
                # What is done, or old enough, later on comes behind, or waits for the next look.
                if not self._ended:
                    self._ended, self._again_at = True, started + AGAIN_S
                return

    def _spared(self, count: int) -> list[str]:
        """The first ``count`` messages with a letter that come next: they stay, and may be large."""
        after = (-1, 0) if self._cursor == "-" else id_key(self._cursor[1:])
        if self._sorted is None:
            self._sorted = sorted(map(id_key, filter(is_id, self._dead)))
        at = bisect_right(self._sorted, after)
        return [f"{ms}-{sequence}" for ms, sequence in self._sorted[at : at + count]]

    def _know_letters(self, groups: frozenset[bytes], until: float) -> bool:
        """Reads the letters, of all lanes of the stream, that are not known yet; False: there was no time for all."""
        for group in groups:
            try:
                key = LaneKeys(self._keys.stream, group.decode()).dead
            except UnicodeDecodeError:
                # Another program's group.
                continue
            while True:
                ids, last = letters(self._term.redis, key, self._read_to.get(key, ""), LETTERS)
                if ids:
                    self._dead.update(ids)
                    self._sorted = None
                self._read_to[key] = last or self._read_to.get(key, "")
                if len(ids) < LETTERS:
                    break
                if time.monotonic() > until:
                    return False
        return True
