"""What must hold over the versions of a stream, and over its layouts before and after a repartition, beside what holds
in each (`tests.chaos.checks`). Pure functions.

A ticket's executions of both versions are one row: they do not overlap, and their fences grow. A message of the newer
version is dispatched only when all messages of its ticket that are in the older stream by then are done or dead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from tests.chaos.checks import Violation, check_effect_fences, check_fences, check_overlaps
from tests.chaos.facts import Evidence, Message, Rest

#: A message of a newer version began before one of an older version was settled (promise 1, I2).
OVERTAKEN = "an older version was overtaken"
#: The id of a message is its push in ms. A fence is the dispatch in µs, by the same clock, or a little later when many
#: were given out in a moment. So this much is between a push that certainly came first, and the dispatch, in µs.
CERTAIN_US = 5000


def check_chain(older: Evidence, newer: Evidence) -> list[Violation]:
    """The checks over two versions of one lane. Each evidence is that of one of them."""
    both = Evidence(
        messages=[],
        executions=[*older.executions, *newer.executions],
        # As they were applied: both versions of a ticket leave them in one place.
        effects=sorted([*older.effects, *newer.effects], key=lambda effect: effect.place),
        letters=[],
        rest=Rest(),
        notes=newer.notes,
        max_attempts=newer.max_attempts,
    )
    return [*check_overlaps(both), *check_fences(both), *check_effect_fences(both), *check_older_first(older, newer)]


def together(evidence: Sequence[Evidence]) -> Evidence:
    """The evidence of one subscription on all partitions of a layout."""
    return Evidence(
        messages=[message for one in evidence for message in one.messages],
        executions=[execution for one in evidence for execution in one.executions],
        effects=[effect for one in evidence for effect in one.effects],
        letters=[letter for one in evidence for letter in one.letters],
        rest=Rest(),
        notes=replace(evidence[0].notes, replayed={id_ for one in evidence for id_ in one.notes.replayed}),
        max_attempts=evidence[0].max_attempts,
    )


def check_older_first(older: Evidence, newer: Evidence) -> list[Violation]:
    """When a message of the newer version was dispatched, all older ones of its ticket were settled."""
    found = []
    # With the ticket: messages of two partitions may have the same id.
    settled = {(letter.ticket, letter.message_id): letter.at_ms for letter in older.letters}
    settled.update({(effect.ticket, effect.message_id): effect.at_ms for effect in older.effects})
    crashes_ms = sorted(wall // 1_000_000 for _, wall in older.notes.lossy_crashes)
    replayed = older.notes.replayed
    of_ticket: dict[str, list[Message]] = defaultdict(list)
    for message in older.messages:
        # A replayed message may come later than its place. For one that is delayed the newer version waits from when it
        # was moved, a moment after it is due.
        if message.message_id not in replayed and not message.overtaken:
            of_ticket[message.ticket].append(message)
    for execution in newer.executions:
        began = execution.wall_ns // 1_000_000
        for message in of_ticket[execution.ticket]:
            if _pushed_us(message) + CERTAIN_US >= execution.fence:
                break
            at_ms = settled.get((message.ticket, message.message_id))
            if at_ms is not None and at_ms <= began:
                continue
            crash = bisect_left(crashes_ms, began)
            if crash < len(crashes_ms) and (at_ms is None or crashes_ms[crash] < at_ms):
                continue  # written once more after a lossy crash
            when = "never" if at_ms is None else f"{at_ms - began} ms later"
            detail = (
                f"number {execution.n} of the newer version (fence {execution.fence}) began; "
                f"{message.message_id} of the older one was settled {when}"
            )
            found.append(Violation(OVERTAKEN, execution.ticket, execution.message_id, detail))
            break
    return found


def _pushed_us(message: Message) -> int:
    return int(message.message_id.partition("-")[0]) * 1000
