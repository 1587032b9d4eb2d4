"""Policies: which consumer gets a ticket that has none. The leader decides first which consumers have room."""

from __future__ import annotations

import random
import struct
from bisect import bisect
from collections.abc import Callable, Container, Iterable, Sequence
from enum import Enum
from functools import lru_cache
from hashlib import blake2b, shake_128
from itertools import count
from typing import Protocol, TypeVar

#: Places of each consumer on the ring: shares differ by about 3 % (one standard deviation).
POINTS = 1024
#: The bits of a place that hold the number of the consumer.
NUMBER = 0xFFFF


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
    """A hash ring: each consumer has `POINTS` places on it, and a ticket belongs to the first one after its own place
    (consistent hashing, Karger et al., 1997).

    It keeps the promises of rendezvous hashing. A ticket keeps its consumer while that consumer lives. When a consumer
    leaves, only its tickets move. A new consumer takes only its share. A lookup costs the same for any number of
    consumers.
    """

    def __init__(self) -> None:
        #: The places, in order; the last 16 bits are the number of the consumer.
        self._places: list[int] = []
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}

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
        places = self._places
        digest = blake2b(ticket.encode(), digest_size=8).digest()
        at = bisect(places, int.from_bytes(digest, "big"))
        for i in range(at - len(places), at):
            name = self._names[places[i] & NUMBER]
            if name in among:
                return name
        raise ValueError("no consumer on the ring may have the ticket")


@lru_cache(maxsize=8)
def _ring_of(names: frozenset[str]) -> Ring:
    ring = Ring()
    ring.update(names)
    return ring


def rendezvous(ticket: str, candidates: Sequence[C]) -> C:
    """The consumer by hashing: a ticket keeps its consumer while that one lives, and only its tickets move when it
    leaves.
    """
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
