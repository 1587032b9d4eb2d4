"""Where to cut a stream into ranges of about equally many entries, without reading it.

A stream has no index by position, but it answers quickly which entries come next after any id. So the range of ids is
probed at a few places; each answer is a few neighbours. They tell how dense the entries are there, and that nothing is
between them, nor between the place that was asked for and the first of them. Where many must be, more places are asked
for. Estimates decide how even the parts are, never what is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from bridge.spark.wire.entry_ids import EntryId

#: Entries that an answer to one probe has.
SAMPLE = 4
#: Probes of the first round for each part that is wanted.
_PER_PART = 8
#: Into how many parts an interval is cut that holds too much, and how often: a burst of a second in a year is found.
_FINER = 8
_ROUNDS = 16

#: Answers for each of some ids: that entry or the next ones, up to ``SAMPLE`` of them.
Probe = Callable[[Sequence[EntryId]], Sequence[Sequence[EntryId]]]


def cuts(probe: Probe, first: EntryId, last: EntryId, parts: int) -> list[EntryId]:
    """The entries at which parts begin, in order; the first is ``first``, which must be an entry, as must ``last``.

    At most ``parts`` of them, fewer where there are too few entries to tell apart.
    """
    if parts < 2 or first >= last:
        return [first]
    sampler = _Sampler(probe, first, last)
    sampler.look(_between(sampler.x(first), sampler.x(last), parts * _PER_PART))
    for _ in range(_ROUNDS):
        places = sampler.weights()
        total = sum(weight for *_, weight in places)
        crowded = [place for place in places if place[2] > total / (2 * parts)]
        if not crowded or not sampler.look(x for start, end, _ in crowded for x in _between(start, end, _FINER)):
            break
    return sampler.cut(parts)


class _Sampler:
    """What was found out so far."""

    def __init__(self, probe: Probe, first: EntryId, last: EntryId) -> None:
        self._probe = probe
        self._last = last
        self._asked: set[EntryId] = set()
        #: Entry → the smallest id known to have nothing between it and the entry, and entries per ms from it on.
        self._found: dict[EntryId, tuple[EntryId, float]] = {}
        #: Largest sequence seen: a millisecond is taken to have room for so many.
        self._most = max(first.seq, last.seq) if first.ms == last.ms else 0
        self._ask([first])

    def x(self, id_: EntryId) -> float:
        """The place of an id: its time, and within a millisecond its sequence."""
        return id_.ms + min(id_.seq / (self._most + 1), 1.0)

    def look(self, places: Iterable[float]) -> bool:
        """Probe at these places. Returns whether any of them was new."""
        ids = [EntryId(int(x), round((x - int(x)) * (self._most + 1))) for x in places]
        new = [id_ for id_ in dict.fromkeys(ids) if id_ not in self._asked and id_ < self._last]
        self._ask(new)
        return bool(new)

    def _ask(self, ids: Sequence[EntryId]) -> None:
        self._asked.update(ids)
        for asked, entries in zip(ids, self._probe(ids), strict=True):
            self._most = max(self._most, *(entry.seq for entry in entries))
            gaps = sorted(self.x(after) - self.x(before) for before, after in pairwise(entries))
            density = 1 / max(gaps[len(gaps) // 2], 1 / (self._most + 1)) if gaps else 0.0
            for empty_from, entry in zip([asked, *(before.after() for before in entries)], entries, strict=False):
                if entry <= self._last:
                    known = self._found.get(entry, (empty_from, 0.0))
                    self._found[entry] = (min(empty_from, known[0]), max(density, known[1]))

    def weights(self) -> list[tuple[float, float, float]]:
        """Begin, end and estimated entries of each interval between two found ones, without the gap at its end."""
        ordered = sorted(self._found)
        places = []
        for entry, after in pairwise([*ordered, self._last.after()]):
            start, end = self.x(entry), self.x(self._found[after][0] if after in self._found else self._last)
            places.append((start, end, self._found[entry][1] * max(end - start, 0.0)))
        return places

    def cut(self, parts: int) -> list[EntryId]:
        ordered = sorted(self._found)
        weights = [weight for *_, weight in self.weights()]
        share = sum(weights) / parts
        chosen, held = [ordered[0]], 0.0
        for entry, weight in zip(ordered[1:], weights[:-1], strict=True):
            held += weight
            if held >= share * len(chosen) and len(chosen) < parts:
                chosen.append(entry)
        return chosen


def _between(start: float, end: float, parts: int) -> list[float]:
    step = (end - start) / parts
    return [start + step * number for number in range(1, parts)]
