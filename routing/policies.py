"""Which consumer a ticket goes to when it has none. A policy only ranks; the leader decides who has room."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from enum import Enum
from hashlib import blake2b
from itertools import count
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """What a policy may know of a consumer."""

    @property
    def name(self) -> str: ...

    @property
    def load(self) -> float:
        """Messages in flight for each slot of its pool."""
        ...


C = TypeVar("C", bound=Candidate)
Policy = Callable[[str, Sequence[C]], C]


class PolicyName(Enum):
    """The values of ``bridge_policy``."""

    LEAST_LOADED = "least_loaded"
    RENDEZVOUS = "rendezvous"
    ROUND_ROBIN = "round_robin"
    RANDOM = "random"


def least_loaded(_ticket: str, candidates: Sequence[C]) -> C:
    """The one with the fewest messages in flight for each slot of its pool."""
    return min(candidates, key=lambda c: c.load)


def rendezvous(ticket: str, candidates: Sequence[C]) -> C:
    """Highest random weight (Thaler and Ravishankar, 1998): a ticket keeps its consumer while that one lives, and of
    the tickets only those of a consumer that left move.
    """
    return max(candidates, key=lambda c: (blake2b(f"{c.name}\n{ticket}".encode(), digest_size=8).digest(), c.name))


def policy(name: PolicyName, rng: random.Random | None = None) -> Policy[C]:
    """The function for a policy's name. ``rng`` is for tests."""
    if name is PolicyName.LEAST_LOADED:
        return least_loaded
    if name is PolicyName.RENDEZVOUS:
        return rendezvous
    if name is PolicyName.ROUND_ROBIN:
        turn = count()
        return lambda _ticket, candidates: candidates[next(turn) % len(candidates)]
    dice = rng or random.Random()
    return lambda _ticket, candidates: dice.choice(candidates)
