"""Where to cut a stream into ranges of about equally many entries, without reading it.

A stream has no index by position, but the server finds the next entries after any id quickly. So the range of ids is
probed at a few places, and each answer is a few neighbouring entries. They show how dense the entries are there. They
also show that no entry is between them, or between the probed id and the first of them. Where an interval must have
many entries, it is probed at more places. Estimates decide how even the parts are, never which entries they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from bridge.spark.wire.entry_ids import EntryId

#: Entries in the answer to one probe.
SAMPLE = 4
#: Probes of the first round, for each wanted part.
_PER_PART = 8
#: An interval with too many entries is probed at this many places more, in at most this many rounds. That finds a burst
#: of one second in a year.
_FINER = 8
_ROUNDS = 16

#: For each id: the entries from that id on, up to ``SAMPLE`` of them.
Probe = Callable[[Sequence[EntryId]], Sequence[Sequence[EntryId]]]


def cuts(probe: Probe, first: EntryId, last: EntryId, parts: int) -> list[EntryId]:
    """The entries at which parts begin, in order, beginning with ``first``. ``first`` and ``last`` must be entries.

    There are at most ``parts``, and fewer where there are too few entries.
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
    """What the probes have shown so far."""

    def __init__(self, probe: Probe, first: EntryId, last: EntryId) -> None:
        self._probe = probe
        self._last = last
        self._asked: set[EntryId] = set()
        #: Entry → an id from which on no other entry comes before it, and entries per ms after it.
        self._found: dict[EntryId, tuple[EntryId, float]] = {}
        #: Largest sequence seen. A millisecond is assumed to have room for this many.
        self._most = max(first.seq, last.seq) if first.ms == last.ms else 0
        self._ask([first])

    def x(self, id_: EntryId) -> float:
        """The place of an id on a line: its time, and within a millisecond its sequence."""
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
