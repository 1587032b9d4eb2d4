"""A short run over drawn messages, for the test and for ``python -m tests.chaos``."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.chaos.draw import (
    ACTIONS,
    EITHER,
    HTTP_ACTIONS,
    SHORT_MS,
    VARIED_MS,
    Cast,
    Load,
    keeps_states,
    script,
    spare,
)  # fmt: skip
from tests.chaos.result import Result
from tests.chaos.run import Plan, Run
from tests.chaos.subscriptions import KINDS, ONE, STATES, Subscription, addressed
from tests.chaos.versions import Producers, Versions, in_versions

#: Seconds between two faults, on average.
PACE_S = 1.0
TICKETS = 80


def short_run(
    folder: Path,
    seed: int,
    faults: int,
    cast: Cast,
    *,
    violent: bool,
    bundle_ms: float,
    pace_s: float = PACE_S,
    only: Sequence[str] = (),
    first: Sequence[str] = (),
    culprits: float = 0.0,
    subscriptions: Sequence[Subscription] = ONE,
    versions: Versions = "one",
    repartitions: bool = False,
    http: bool = True,
    say: Callable[[str], None] = print,
    **plan: Any,
) -> Result:
    """``faults`` faults drawn by ``seed``, of the actions ``only`` if some are named; more goes to the `Plan`.

    ``first``: the kinds that it begins with.
    """
    works_ms = SHORT_MS if bundle_ms else VARIED_MS
    load = Load(seed, TICKETS, violent=violent, culprits=culprits, works_ms=works_ms)
    producers = Producers(seed, versions)

    def source(counts: dict[str, int]) -> tuple[str, str, dict[str, Any], bool]:
        ticket = load.ticket()
        n = counts.get(ticket, 0)
        task, payload, dies = load.message(ticket, n)
        kind = random.Random(f"kind {seed}/{ticket}/{n}").choice(KINDS)
        payload = addressed(subscriptions, payload, kind)
        if version := producers.version_of(ticket, n):
            payload["v"] = version
            # Each version has a default task of its own.
            task = task if task in ("chaos.limited", EITHER) else ""
        return ticket, task, payload, dies

    actions = only or [name for name in ACTIONS if http or name not in HTTP_ACTIONS]
    steps = script(seed, spare(faults), pace_s, actions, first)
    made = Plan(
        folder,
        cast,
        steps,
        source,
        faults=faults,
        bundle_ms=bundle_ms,
        culprits=culprits > 0,
        subscriptions=in_versions(subscriptions, versions, seed),
        producers=producers if versions == "deploy" else None,
        repartitions=repartitions,
        http=http,
        schedule=True,
        **plan,
    )
    made = replace(made, env={STATES: str(int(keeps_states(seed))), **made.env})
    if culprits:
        # Where workers serve several lanes, a message that ends them needs more of them to be found out.
        made = replace(made, patience_s=2 * made.patience_s)
    with Run(made, say) as run:
        return run.go()


def in_words(result: Result) -> str:
    """The figures, for people."""
    waits = "; ".join(
        f"{w.how}: {len(w.seconds)} tickets, {w.at(0.5):.2f}/{w.at(1):.2f} s" for w in result.waits if w.seconds
    )
    return (
        f"{len(result.messages):,} messages, {len(result.executions):,} executions, {len(result.letters):,} dead in "
        f"{result.seconds:.1f} s\n"
        f"faults {result.faults}; {result.killed_by_tasks} workers killed by their tasks\n"
        f"nobody there for {result.missed}\n"
        f"stood still (median/max): {waits}\nwithout leader {[round(s, 2) for s in result.leaderless_s]}\n"
        f"{result.repartitions[0]} repartitions, their command killed {result.repartitions[1]} times\n"
        f"{result.ticks} messages of ticks, lies {result.told}\n"
        f"orders {result.answers}\ncounts {result.counts}"
    )
