"""Removes done entries from the stream.

Removal is not on the path of a message. The leader collects the ids of acknowledged entries in memory, and removes some
hundred at a time. An entry may be removed when all of this holds:

- It was delivered to every group of the stream, and is pending in none. So another program that reads the stream
  through a group of its own misses nothing. A group that is not read any more keeps all that it has not read; `XGROUP
  DESTROY` ends that, `GONE_S` later: the leader of a lane whose group was destroyed by mistake makes it again before.
- No dead letter of any lane of the stream is about it. Only an entry that is still there can be replayed in order.
- It was added more than ``bridge_retention`` seconds ago, by its id.
- The leaders of the other lanes have agreed that it is done (`bridge.leader.stream.held_back`). It may have been
  acknowledged by hand.
- No group stands beyond the newest id that the stream gave out, as after a change of its ids by hand: what was added
  since would look as if it had been delivered. If it is the lane's group, the lane is read again, which repairs that.

There are two ways to find such entries:

1. When ``bridge_retention`` is 0, the leader removes the ids that it acknowledged itself. When the stream has one
   group, it need not look at the stream. When the stream has more, it first asks which of them all groups are done
   with. So the leader that is done with an entry last removes it, and memory does not grow with the rate of messages.
2. In all cases the leader goes through the stream, one page at a time, again and again. This finds entries that a group
   without a leader finished later, entries whose dead letter was dropped, entries that another leader acknowledged, and
   entries that are old enough now.

Redis 8.2 can delete entries that all groups have acknowledged (``XACKDEL``, ``XDELEX`` with ``ACKED``). That is not
used: it knows neither dead letters nor the time since an entry was added, nor whether the caller leads, so the looks
above stay. It would replace only the question in the removing script whether another group has an entry pending. In the
step that settles it would delete entry by entry, on the path of every message, where a removal by hundreds costs less.

An XACK by hand does not make a message done, and must not remove its entry. So the second way runs only after the
pending list was compared with the picture and agreed (`bridge.leader.repair.manual_changes`). They are compared again
before entries that were found are removed: an XACK may have come in between. A new leader has compared the pending list
with the history before (`bridge.leader.takeover.acknowledged`).
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from celery.utils.log import get_logger
from redis.exceptions import NoPermissionError

from bridge.leader.stream.held_back import HeldBack
from bridge.routing.errors import LaneConflict
from bridge.routing.ids import LAST_ID, LAST_SEQUENCE, id_key
from bridge.routing.keys import LaneKeys
from bridge.routing.retention import done, letters, remove

if TYPE_CHECKING:
    from bridge.leader.step.steps import Steps
    from bridge.leader.step.term import Term
    from bridge.routing.batch import Batch
    from bridge.routing.transitions import Advanced

logger = get_logger(__name__)

#: Ids that are collected before they are removed, and most entries in one page.
BATCH = 500
#: The same where other groups must be asked: a longer look would delay messages of all lanes.
SHARED_BATCH = 100
#: Longest time for the letters of one turn, in seconds: the leader has other work.
LETTERS_S = 0.02
#: Longest time for one slice of a pass through the stream, in seconds, if it is not a page: messages wait for it.
SLICE_S = 0.002
#: The same where other groups are asked, and while fresh messages come. Such a pass finds little, and may be long.
SHORT_SLICE_S = 0.0005
#: Seconds between two slices, and after one that found something: there may be more, as fast as messages come.
PAUSE_S = 0.25
SOON_S = 0.02
#: Longest time for the pass of a lane at rest, which has no messages, in seconds.
PASS_S = 0.02
#: Seconds between two passes through the stream.
AGAIN_S = 15.0
#: Seconds without a removal after a group of the stream is gone: three looks of a lane that sleeps at its own group.
GONE_S = 15.0
#: The same after the server refused a question about other lanes.
REFUSED_S = 60.0
#: Dead letters in one page. The server reads the whole letter, with its payload and traceback.
LETTERS = 100


#: Matches the id of an entry. A dead letter may have been written by hand, with any text in place of the id.
is_id = re.compile(r"\d{1,20}-\d{1,20}").fullmatch


class Retention:
    """Removes done entries for one term, on the leader's thread.

    ``agrees``: compares the pending list with the picture, and repairs it.
    """

    def __init__(self, term: Term, steps: Steps, agrees: Callable[[], bool]) -> None:
        self._term = term
        self._agrees = agrees
        self._keys = term.keys
        self._keep_s = term.settings.retention
        self._held = HeldBack(term)
        steps.after_write.append(self.settled)
        #: Ids that this leader acknowledged and that are not dead. They may be removed now.
        self._ready: list[str] = []
        #: Other groups of the stream; None: not known.
        self._others: frozenset[bytes] | None = None
        #: Nothing is removed before this time (monotonic seconds).
        self._held_until = 0.0
        #: Whether the user of this master may not ask about other lanes, and a line in the log has said so.
        self._refused = False
        #: Where the next page begins, as XRANGE takes it.
        self._cursor = "-"
        #: Whether this pass reached the last entry that is old enough, and when the next one begins (monotonic
        #: seconds).
        self._ended = False
        self._again_at = 0.0
        #: When the next slice of this pass is due (monotonic seconds).
        self._slice_at = 0.0
        #: When this pass began, and when a message was acknowledged last (monotonic seconds).
        self._began_at = 0.0
        self._settled_at = 0.0
        #: Ids of messages with a dead letter. Key of dead letters -> id up to which its letters were read.
        self._dead: set[str] = set()
        self._read_to: dict[str, str] = {}
        #: The same messages, sorted by id; None: not sorted yet.
        self._sorted: list[tuple[int, int]] | None = None

    @property
    def sweep_at(self) -> float:
        """When `sweep` is to be called next (monotonic seconds)."""
        if self._keep_s is None:
            return float("inf")
        # Never before the next slice: it may be that none can be made now.
        return max(self._slice_at, self._again_at) if self._ended and not self._held.free else self._slice_at

    @property
    def passed(self) -> bool:
        """Whether the present pass has reached the last entry that may be removed."""
        return self._ended or self._keep_s is None or self._refused

    @property
    def idle(self) -> bool:
        """Whether a whole pass found nothing more to remove since this leader acknowledged something."""
        if self._keep_s is None or self._refused:
            return True
        passed = self._ended and self._began_at >= self._settled_at
        return not self._ready and not self._held.waits and (passed or not self._settled_at)

    @property
    def waits(self) -> bool:
        """Whether entries are done, and the leaders of other lanes have not agreed yet."""
        return self._held.waits

    def settled(self, _done: Advanced, batch: Batch) -> None:
        """Collects the ids that a batch acknowledged, and removes them when there are enough."""
        if batch.acknowledged:
            self._settled_at = time.monotonic()
        if self._keep_s != 0 or self._refused:
            return
        if batch.dead:
            dead = {letter.message_id for letter in batch.dead}
            self._ready += [id_ for id_ in batch.acknowledged if id_ not in dead]
        else:
            self._ready += batch.acknowledged
        if len(self._ready) >= (SHARED_BATCH if self._others else BATCH):
            self.remove()

    def remove(self) -> None:
        """Removes the collected ids that all groups are done with, and some that were held back."""
        # After a refusal a pass finds out whether this master may ask again.
        if self._refused or time.monotonic() < self._held_until:
            return
        with self._asking():
            self._remove()

    def _remove(self) -> None:
        self._held.look()
        self._remove_held()
        if not self._ready:
            return
        if self._others:
            self._remove_shared()
            return
        if remove(self._term.redis, self._term.leadership, (), self._ready) is None:
            # The stream has another group.
            self._again_at = 0.0
            self._remove_shared()
            return
        self._ready.clear()

    def _remove_shared(self) -> None:
        """Removes those of the collected ids that the other groups are done with, too. They remove the rest."""
        ids = sorted(set(self._ready), key=id_key)
        self._ready.clear()
        for start in range(0, len(ids), SHARED_BATCH):
            mine = ids[start : start + SHARED_BATCH]
            # Entries of other tickets may be between them. The pass through the stream finds what this does not reach.
            found = done(self._term.redis, self._keys.stream, mine[0], mine[-1], 2 * SHARED_BATCH)
            if self._one_is_gone(found.groups):
                self._ready = ids[start:]
                return
            # Letters are read after the entries: a dead entry has its letter by now.
            if not self._know_letters(found.groups, time.monotonic() + LETTERS_S):
                return
            gone = set(found.ids) - self._dead
            if leaving := self._held.hold([id_ for id_ in mine if id_ in gone]):
                remove(self._term.redis, self._term.leadership, self._others or (), leaving)

    def _remove_held(self) -> None:
        """Removes some entries that were held back and are free now. A later pass finds those that stay after all."""
        ids = self._held.take_free(2 * SHARED_BATCH)
        if not ids:
            return
        redis, leadership, others = self._term.redis, self._term.leadership, self._others or frozenset()
        # A lane may have made an entry pending again meanwhile, and may have given it up since. Letters are read after
        # the look: a dead entry has its letter by now.
        found = remove(redis, leadership, others, ids, only_looks=True)
        if found and self._know_letters(others | {self._keys.group.encode()}, time.monotonic() + LETTERS_S):
            remove(redis, leadership, others, [id_ for id_ in found if id_ not in self._dead])

    def sweep(self, *, briefly: bool = False) -> None:
        """Continues the pass through the stream for a page, or until `SLICE_S` or `SHORT_SLICE_S` are over.
        ``briefly``: fresh messages wait.

        To be called at `sweep_at`, when the pending list agreed with the picture at the last look.
        """
        started = time.monotonic()
        self._slice_at = max(started + PAUSE_S, self._held_until)
        if self._keep_s is None or started < self._held_until:
            return
        with self._asking():
            self._sweep(started, briefly=briefly)

    def sweep_quickly(self) -> None:
        """Continues the pass, or begins the next one, until it has ended or `PASS_S` are over. For a lane at rest."""
        now = time.monotonic()
        until = now + PASS_S
        due = now >= self.sweep_at
        while due and now < until:
            self.sweep()
            due, now = not self.passed, time.monotonic()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """For what asks about other lanes. Their keys may belong to another app, so the server may refuse that."""
        try:
            yield
            self._refused = False
        except NoPermissionError as exc:
            if not self._refused:
                stream = self._keys.stream
                logger.error(
                    "done entries stay in %s: this master may not ask about other lanes (%s). `bridge acl master` "
                    "prints the permissions of its user",
                    stream,
                    exc,
                )
            self._refused = True
            self._held_until = time.monotonic() + REFUSED_S
            # A pass finds them, when it may.
            self._ready.clear()

    def _sweep(self, started: float, *, briefly: bool) -> None:
        if self._held.free:
            self._slice_at = started + SOON_S
            self._remove_held()
            return
        if self._held.full:
            return
        if self._cursor == "-":
            self._began_at = started
        if self._ended and started >= self._again_at:
            self._began_at = started
            self._cursor, self._ended = "-", False
            # Dead letters may have been dropped in the meantime: read all of them again.
            self._dead.clear()
            self._sorted = None
            self._read_to.clear()
        briefly = briefly or bool(self._others)
        until = started + (SHORT_SLICE_S if briefly else SLICE_S)
        # Where nothing is kept, ids ahead of the clock go as well.
        keep_ms = (self._keep_s or 0.0) * 1000
        old_ms = max(0, int(self._term.clock.server_ms() - keep_ms))
        end = f"{old_ms}-{LAST_SEQUENCE}" if keep_ms else LAST_ID
        while time.monotonic() < until:
            page = SHARED_BATCH if briefly else BATCH
            spared = self._spared(page)
            found = done(self._term.redis, self._keys.stream, self._cursor, end, page, spared=spared)
            if self._one_is_gone(found.groups):
                return
            if self._keys.group.encode() in found.beyond:
                raise LaneConflict(f"the group {self._keys.group} stands beyond the end of {self._keys.stream}")
            # Letters are read after the entries: a dead entry has its letter by now.
            if not self._know_letters(found.groups, until):
                return
            if ids := [id_ for id_ in found.ids if id_ not in self._dead and not self._held.has(id_)]:
                if not self._agrees():
                    return
                self._slice_at = started + SOON_S
                leaving = self._held.hold(ids)
                if leaving and remove(self._term.redis, self._term.leadership, self._others or (), leaving) is None:
                    return
            if found.last:
                self._cursor = f"({found.last}"
            if not found.more:
                # The next pass finds entries that are done or old enough later.
                if not self._ended:
                    self._ended, self._again_at = True, started + AGAIN_S
                return

    def _one_is_gone(self, groups: frozenset[bytes]) -> bool:
        """Notes the groups of the stream. Returns whether one that was there is not there any more."""
        others = groups - {self._keys.group.encode()}
        gone = bool(self._others and self._others - others)
        self._held.know(others)
        if gone:
            self._held_until = time.monotonic() + GONE_S
        self._others = others
        return gone

    def _spared(self, count: int) -> list[str]:
        """The next ``count`` messages with a dead letter. They stay, and must not be read: they may be large."""
        after = (-1, 0) if self._cursor == "-" else id_key(self._cursor[1:])
        if self._sorted is None:
            self._sorted = sorted(map(id_key, filter(is_id, self._dead)))
        at = bisect_right(self._sorted, after)
        return [f"{ms}-{sequence}" for ms, sequence in self._sorted[at : at + count]]

    def _know_letters(self, groups: frozenset[bytes], until: float) -> bool:
        """Reads the new dead letters of all lanes of the stream. False: there was not enough time."""
        for group in groups:
            try:
                key = LaneKeys(self._keys.stream, group.decode()).dead
            except UnicodeDecodeError:
                # The group of another program.
                continue
            while True:
                ids, last, number = letters(self._term.redis, key, self._read_to.get(key, ""), LETTERS)
                if ids:
                    self._dead.update(ids)
                    self._sorted = None
                self._read_to[key] = last or self._read_to.get(key, "")
                if number < LETTERS:
                    break
                if time.monotonic() > until:
                    return False
        return True
