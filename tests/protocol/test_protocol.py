"""The protocol in all interleavings up to a bound; and each of its guards is needed for a promise.

A bigger bound takes longer: `python -m tests.protocol --faults 3`.
"""

from __future__ import annotations

import pytest

from bridge.routing.states import EDGES
from tests.protocol import masters
from tests.protocol.explore import Exploration, Found
from tests.protocol.guards import SECOND_LINES, Guard
from tests.protocol.scripts import run
from tests.protocol.world import MOVES, Change, Script, Setup

#: name -> what is explored in full.
BOUNDS = {
    "two faults": Setup(faults=2),
    "plain tasks, one fault": Setup(faults=1, effects=False),
    "workers that are asked to stop, one fault": Setup(faults=1, leaving=True),
    "runs of three messages, one fault": Setup(messages=(3,), faults=1, run_max=3),
    "workers that are asked to stop, one message, two faults": Setup(messages=(1,), leaving=True),
    "queues that are emptied, one message, two faults": Setup(messages=(1,), recalling=True),
    "a server whose clock is set, one fault": Setup(faults=1, stepping=True),
    "a server whose clock is set, one message, two faults": Setup(messages=(1,), stepping=True),
    "two tickets, one fault": Setup(messages=(1, 1), faults=1),
}
#: The largest, which are not explored on every change.
LARGE = {
    "two faults",
    "runs of three messages, one fault",
    "a server whose clock is set, one message, two faults",
    "two tickets, one fault",
}
#: The setup in which dropping a guard breaks a promise: with effects, one message, one fault.
SMALL = Setup(messages=(1,), faults=1, promises_only=True)
#: Guard -> the smallest setup for it, if it is another one.
SETUPS = {
    **dict.fromkeys(
        (Guard.TERM_READ, Guard.FENCES_GROW, Guard.REBUILD, Guard.WRITTEN_FIRST, Guard.RUN_STOPS),
        SMALL._replace(messages=(2,)),
    ),
    Guard.OUTCOME_FENCE: SMALL._replace(effects=False),
    Guard.QUEUE_KNOWN: SMALL._replace(faults=2, leaving=True),
    Guard.TERM_REROUTE: SMALL._replace(faults=2),
    Guard.RECALL_OWN: SMALL._replace(faults=2, recalling=True),
    Guard.RECALL_SINGLE: SMALL._replace(faults=2, recalling=True),
    Guard.CLOCKS_AGREE: SMALL._replace(stepping=True),
    Guard.NOTE_FIRST: SMALL._replace(leaving=True),
}
ESSENTIAL = [guard for guard in Guard if guard not in SECOND_LINES]
#: Edges that no hand-over takes: operators' orders, messages that cannot be handled, and messages that are not due.
NOT_HERE = {"refuse", "give up retry", "park", "release", "replay"}
NOT_HERE |= {"delay", "due", "hold", "cancel", "cancel held", "cancel first held"}


def in_words(found: Found) -> str:
    by_faults = ", ".join(f"{n:,} with {faults} faults" for faults, n in enumerate(found.by_faults))
    return (
        f"{found.states:,} states ({by_faults}), {found.steps:,} steps, {found.ends:,} good ends, {found.seconds:.1f} s"
    )


@pytest.mark.timeout(600)  # of a machine that does ten other things
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LARGE else name for name in BOUNDS]
)
def test_every_promise_holds_in_every_state_and_a_good_end_is_within_reach_of_each(name: str) -> None:
    found = Exploration(BOUNDS[name]).run()
    print(f"{name}: {in_words(found)}")
    assert not found.broken, "\n".join(found.trace)
    assert found.complete
    assert found.ends
    assert len(found.by_faults) == BOUNDS[name].faults + 1


@pytest.mark.parametrize("guard", ESSENTIAL, ids=lambda guard: guard.value)
def test_without_the_guard_a_promise_breaks(guard: Guard) -> None:
    found = Exploration(SETUPS.get(guard, SMALL), {guard}, most=60_000, ends=False).run()
    print("\n".join(found.trace))
    assert found.broken, f"nobody misses '{guard.value}' in {in_words(found)}"


@pytest.mark.parametrize("guard", SECOND_LINES, ids=lambda guard: guard.value)
def test_without_a_second_line_the_others_hold(guard: Guard) -> None:
    found = Exploration(Setup(faults=1, promises_only=True), {guard}).run()
    assert not found.broken, "\n".join(found.trace)


@pytest.mark.parametrize("guard", [g for g, other in SECOND_LINES.items() if other], ids=lambda guard: guard.value)
def test_a_second_line_holds_where_the_first_is_missing(guard: Guard) -> None:
    first = SECOND_LINES[guard]
    assert first is not None
    found = Exploration(SETUPS.get(guard, SMALL), {guard, first}, most=60_000, ends=False).run()
    assert found.broken


@pytest.mark.parametrize(
    ("guard", "invariant"),
    [
        (Guard.TERM_ADVANCE, "I8"),
        (Guard.TERM_READ, "I8"),
        (Guard.TERM_REROUTE, "I8"),
        (Guard.LEASE_OVER, "I5"),
        (Guard.FENCES_GROW, "I4"),
    ],
    ids=lambda value: value.value if isinstance(value, Guard) else value,
)
def test_the_invariant_itself_is_checked(guard: Guard, invariant: str) -> None:
    found = Exploration(Setup(), {guard}, most=120_000, ends=False).run()
    assert found.broken.startswith(invariant)


def test_the_model_walks_every_edge_of_the_table_that_a_hand_over_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a model that tells which edges its scripts took
    walked: set[str] = set()
    plans = masters.plans

    def watched(*args: object) -> object:
        for script in plans(*args):  # type: ignore[arg-type]
            walked.update(_edges(script))
            yield script

    monkeypatch.setattr(masters, "plans", watched)
    for setup in (Setup(faults=1, attempts_max=1), Setup(messages=(1,), leaving=True, workers=1, masters=1)):
        Exploration(setup, ends=False).run()
    # Then they are those of the product's table
    assert walked == set(EDGES) - NOT_HERE


def _edges(script: Script) -> set[str]:
    changes: tuple[Change, ...] = script.changes
    return {"read"} if script.kind == "read" else {edge for change in changes for edge, _ in change.moves}


def test_another_table_makes_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a table in which a message that failed simply waits
    monkeypatch.setitem(MOVES, "fail", MOVES["give back"])
    run.cache_clear()
    # Then the model finds that its record, which counts its attempts, says something else
    found = Exploration(Setup(faults=1), ends=False).run()
    assert found.broken.startswith("I1")
