"""What the policy `rendezvous` costs for each choice, and how even its shares are, beside plain rendezvous hashing (a
hash for each ticket and worker, the largest wins).

``python -m benchmarks.choices``. Processor time of one thread; both in each round, in turn; the median of five rounds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from statistics import median

import click

from bridge.routing.policies import Ring

ROUNDS = 5
TICKETS = [f"INC{i:07d}" for i in range(10_000)]
#: Choices that are timed in one round.
TIMED = 1000
#: Enough tickets that chance has little part in the shares.
MANY = [f"T{i}" for i in range(200_000)]

Choice = Callable[[str], str]


def ring(names: list[str]) -> Choice:
    """The policy."""
    made, among = Ring(), set(names)
    made.update(names)
    return lambda ticket: made.owner(ticket, among)


def plain(names: list[str]) -> Choice:
    """Rendezvous hashing as it is in textbooks, with a cheap mixture of two hashes that are made once."""
    hashes = [(_hash(name), name) for name in names]

    def choose(ticket: str) -> str:
        own = _hash(ticket)
        return max([((own ^ each) * 0x9E3779B97F4A7C15 >> 17 & 0xFFFFFFFF, name) for each, name in hashes])[1]

    return choose


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _us(choose: Choice) -> float:
    started = time.thread_time()
    for ticket in TICKETS[:TIMED]:
        choose(ticket)
    return 1e6 * (time.thread_time() - started) / TIMED


def _farthest(choose: Choice, tickets: list[str], workers: int) -> float:
    found = Counter(map(choose, tickets))
    return max(abs(count * workers / len(tickets) - 1) for count in found.values())


@click.command()
def main() -> None:
    """Prints both, for 16 and 500 workers."""
    for workers in (16, 500):
        names = [f"w{i}@host" for i in range(workers)]
        started = time.thread_time()
        ours = ring(names)
        built_ms = 1e3 * (time.thread_time() - started)
        peer = plain(names)
        rounds = [(_us(ours), _us(peer)) for _ in range(ROUNDS)]
        own_us, peer_us = (median(column) for column in zip(*rounds, strict=True))
        click.echo(
            f"{workers:4} workers: {own_us:6.2f} us a choice (plain {peer_us:.2f}: {peer_us / own_us:.1f} times), "
            f"ring made in {built_ms:.0f} ms"
        )
        if workers == 16:
            for tickets in (TICKETS, MANY):
                click.echo(
                    f"  farthest from even, {len(tickets):,} tickets: {_farthest(ours, tickets, workers):.1%} "
                    f"(plain {_farthest(peer, tickets, workers):.1%})"
                )


if __name__ == "__main__":
    main()
