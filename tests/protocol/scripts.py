"""The scripts on the model's server. Each is one step with the guards of the real one, and does all or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.protocol.guards import Guard
from tests.protocol.world import DEAD, DONE, MOVES, UNREAD, Broken, Exec, Out, Run, Script, World, put

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from tests.protocol.world import Setup

_TERM = {"read": Guard.TERM_READ, "re-route": Guard.TERM_REROUTE}


def execute(world: World, script: Script, setup: Setup, dropped: AbstractSet[Guard]) -> tuple[str, World]:
    """What the server answers, and the world after it. Raises `Broken` when a message would leave a state that it is
    not in (I1), and, unless only promises count, when the script does what it may not (I4, I5, I8).
    """
    if script.term != world.lead and _TERM.get(script.kind, Guard.TERM_ADVANCE) not in dropped:
        return "DEPOSED", world
    word, after = _execute(world, script, dropped)
    if word == "OK" and not setup.promises_only:
        if script.term != world.lead and after != world:
            raise Broken(f"I8: the '{script.kind}' of term {script.term} changed the lane, and term {world.lead} leads")
        lease = world.leases[script.over[0]]
        if script.kind == "re-route" and lease.held and lease.life == script.over[1]:
            raise Broken(f"I5: tickets of w{script.over[0]} moved, and its lease holds")
        if script.kind == "dispatch" and after.fence <= world.fence:
            raise Broken(f"I4: the fence {after.fence} was given out before")
    return word, after


def _execute(world: World, script: Script, dropped: AbstractSet[Guard]) -> tuple[str, World]:
    if script.kind == "read":
        return _read(world)
    if script.kind == "re-route":
        worker, life = script.over
        lease = world.leases[worker]
        if lease.held and lease.life == life and Guard.LEASE_OVER not in dropped:
            return "ALIVE", world
        if Guard.UNREAD not in dropped and any(out[:2] == (worker, life) for out in world.outcomes):
            return "UNREAD", world
    if script.kind == "recall":
        return "OK", _recalled(world, script, dropped)
    if Guard.EXPECTED not in dropped:
        for change in script.changes:
            if world.records[change.ticket] != change.expected:
                return "CONFLICT", world
    fence = world.fence
    records, applied, messages, queues = world.records, world.applied, world.messages, world.queues
    for change in script.changes:
        ticket, record = change.ticket, change.record
        of_ticket = messages[ticket]
        for edge, pos in change.moves:
            before, after = MOVES[edge]
            if of_ticket[pos] != before:
                raise Broken(f"I1: the edge '{edge}' was taken by message {ticket}.{pos}, which is not where it begins")
            of_ticket = put(of_ticket, pos, after)
        if of_ticket is not messages[ticket]:
            messages = put(messages, ticket, of_ticket)
        if script.kind == "dispatch":
            assert record is not None
            record = record._replace(fence=fence + 1 if Guard.FENCES_GROW not in dropped else 1)
            fence = record.fence + record.length - 1
            queues = put(queues, record.worker, (*queues[record.worker], record))
        elif script.kind == "resend":
            assert record is not None
            queues = put(queues, record.worker, (*queues[record.worker], record._replace(doubt=True)))
        if record is None:
            applied = put(applied, ticket, 0)
        records = put(records, ticket, record)
    outcomes = world.outcomes
    while outcomes and outcomes[0] in script.outs:
        outcomes = outcomes[1:]
    return "OK", world._replace(
        fence=fence, records=records, applied=applied, messages=messages, queues=queues, outcomes=outcomes
    )


def _recalled(world: World, script: Script, dropped: AbstractSet[Guard]) -> World:
    """What is in the queue of a worker is given back, where it is certain that it is nowhere else."""
    worker, life = script.over
    queue = world.queues[worker]
    world = world._replace(queues=put(world.queues, worker, ()))
    for run in queue:
        record = world.records[run.ticket]
        if record is None or record.fence != run.fence or run.life != life:
            continue
        if run.doubt and Guard.RECALL_SINGLE not in dropped:
            continue
        if run.fence <= script.since and Guard.RECALL_OWN not in dropped:
            continue
        first = "give back again" if record.attempt > 1 else "give back"
        of_ticket = world.messages[run.ticket]
        for pos in range(record.first, record.first + record.length):
            of_ticket = put(of_ticket, pos, MOVES[first if pos == record.first else "give back others"][1])
        awaits = Run(run.ticket, record.first, 1, 0, record.attempt, 0, 0) if record.attempt > 1 else None
        world = world._replace(
            messages=put(world.messages, run.ticket, of_ticket),
            records=put(world.records, run.ticket, awaits),
            applied=world.applied if awaits else put(world.applied, run.ticket, 0),
        )
    return world


def _read(world: World) -> tuple[str, World]:
    ticket, pos = next_unread(world)
    if ticket < 0:
        return "OK", world
    return "OK", world._replace(
        messages=put(world.messages, ticket, put(world.messages[ticket], pos, MOVES["read"][1]))
    )


def next_unread(world: World) -> tuple[int, int]:
    """The oldest unread message: the stream has the first messages of all tickets, then the second ones, and so on.
    (-1, 0): there is none.
    """
    for pos in range(max(map(len, world.messages))):
        for ticket, of_ticket in enumerate(world.messages):
            if pos < len(of_ticket) and of_ticket[pos] == UNREAD:
                return ticket, pos
    return -1, 0


def tell(world: World, run: Run, kind: str, pos: int, fence: int) -> World:
    """The worker's XADD of one outcome."""
    out = Out(run.worker, run.life, kind, run.ticket, pos, fence)
    return world._replace(outcomes=(*world.outcomes, out))


def succeed(world: World, execution: Exec, setup: Setup, dropped: AbstractSet[Guard]) -> World:
    """The worker writes a success: with effects by apply.lua, else by XADD. Raises `Broken` when effects of a ticket
    are out of order or come twice.
    """
    run, pos, fence = execution.run, execution.pos, execution.fence
    ticket = run.ticket
    record = world.records[ticket]
    current = record is not None and record.fence > 0 and record.fence <= fence < record.fence + record.length
    if setup.effects:
        if not current and Guard.EFFECT_FENCE not in dropped:
            return world  # STALE
        if fence <= world.applied[ticket] and Guard.APPLIED_ONCE not in dropped:
            return world  # AGAIN, or STALE
        before = world.effects[ticket]
        if pos in before:
            raise Broken(f"promise 4: the effects of {ticket}.{pos} were applied twice")
        for earlier in range(pos):
            if earlier not in before and world.messages[ticket][earlier] != DEAD:
                raise Broken(
                    f"promise 1: the effects of message {ticket}.{pos} came before those of {ticket}.{earlier}"
                )
        if before and pos < before[-1]:
            raise Broken(f"promise 1: the effects of {ticket}.{pos} came after those of a later message")
        world = world._replace(
            effects=put(world.effects, ticket, (*before, pos)), applied=put(world.applied, ticket, fence)
        )
    if current and not world.won[ticket][pos]:
        world = world._replace(won=put(world.won, ticket, put(world.won[ticket], pos, True)))
    return tell(world, run, "S", pos, fence)


def start(world: World, worker: int, at: int, execution: Exec) -> World:
    """A message starts. Raises `Broken` when it may not."""
    run, pos = execution.run, execution.pos
    ticket = run.ticket
    record = world.records[ticket]
    if pos and not execution.late:
        state = world.messages[ticket][pos - 1]
        if state not in (DONE, DEAD) and not world.won[ticket][pos - 1]:
            raise Broken(f"I2: message {ticket}.{pos} starts before the success of the one before it is written")
    if record is not None and 0 < record.fence <= execution.fence < record.fence + record.length:
        if pos < world.begun[ticket]:
            raise Broken(f"promise 3: message {ticket}.{pos} runs again, and it was not the last that was started")
        if pos > world.begun[ticket]:
            world = world._replace(begun=put(world.begun, ticket, pos))
    before = world.workers[worker]
    return world._replace(
        workers=put(
            world.workers, worker, before._replace(execs=put(before.execs, at, execution._replace(phase="running")))
        )
    )
