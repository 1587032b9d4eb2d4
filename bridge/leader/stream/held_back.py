"""Done entries of a stream with several lanes, until the leaders of the other lanes have agreed that they are done.

An entry that is pending in no group looks done. Somebody may have run XACK on it in the group of a lane that is not
done with it. That lane's leader compares the pending list with its picture every few seconds, and makes the entry
pending again. So an entry is removed only after each of these leaders has compared them since the entry was found:

- A leader whose comparison agreed counts that (`LaneKeys.agreed`), where the stream has other groups.
- After the entry was found, the counts are noted. The first comparison that is counted from then on may have begun
  before; the second one has not. So an entry is free when each count has grown by two.
- The removal asks again in which groups the entry is pending.

A group that never had a leader is no lane, but another program's: nobody compares it. A lane without a leader holds
back what it was done with lately. Its next leader reads in the history what was done, repairs the rest, and compares.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError

from bridge.routing.ids import id_key
from bridge.routing.keys import LaneKeys

if TYPE_CHECKING:
    from bridge.leader.step.term import Term

#: Seconds between two looks at the counts, beside at most `FEW` other lanes. Beside more of them, each look costs more,
#: and more leaders look: the time grows with their number.
LOOK_S = 0.5
FEW = 8
#: Counted comparisons until the last one must have begun after an entry was found.
COMPARISONS = 2
#: Most entries that are held back. A pass through the stream finds the others again.
MOST = 100_000
#: Looks without an entry that became free after which nothing is expected: some lane has no leader.
STUCK = 60
#: A count has fewer digits.
DIGITS = 20


@dataclass
class _Noted:
    """Entries that were found between two looks. ``counts``: lane -> the count after that."""

    ids: list[str]
    counts: dict[bytes, int]


class HeldBack:
    """The entries that the leader of one lane holds back, on its thread."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._groups: frozenset[bytes] = frozenset()
        #: The other lanes of the stream, by group.
        self._lanes: dict[bytes, LaneKeys] = {}
        self._ids: set[str] = set()
        self._found: list[str] = []
        self._noted: deque[_Noted] = deque()
        self._free: deque[str] = deque()
        self._look_at = 0.0
        self._moved_at = 0.0

    @property
    def full(self) -> bool:
        """Whether no more can be held back."""
        return len(self._ids) >= MOST

    @property
    def waits(self) -> bool:
        """Whether entries are held back that are expected to become free soon."""
        return bool(self._ids) and time.monotonic() - self._moved_at < STUCK * self._interval_s

    def know(self, groups: frozenset[bytes]) -> None:
        """Takes in which other groups the stream has. With other ones, what was found is to be found again."""
        if groups == self._groups:
            return
        # Set last: when the question is refused, or gets no answer, it is asked again.
        self._counts(groups)
        self._groups = groups
        self._ids.clear()
        self._found.clear()
        self._noted.clear()
        self._free.clear()
        self._look_at = 0.0

    @property
    def _interval_s(self) -> float:
        return LOOK_S * max(1.0, len(self._lanes) / FEW)

    @property
    def free(self) -> int:
        """How many entries need not be held back any more."""
        return len(self._free)

    def has(self, id_: str) -> bool:
        """Whether the entry is held back."""
        return id_ in self._ids

    def hold(self, ids: Sequence[str]) -> Sequence[str]:
        """Holds back those of ``ids``, which were found just now, that must be. Returns the others."""
        if not self._lanes:
            return ids
        if not self._ids:
            self._moved_at = time.monotonic()
        new = [id_ for id_ in ids if id_ not in self._ids][: MOST - len(self._ids)]
        self._ids.update(new)
        self._found += new
        return ()

    def look(self) -> None:
        """Looks at the counts, at intervals while something is held back. One round trip."""
        now = time.monotonic()
        if not self._ids or now < self._look_at:
            return
        self._look_at = now + self._interval_s
        counts = self._counts(self._groups)
        for noted in self._noted:
            for lane, count in counts.items():
                # The key was deleted, or the group has become a lane: the count begins again.
                noted.counts[lane] = min(noted.counts.get(lane, count), count)
        while self._noted and all(counts[lane] >= self._noted[0].counts[lane] + COMPARISONS for lane in counts):
            self._free += self._noted.popleft().ids
            self._moved_at = now
        if self._found:
            self._noted.append(_Noted(self._found, counts))
            self._found = []

    def take_free(self, most: int) -> list[str]:
        """Takes out up to ``most`` of the entries that are free, in the order of their ids."""
        ids = [self._free.popleft() for _ in range(min(most, len(self._free)))]
        self._ids.difference_update(ids)
        return sorted(ids, key=id_key)

    def _counts(self, groups: frozenset[bytes]) -> dict[bytes, int]:
        """Lane -> how many comparisons its leaders have counted. Also finds out which of ``groups`` are lanes."""
        known = list(_lanes(self._term.keys.stream, groups))
        with self._term.redis.pipeline(transaction=False) as pipe:
            for _, keys in known:
                pipe.get(keys.agreed)
            replies = pipe.execute(raise_on_error=False)
        counts = {name: _count(reply) for (name, _), reply in zip(known, replies, strict=True) if reply is not None}
        self._lanes = {name: keys for name, keys in known if name in counts}
        return counts


def _count(reply: Any) -> int:
    """The count in a reply; 0: somebody wrote something else there, and the lane's leader begins again."""
    if isinstance(reply, NoPermissionError):
        raise reply
    return int(reply) if isinstance(reply, bytes) and reply.isdigit() and len(reply) < DIGITS else 0


def _lanes(stream: str, groups: Iterable[bytes]) -> Iterator[tuple[bytes, LaneKeys]]:
    """The keys of each group that may be a lane."""
    for name in groups:
        try:
            yield name, LaneKeys(stream, name.decode())
        except UnicodeDecodeError:
            # The group of another program.
            continue
