"""Each check finds exactly the violation that it names, in forged evidence, without processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos import checks
from tests.chaos.checks import (
    Effect,
    Evidence,
    Execution,
    Freeze,
    Letter,
    Message,
    Notes,
    Rest,
    Violation,
    check_all,
    check_snapshot,
    check_states,
)
from tests.chaos.recording import folded

MS = 1_000_000
WALL = 1_700_000_000_000 * MS


def message(n: int, *, dies: bool = False) -> Message:
    return Message(f"{n}-0", "T", n, dies, WALL)


def execution(n: int, start: int, end: int | None, fence: int, *, attempt: int = 1, **more: Any) -> Execution:
    """Of ticket T, message n; times in ms."""
    made = Execution(
        ticket="T",
        message_id=f"{n}-0",
        n=n,
        attempt=attempt,
        fence=fence,
        consumer="w1",
        pool="prefork",
        pid=1,
        parent=0,
        start_ns=start * MS,
        wall_ns=WALL + start * MS,
        seen_ns=(start if end is None else end) * MS,
        end_ns=None if end is None else end * MS,
        outcome="" if end is None else "done",
    )
    return replace(made, **more)


def effect(n: int, at: int, fence: int) -> Effect:
    return Effect("T", f"{n}-0", n, fence, WALL // MS + at)


def letter(n: int, at: int, attempts: int = 2) -> Letter:
    return Letter(f"{n}-0", "T", attempts, "gave up", WALL // MS + at)


def truth() -> Evidence:
    """Message 0 succeeds; 1 fails twice and is dead; 2 is cut off by a kill and comes again; 3 succeeds."""
    return Evidence(
        messages=[message(0), message(1, dies=True), message(2), message(3)],
        executions=[
            execution(0, 0, 10, 100),
            execution(1, 20, 30, 200, outcome="raised"),
            execution(1, 40, 50, 300, attempt=2, outcome="raised", pid=2),
            execution(2, 60, None, 400, seen_ns=65 * MS, pid=2),
            execution(2, 70, 80, 500, attempt=2),
            execution(3, 90, 95, 501),
        ],
        effects=[effect(0, 11, 100), effect(2, 81, 500), effect(3, 96, 501)],
        letters=[letter(1, 51)],
        rest=Rest(done=3, dead=1),
        notes=Notes(kills=1),
        max_attempts=2,
    )


def test_evidence_of_a_true_run_has_no_violation() -> None:
    assert check_all(truth()) == []


def edit(rows: Sequence[Any], index: int, **changes: Any) -> list[Any]:
    found = list(rows)
    found[index] = replace(found[index], **changes)
    return found


FORGERIES: dict[str, tuple[str, Callable[[Evidence], object]]] = {
    "an effect is missing": (checks.LOST, lambda e: vars(e).update(effects=e.effects[:-1], rest=Rest(done=2, dead=1))),
    "two effects are swapped": (
        checks.REORDERED,
        lambda e: vars(e).update(effects=[e.effects[1], e.effects[0], e.effects[2]]),
    ),
    "an effect is there twice": (checks.APPLIED_TWICE, lambda e: vars(e).update(effects=[*e.effects, e.effects[-1]])),
    "a smaller fence was applied later": (
        checks.STALE_EFFECT,
        lambda e: vars(e).update(effects=edit(e.effects, 2, fence=450)),
    ),
    "an effect has no execution": (
        checks.UNEXPLAINED,
        lambda e: vars(e).update(effects=edit(e.effects, 2, fence=502)),
    ),
    "an effect of a message that nobody pushed": (
        checks.UNEXPLAINED,
        lambda e: vars(e).update(effects=[*e.effects, effect(9, 99, 600)]),
    ),
    "one begins before another one ends": (
        checks.OVERLAP,
        lambda e: vars(e).update(executions=edit(e.executions, 5, start_ns=79 * MS)),
    ),
    "one begins while a cut-off one is still seen alive": (
        checks.OVERLAP,
        lambda e: vars(e).update(executions=edit(e.executions, 3, seen_ns=71 * MS)),
    ),
    "one runs twice under one fence, one after the other": (
        checks.FENCE,
        lambda e: vars(e).update(executions=[*e.executions, execution(3, 97, 98, 501)]),
    ),
    "a fence falls": (checks.FENCE, lambda e: vars(e).update(executions=edit(e.executions, 4, fence=350))),
    "a message begins before the effects of the one before it": (
        checks.TOO_EARLY,
        lambda e: vars(e).update(effects=edit(e.effects, 1, at_ms=WALL // MS + 91)),
    ),
    "a message begins although the one before it never ended": (
        checks.TOO_EARLY,
        lambda e: vars(e).update(effects=[e.effects[0], e.effects[2]]),
    ),
    "an attempt runs after a later one": (
        checks.ATTEMPTS,
        lambda e: vars(e).update(executions=edit(e.executions, 3, attempt=3)),
    ),
    "an attempt is charged for nothing": (
        checks.ATTEMPTS,
        lambda e: vars(e).update(executions=edit(e.executions, 4, attempt=4)),
    ),
    "one is dead that could have succeeded": (
        checks.DEAD,
        lambda e: vars(e).update(messages=edit(e.messages, 1, dies=False)),
    ),
    "one is dead too early": (checks.DEAD, lambda e: vars(e).update(letters=[letter(1, 51, attempts=1)])),
    "one is dead and its attempts never ran": (
        checks.DEAD,
        lambda e: vars(e).update(executions=[*e.executions[:1], *e.executions[3:]], notes=Notes(kills=1)),
    ),
    "one is dead twice": (
        checks.DEAD,
        lambda e: vars(e).update(letters=[*e.letters, letter(1, 52)], rest=Rest(done=3, dead=2)),
    ),
    "one is dead and succeeded": (
        checks.DEAD,
        lambda e: vars(e).update(letters=[*e.letters, letter(0, 12)], rest=Rest(done=3, dead=2)),
    ),
    "an outcome is left": (checks.LEFT_OVER, lambda e: vars(e).update(rest=Rest(done=3, dead=1, outcomes=1))),
    "a key without an owner is left": (
        checks.LEFT_OVER,
        lambda e: vars(e).update(rest=Rest(done=3, dead=1, ownerless=["x"])),
    ),
    "a delayed message begins a moment before it is due": (
        checks.EARLY,
        lambda e: vars(e).update(messages=edit(e.messages, 3, due_ms=WALL // MS + 91)),
    ),
    "a message that is held begins before it is due": (
        checks.EARLY,
        lambda e: vars(e).update(messages=edit(e.messages, 3, due_ms=WALL // MS + 91 + 50, hold=True)),
    ),
    "a delayed message is left": (checks.LEFT_OVER, lambda e: vars(e).update(rest=Rest(done=3, dead=1, delayed=1))),
    "the lane counts wrongly": (checks.COUNTS, lambda e: vars(e).update(rest=Rest(done=4, dead=1))),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_evidence_is_found_out(name: str) -> None:
    invariant, forge = FORGERIES[name]
    evidence = truth()
    forge(evidence)
    assert invariant in {violation.invariant for violation in check_all(evidence)}


def test_a_message_that_is_due_when_it_begins_is_not_early() -> None:
    evidence = truth()
    evidence.messages = edit(evidence.messages, 3, due_ms=WALL // MS + 90)
    evidence.messages = edit(evidence.messages, 2, due_ms=WALL // MS + 60 + 50, hold=True)
    assert check_all(evidence) == []


def frozen(*, applied: bool) -> Evidence:
    """Fence 100 is frozen in the middle; fence 200 runs elsewhere and succeeds; then 100 wakes up and ends."""
    return Evidence(
        messages=[message(0)],
        executions=[execution(0, 0, 100, 100, pid=7), execution(0, 60, 70, 200)],
        effects=[effect(0, 101, 100) if applied else effect(0, 71, 200)],
        letters=[],
        rest=Rest(done=1),
        notes=Notes(freezes=[Freeze(7, 10 * MS, 90 * MS)]),
        max_attempts=2,
    )


def test_an_execution_that_was_frozen_may_overrun_without_effects() -> None:
    assert check_all(frozen(applied=False)) == []


def test_the_effects_of_an_execution_that_was_frozen_past_its_lease_must_not_be_there() -> None:
    assert {violation.invariant for violation in check_all(frozen(applied=True))} == {checks.STALE_EFFECT}


def test_an_execution_in_another_process_than_the_frozen_one_is_not_excused() -> None:
    evidence = frozen(applied=False)
    evidence.notes.freezes[:] = [Freeze(8, 10 * MS, 90 * MS)]
    assert checks.OVERLAP in {violation.invariant for violation in check_all(evidence)}


@pytest.mark.parametrize(("pool", "excused"), [("threads", True), ("prefork", False)])
def test_only_a_pool_that_cannot_kill_may_overrun_an_outage(pool: str, *, excused: bool) -> None:
    evidence = frozen(applied=False)
    evidence.notes = Notes(outages=[(10 * MS, 90 * MS)])
    evidence.executions = edit(evidence.executions, 0, pool=pool)
    assert (check_all(evidence) == []) is excused


def test_a_lossy_crash_excuses_what_was_pushed_just_before_it_and_no_more() -> None:
    evidence = truth()
    evidence.messages = [*evidence.messages, message(4)]
    evidence.notes.lossy_crashes = [(0, WALL + 1000 * MS)]
    assert check_all(evidence) == []
    evidence.notes.lossy_crashes = [(0, WALL + 60_000 * MS)]
    assert checks.LOST in {violation.invariant for violation in check_all(evidence)}


def test_a_look_at_a_lane_at_work_finds_what_was_acknowledged_without_an_outcome() -> None:
    read = [("1-0", "A"), ("2-0", "A"), ("3-0", "B"), ("4-0", "B")]
    assert check_snapshot(read, pending=["4-0"], succeeded=["1-0", "2-0"], dead=["3-0"]) == []
    [found] = check_snapshot(read, pending=["4-0"], succeeded=["1-0"], dead=["3-0"])
    assert (found.invariant, found.message_id) == (checks.ACKNOWLEDGED_EARLY, "2-0")


def test_a_violation_is_shown_on_one_line() -> None:
    assert str(Violation(checks.LOST, "T1", "5-0", "why")) == "lost: T1 5-0: why"
    assert str(Violation(checks.STUCK, "", "", "why")) == "stuck: why"


def kept(n: int, ticket: str = "T") -> checks.Effect:
    return checks.Effect(ticket, f"{n}-0", n, 100 + n, n, n, kept=True)


def state_of(*effects: checks.Effect) -> dict[str, object]:
    state: dict[str, object] = {}
    for one in effects:
        folded(state, one.message_id, one.fence)
    return state


def test_a_state_is_exactly_the_fold_of_the_messages_that_succeeded() -> None:
    first, second, third = kept(0), kept(1), kept(2)
    plain = replace(kept(3), kept=False)
    effects = [first, kept(7, "U"), second, plain, third]
    states = {"T": state_of(first, second, third), "U": state_of(kept(7))}
    assert check_states(effects, states) == []
    for wrong in (
        state_of(first, second),  # one is missing
        state_of(first, second, second, third),  # one was saved twice
        state_of(second, first, third),  # not in their order
        state_of(first, second, third, plain),
        {**state_of(first, second, third), "last": {"id": third.message_id, "fence": third.fence - 1}},
        {},
    ):
        [violation] = check_states(effects, {**states, "T": wrong})
        assert (violation.invariant, violation.ticket) == (checks.STATE, "T")
    [violation] = check_states(effects, {**states, "V": state_of(first)})
    assert violation.ticket == "V"
