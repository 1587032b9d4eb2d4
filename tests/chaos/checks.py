"""What must hold of a lane after any fault: pure functions from evidence to violations.

The evidence: what was pushed (`Message`), the ledger that the tasks wrote outside of the lane's server (`Execution`),
the effects in the lane's Redis, which are the truth of "success" (`Effect`), the dead letters (`Letter`), what the lane
has left at rest (`Rest`), and what was done to it (`Notes`). `check_all` runs every check.

An execution that never ended was cut off with its process. When exactly nobody knows; the last sign of life that it
left (`Execution.seen_ns`) is a time at which it certainly ran. So a missed overlap is possible to the length of a step,
a false one is not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from tests.chaos.facts import Effect, Evidence, Execution, Freeze, Letter, Message, Notes, Rest
from tests.chaos.recording import folded

__all__ = ["Effect", "Evidence", "Execution", "Freeze", "Letter", "Message", "Notes", "Rest", "Violation", "check_all"]

# -- what a violation is called: the promise or invariant of the design that is broken ---------------------------------

#: A message neither succeeded nor is it dead (promise 3, I1).
LOST = "lost"
#: Effects of a ticket are in another order than its messages (promise 1).
REORDERED = "reordered"
#: The effects of one message were applied more than once (promise 4).
APPLIED_TWICE = "applied twice"
#: Effects under a fence that was not the current one any more (promise 2, I4).
STALE_EFFECT = "stale effect"
#: Effects that no execution explains, or of a message that nobody pushed.
UNEXPLAINED = "unexplained"
#: Two executions of one ticket at the same time (promise 2, I2, I5).
OVERLAP = "overlap"
#: A later execution of a ticket has a smaller fence, or two have the same one (I4).
FENCE = "fence"
#: A message began before the success of the one before it was written (I2).
TOO_EARLY = "started too early"
#: A message left the pending list without an outcome (promise 3, I3).
ACKNOWLEDGED_EARLY = "acknowledged early"
#: Dead before its attempts were used up, or dead and succeeded (I1).
DEAD = "dead"
#: A message began that had expired before.
EXPIRED = "expired"
#: A message began before it was due.
EARLY = "early"
#: Attempts that were not counted as they ran.
ATTEMPTS = "attempts"
#: Something is left of a lane at rest (I1, I9).
LEFT_OVER = "left over"
#: The lane's counters say something else than its effects and dead letters.
COUNTS = "counts"
#: The state of a ticket is not what the messages that succeeded make of it, in their order (promise 4).
STATE = "state"
#: Nothing moved any more although there was work (liveness).
STUCK = "stuck"

#: Pools that cannot kill what runs when their lease is lost: there the fence is the guard.
UNKILLABLE = ("threads", "solo", "gevent")
#: In the reason of a message that its task gave up.
GAVE_UP = "Dead: "
#: The leader judges what is held by its own measure of the server's clock. How far that may be ahead, in ms.
HELD_AHEAD_MS = 50
#: How late after its thaw a process may come to write that it started something that it was allowed before, in ns.
THAW_NS = 5_000_000_000
#: How long before a server's crash a write may have been acknowledged and be lost (appendfsync everysec), in ns.
LOSABLE_NS = 3_000_000_000


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise. ``ticket`` and ``message_id`` are empty where it concerns none in particular."""

    invariant: str
    ticket: str
    message_id: str
    detail: str

    def __str__(self) -> str:
        where = " ".join(part for part in (self.ticket, self.message_id) if part)
        return f"{self.invariant}: {where + ': ' if where else ''}{self.detail}"


Row = TypeVar("Row", Execution, Effect)


def check_all(evidence: Evidence) -> list[Violation]:
    """Every check; an empty list when all promises were kept."""
    return [
        *check_effects(evidence),
        *check_effect_fences(evidence),
        *check_overlaps(evidence),
        *check_fences(evidence),
        *check_starts(evidence),
        *check_deaths(evidence),
        *check_rest(evidence),
    ]


def check_effects(evidence: Evidence) -> list[Violation]:
    """Per ticket: each message's effects once, in order, without a gap that no dead letter explains, and explained."""
    found = []
    known = {message.message_id: message for message in evidence.messages}
    dead = {letter.message_id for letter in evidence.letters}
    ran = {(execution.ticket, execution.fence) for execution in evidence.executions if execution.outcome == "done"}
    times = Counter(effect.message_id for effect in evidence.effects)
    for effect in evidence.effects:
        where = (effect.ticket, effect.message_id)
        message = known.get(effect.message_id)
        if message is None or (message.ticket, message.n) != (effect.ticket, effect.n):
            found.append(Violation(UNEXPLAINED, *where, f"nobody pushed it as number {effect.n} of this ticket"))
        elif (effect.ticket, effect.fence) not in ran:
            found.append(Violation(UNEXPLAINED, *where, f"no execution with fence {effect.fence} came to its end"))
    for message in evidence.messages:
        applied = times[message.message_id]
        where = (message.ticket, message.message_id)
        if applied > 1:
            found.append(Violation(APPLIED_TWICE, *where, f"number {message.n}: {applied} times"))
        if applied and message.message_id in dead:
            found.append(Violation(DEAD, *where, f"number {message.n} succeeded and is a dead letter"))
        if not applied and message.message_id not in dead and not _losable(message, evidence.notes):
            found.append(Violation(LOST, *where, f"number {message.n} neither succeeded nor is it dead"))
    for ticket, effects in _by_ticket(evidence.effects).items():
        in_place = [effect for effect in effects if effect.message_id not in evidence.notes.replayed]
        for before, effect in pairwise(in_place):
            if effect.n <= before.n:
                detail = f"number {effect.n} was applied after number {before.n}"
                found.append(Violation(REORDERED, ticket, effect.message_id, detail))
    return found


def check_effect_fences(evidence: Evidence) -> list[Violation]:
    """Per ticket, what is applied later has a larger fence."""
    found = []
    for ticket, effects in _by_ticket(evidence.effects).items():
        for before, effect in pairwise(effects):
            if effect.fence <= before.fence:
                detail = f"fence {effect.fence} was applied after fence {before.fence}"
                found.append(Violation(STALE_EFFECT, ticket, effect.message_id, detail))
    return found


def check_overlaps(evidence: Evidence) -> list[Violation]:
    """No two executions of a ticket at one time, but for one that could not stop, and then without its effects."""
    found = []
    freezes = _freezes_by_pid(evidence.notes)
    applied = {(effect.ticket, effect.fence) for effect in evidence.effects}
    for ticket, executions in _by_ticket(evidence.executions).items():
        executions.sort(key=lambda execution: execution.start_ns)
        # The one that goes on for longest among those that have begun is the one to compare with.
        busy: Execution | None = None
        for execution in executions:
            if busy is not None and execution.start_ns < _until(busy):
                older, newer = sorted((busy, execution), key=lambda one: one.fence)
                over = (_until(busy) - execution.start_ns) / 1e6
                detail = f"{_in_words(execution)} began {over:.1f} ms before the end of {_in_words(busy)}"
                if not _may_overrun(older, newer, freezes, evidence.notes):
                    found.append(Violation(OVERLAP, ticket, execution.message_id, detail))
                if (ticket, older.fence) in applied and _until(older) > newer.start_ns:
                    detail = f"{detail}; the effects of fence {older.fence} were applied all the same"
                    found.append(Violation(STALE_EFFECT, ticket, older.message_id, detail))
            if busy is None or _until(execution) > _until(busy):
                busy = execution
    return found


def check_fences(evidence: Evidence) -> list[Violation]:
    """Per ticket, what begins later has a larger fence; no fence runs twice."""
    found = []
    freezes = _freezes_by_pid(evidence.notes)
    for ticket, executions in _by_ticket(evidence.executions).items():
        executions.sort(key=lambda execution: execution.start_ns)
        newest: Execution | None = None
        for execution in executions:
            if newest is not None and execution.fence <= newest.fence:
                frozen = execution.fence < newest.fence and _thawed(execution, freezes)
                if not frozen:
                    detail = f"{_in_words(execution)} began after {_in_words(newest)}"
                    found.append(Violation(FENCE, ticket, execution.message_id, detail))
            else:
                newest = execution
    return found


def check_starts(evidence: Evidence) -> list[Violation]:
    """A message begins only when it is due, and the one before it is done or dead, as the server's own clock tells it.

    And attempts are counted as they ran: a later execution of a message never has a smaller number, and a first
    execution has the number 1 unless a kill can have cut off one that had not written its start.
    """
    found = []
    notes = evidence.notes
    over: dict[str, int] = {effect.message_id: effect.at_ms for effect in evidence.effects}
    over.update({letter.message_id: letter.at_ms for letter in evidence.letters})
    ids = {(message.ticket, message.n): message.message_id for message in evidence.messages}
    crashes_ms = sorted(wall // 1_000_000 for _, wall in notes.lossy_crashes)
    expired = {message.message_id for message in evidence.messages if message.expired}
    due_ms = {
        message.message_id: message.due_ms - (HELD_AHEAD_MS if message.hold else 0)
        for message in evidence.messages
        if message.due_ms
    }
    unseen = 0
    for ticket, executions in _by_ticket(evidence.executions).items():
        executions.sort(key=lambda execution: execution.start_ns)
        attempts: dict[str, int] = {}
        for execution in executions:
            where = (ticket, execution.message_id)
            if execution.message_id in expired:
                found.append(Violation(EXPIRED, *where, f"{_in_words(execution)} began"))
            early_ms = due_ms.get(execution.message_id, 0) - execution.wall_ns // 1_000_000
            if early_ms > 0 and execution.message_id not in notes.replayed:
                found.append(Violation(EARLY, *where, f"{_in_words(execution)} began {early_ms} ms before it was due"))
            before = ids.get((ticket, execution.n - 1))
            if before is not None and before not in notes.replayed and execution.message_id not in notes.replayed:
                settled = over.get(before)
                began = execution.wall_ns // 1_000_000
                if settled is None or began < settled:
                    # What was written in the last moment before a lossy crash was written once more after it.
                    at = bisect_left(crashes_ms, began)
                    undone = at < len(crashes_ms) and (settled is None or crashes_ms[at] < settled)
                    if not undone:
                        when = "never" if settled is None else f"{settled - began} ms later"
                        detail = f"{_in_words(execution)} began; the message before it, {before}, was settled {when}"
                        found.append(Violation(TOO_EARLY, *where, detail))
            last = attempts.get(execution.message_id, 0)
            if execution.attempt < last and not notes.lossy_crashes and execution.message_id not in notes.replayed:
                found.append(Violation(ATTEMPTS, *where, f"attempt {execution.attempt} ran after attempt {last}"))
            unseen += max(0, execution.attempt - max(last, 0) - 1)
            attempts[execution.message_id] = max(last, execution.attempt)
    if unseen > notes.kills:
        detail = f"{unseen} attempts were charged that never began, and only {notes.kills} kills can explain them"
        found.append(Violation(ATTEMPTS, "", "", detail))
    return found


def check_deaths(evidence: Evidence) -> list[Violation]:
    """Dead is only what can never succeed, once, and after all its attempts ran and failed."""
    found = []
    known = {message.message_id: message for message in evidence.messages}
    applied = {(effect.ticket, effect.fence) for effect in evidence.effects}
    failed: dict[str, set[int]] = defaultdict(set)
    for execution in evidence.executions:
        # One that came to its end, and whose effects could not be applied, failed as well.
        if execution.outcome != "done" or (execution.ticket, execution.fence) not in applied:
            failed[execution.message_id].add(execution.attempt)
    times = Counter(letter.message_id for letter in evidence.letters)
    unseen = 0
    for letter in evidence.letters:
        where = (letter.ticket, letter.message_id)
        message = known.get(letter.message_id)
        if message is None:
            found.append(Violation(DEAD, *where, f"nobody pushed it ({letter.reason})"))
            continue
        if not message.dies:
            found.append(Violation(DEAD, *where, f"it could have succeeded: {letter.reason}"))
        if times[letter.message_id] > 1 and letter.message_id not in evidence.notes.replayed:
            found.append(Violation(DEAD, *where, f"{times[letter.message_id]} dead letters"))
        if message.expired or GAVE_UP in letter.reason:
            # It never began, or its task ended it.
            continue
        if letter.attempts != evidence.max_attempts:
            detail = f"dead after {letter.attempts} attempts of {evidence.max_attempts}: {letter.reason}"
            found.append(Violation(DEAD, *where, detail))
        unseen += max(0, evidence.max_attempts - len(failed[letter.message_id]))
    if unseen > evidence.notes.kills:
        detail = (
            f"{unseen} attempts of dead messages never failed, and only {evidence.notes.kills} kills can explain it"
        )
        found.append(Violation(DEAD, "", "", detail))
    return found


def check_rest(evidence: Evidence) -> list[Violation]:
    """Nothing is unread, pending, in flight, awaiting a retry or unsettled; the counters agree; all keys are owned."""
    rest = evidence.rest
    left = {
        "unread entries": rest.unread,
        "pending entries": rest.pending,
        "ticket records": rest.records,
        "marks of applied effects": rest.applied,
        "retries": rest.retries,
        "outcomes": rest.outcomes,
        "delayed messages": rest.delayed,
    }
    found = [Violation(LEFT_OVER, "", "", f"{count} {name}") for name, count in left.items() if count]
    found += [Violation(LEFT_OVER, "", "", line) for line in rest.ownerless]
    # A replay takes the letter of a death that was counted.
    deaths = len(evidence.letters) + evidence.notes.replays
    ranges = {
        "done": (rest.done, len(evidence.effects), len(evidence.effects)),
        "dead": (rest.dead, deaths, deaths + evidence.notes.replays_in_doubt),
    }
    for name, (counted, least, most) in ranges.items():
        if not least <= counted <= most:
            found.append(Violation(COUNTS, "", "", f"the lane counts {counted} {name}, and there are {least}"))
    return found


def check_states(effects: Iterable[Effect], states: Mapping[str, Mapping[str, object]]) -> list[Violation]:
    """Each ticket's state is exactly the fold of its messages that succeeded and keep a state, in their order.

    ``effects``: of all lanes, those of a ticket as they were applied. ``states``: ticket -> its state.
    """
    found = []
    expected: dict[str, dict[str, object]] = defaultdict(dict)
    for effect in effects:
        if effect.kept:
            folded(expected[effect.ticket], effect.message_id, effect.fence)
    for ticket in sorted({*expected, *states}):
        wanted, there = expected.get(ticket, {}), dict(states.get(ticket, {}))
        if wanted != there:
            found.append(Violation(STATE, ticket, "", f"it is {there}, and should be {wanted}"))
    return found


def check_snapshot(
    read: Iterable[tuple[str, str]], pending: Iterable[str], succeeded: Iterable[str], dead: Iterable[str]
) -> list[Violation]:
    """Of one atomic look at a lane at work: what the group has read is pending, or has succeeded, or is dead.

    ``read``: (message id, ticket) of all entries up to the last that the group was given; the others: message ids.
    """
    accounted = {*pending, *succeeded, *dead}
    detail = "it is not pending any more, did not succeed and is not dead"
    return [Violation(ACKNOWLEDGED_EARLY, ticket, id_, detail) for id_, ticket in read if id_ not in accounted]


# -- details -----------------------------------------------------------------------------------------------------------


def _by_ticket(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.ticket].append(row)
    return found


def _until(execution: Execution) -> int:
    """Up to when the execution certainly ran."""
    return execution.seen_ns if execution.end_ns is None else execution.end_ns


def _in_words(execution: Execution) -> str:
    return (
        f"number {execution.n} (attempt {execution.attempt}, fence {execution.fence}, "
        f"{execution.consumer} {execution.pool} pid {execution.pid})"
    )


def _freezes_by_pid(notes: Notes) -> Mapping[int, list[Freeze]]:
    found: dict[int, list[Freeze]] = defaultdict(list)
    for freeze in notes.freezes:
        found[freeze.pid].append(freeze)
    return found


def _thawed(execution: Execution, freezes: Mapping[int, list[Freeze]]) -> bool:
    """Whether its process was frozen while it ran, or so shortly before that it was allowed to begin before that."""
    return any(
        freeze.from_ns <= _until(execution) and execution.start_ns <= freeze.to_ns + THAW_NS
        for freeze in freezes.get(execution.pid, ())
    )


def _may_overrun(older: Execution, newer: Execution, freezes: Mapping[int, list[Freeze]], notes: Notes) -> bool:
    """Whether ``older`` had no way to stop before ``newer`` began: it was frozen, or its pool cannot kill."""
    if older.fence == newer.fence:
        return False
    if _thawed(older, freezes):
        return True
    if any(older.start_ns <= crash <= newer.start_ns for crash, _ in notes.lossy_crashes):
        # The server may have forgotten in its crash that it had sent the older one.
        return True
    if older.pool not in UNKILLABLE:
        return False
    # Its lease was lost, or nobody else could have the ticket. Its own worker does not run two at a time even then.
    same_process = older.pid == newer.pid
    return not same_process and any(
        start <= _until(older) and older.start_ns <= end + THAW_NS for start, end in notes.outages
    )


def _losable(message: Message, notes: Notes) -> bool:
    """Whether a crash of the server can have taken the message itself: its push was acknowledged just before."""
    return any(0 <= crash - message.pushed_ns <= LOSABLE_NS for _, crash in notes.lossy_crashes)
