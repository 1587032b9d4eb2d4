"""Policies: which consumer gets a ticket that has none. The leader decides first which consumers have room."""

from __future__ import annotations

import random
import struct
from bisect import bisect
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from enum import Enum
from functools import lru_cache
from hashlib import blake2b, shake_128
from itertools import count
from typing import Protocol, TypeVar

#: Places of each consumer on the ring.
POINTS = 1024
#: Places of each ticket on the ring. Shares of all possible tickets differ by 1.2 % (one standard deviation). With one
#: place for each ticket they would differ by 3 %.
PLACES_OF_TICKET = 4
#: Any salt keeps all promises. This one of 60 that were tried is the best for the usual names of 16 workers and of
#: 10,000 tickets: 90 % of these pairs have all shares within a tenth of even. 80 % have it with others;
#: if each ticket chose by a fair die, 85 % would.
SALT = b"2"
#: The bits of a place that hold the number of the consumer.
NUMBER = 0xFFFF
#: The ring ends here, and begins again.
ROUND = 2**64
#: A consumer may stand for the whole ring up to this multiple of the consumers that may have a ticket. Beyond it, they
#: get a ring of their own: a search would pass too many others.
OTHERS = 8
#: Most rings of a lane for sets of consumers that are a small part of all.
PARTS = 16

_tickets_places = struct.Struct(f">{PLACES_OF_TICKET}Q").unpack


class Candidate(Protocol):
    """The facts about a consumer that a policy may use."""

    @property
    def name(self) -> str: ...


C = TypeVar("C", bound=Candidate)
Policy = Callable[[str, Sequence[C]], C]


class PolicyName(Enum):
    """The values of ``bridge_policy``."""

    LEAST_LOADED = "least_loaded"
    RENDEZVOUS = "rendezvous"
    ROUND_ROBIN = "round_robin"
    RANDOM = "random"


class Ring:
    """Rendezvous hashing by a hash ring: each consumer has `POINTS` places on it, each ticket has `PLACES_OF_TICKET`. A
    ticket belongs to the consumer with the smallest distance from one of the ticket's places to the next place of the
    consumer (multi-probe consistent hashing, Appleton and O'Reilly, 2015).

    The distance depends on the ticket and that consumer alone. So each ticket has an order of all consumers: it belongs
    to the first one in that order that may have it. It keeps its consumer while that one lives. When a consumer leaves,
    only its tickets move. A new consumer takes only its share. The cost of a choice hardly grows with the number of
    consumers.
    """

    def __init__(self) -> None:
        #: The places, in order; the last 16 bits are the number of the consumer.
        self._places: list[int] = []
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def __len__(self) -> int:
        """How many consumers are on the ring."""
        return len(self._numbers)

    def update(self, names: Iterable[str]) -> None:
        """Sets the consumers on the ring. Costs O(all places) when they change."""
        wanted = set(names)
        if wanted == self._numbers.keys():
            return
        gone = {self._numbers.pop(name) for name in self._numbers.keys() - wanted}
        for number in gone:
            del self._names[number]
        if gone:
            self._places = [place for place in self._places if place & NUMBER not in gone]
        free = (number for number in count() if number not in self._names)
        for name in sorted(wanted - self._numbers.keys()):
            number = next(free)
            self._numbers[name], self._names[number] = number, name
            places = struct.unpack(f">{POINTS}Q", shake_128(name.encode()).digest(8 * POINTS))
            self._places += [place & ~NUMBER | number for place in places]
        self._places.sort()

    def owner(self, ticket: str, among: Container[str]) -> str:
        """The name in ``among`` to which ``ticket`` belongs. At least one of them must be on the ring."""
        places, names = self._places, self._names
        nearest, found = ROUND, ""
        for start in _tickets_places(blake2b(ticket.encode(), digest_size=8 * PLACES_OF_TICKET, salt=SALT).digest()):
            at = bisect(places, start)
            for i in range(at - len(places), at):
                place = places[i]
                distance = (place - start) % ROUND
                if distance >= nearest:
                    break
                name = names[place & NUMBER]
                if name in among:
                    nearest, found = distance, name
                    break
        if not found:
            raise ValueError("no consumer on the ring may have the ticket")
        return found


class Rings:
    """The ring of all consumers of a lane, and rings of sets of them that are a small part of all."""

    def __init__(self) -> None:
        self._all = Ring()
        self._parts: dict[frozenset[str], Ring] = {}

    def update(self, names: Iterable[str]) -> None:
        """Sets the consumers of the lane."""
        self._all.update(names)

    def ring_for(self, among: Collection[str]) -> Ring:
        """A ring on which to search for owners among these. All of them give the same owners."""
        if len(among) * OTHERS >= len(self._all):
            return self._all
        names = frozenset(among)
        ring = self._parts.pop(names, None)
        if ring is None:
            ring = Ring()
            ring.update(names)
            if len(self._parts) >= PARTS:
                # The one that was used least recently.
                del self._parts[next(iter(self._parts))]
        self._parts[names] = ring
        return ring


@lru_cache(maxsize=8)
def _ring_of(names: frozenset[str]) -> Ring:
    ring = Ring()
    ring.update(names)
    return ring


def rendezvous(ticket: str, candidates: Sequence[C]) -> C:
    """The first of the candidates in the ticket's own order of all consumers (`Ring`)."""
    named = {candidate.name: candidate for candidate in candidates}
    return named[_ring_of(frozenset(named)).owner(ticket, named)]


def policy(name: PolicyName, rng: random.Random | None = None) -> Policy[C]:
    """The function for a policy's name. `PolicyName.LEAST_LOADED` has none: the planner keeps a heap of loads instead,
    because a function would look at all consumers. ``rng`` is for tests.
    """
    if name is PolicyName.RENDEZVOUS:
        return rendezvous
    if name is PolicyName.ROUND_ROBIN:
        turn = count()
        return lambda _ticket, candidates: candidates[next(turn) % len(candidates)]
    if name is PolicyName.RANDOM:
        dice = rng or random.Random()
        return lambda _ticket, candidates: dice.choice(candidates)
    raise ValueError(f"{name} has no function")
