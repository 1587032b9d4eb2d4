"""What masters do: they elect a leader, plan, send scripts and read the replies."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from tests.protocol.guards import Guard
from tests.protocol.scripts import execute, next_unread
from tests.protocol.world import (
    AWAITING,
    UNREAD,
    WAITING,
    Change,
    Master,
    Out,
    Run,
    Script,
    Setup,
    World,
    put,
    twins,
)

#: (what happens, the world after it)
Step = tuple[str, World]


def steps(world: World, setup: Setup, dropped: AbstractSet[Guard]) -> Iterator[Step]:
    """Whatever a master may do now, and what becomes of one that a fault has struck."""
    if world.lead and all(master.term != world.lead for master in world.masters):
        yield "the lease of the leader that is gone ends", world._replace(lead=0)
    for script in world.late:
        rest = world._replace(late=())
        yield f"the late '{script.kind}' of term {script.term} never arrives", rest
        word, after = execute(rest, script, setup, dropped)
        yield f"the late '{script.kind}' of term {script.term} arrives: {word}", after
    seen = set()
    for i, master in enumerate(world.masters):
        if master in seen:
            continue  # the same again
        seen.add(master)
        if not master.term:
            if not world.lead:
                elected = world._replace(term=world.term + 1, lead=world.term + 1)
                known = pending(world) if Guard.REBUILD not in dropped else (0,) * len(world.messages)
                leader = Master(world.term + 1, known)
                yield f"a master is elected, term {leader.term}", _with(elected, i, leader)
            continue
        if isinstance(master.sent, Script):
            word, after = execute(world, master.sent, setup, dropped)
            yield f"'{master.sent.kind}' of term {master.term}: {word}", _reply(world, after, i, word, setup, dropped)
        elif master.term != world.lead:
            yield f"the master of term {master.term} sees that it leads no more", standing_by(world, i)
        else:
            for script in plans(world, master, setup, dropped):
                sent = _with(world, i, master._replace(sent=script))
                yield f"the leader sends '{script.kind}'{_shown(script)}", sent


def standing_by(world: World, i: int) -> World:
    """The master forgets what it knew, and leads no more."""
    return _with(world, i, Master(0, (0,) * len(world.messages)))


def _reply(before: World, after: World, i: int, word: str, setup: Setup, dropped: AbstractSet[Guard]) -> World:
    master = before.masters[i]
    assert isinstance(master.sent, Script)
    if word == "DEPOSED":
        return standing_by(after, i)
    if word == "CONFLICT":
        if master.term == after.lead:
            return rebuilt(after, i, setup, dropped)
        return _with(after, i, master._replace(sent=()))
    known = master.known
    if master.sent.kind == "read":
        ticket, pos = next_unread(before)
        if ticket >= 0:
            known = put(known, ticket, known[ticket] | 1 << pos)
    return _with(after, i, Master(master.term, known))


def rebuilt(world: World, i: int, setup: Setup, dropped: AbstractSet[Guard]) -> World:
    """The leader drops its memory and reads the lane again."""
    term = world.lead
    if Guard.FRESH_TERM not in dropped:
        term = world.term + 1
        world = world._replace(term=term, lead=term)
    return _with(world, i, Master(term, pending(world)))


def pending(world: World) -> tuple[int, ...]:
    """For each ticket the bits of the messages that were read."""
    return tuple(sum(1 << pos for pos, state in enumerate(m) if state != UNREAD) for m in world.messages)


def _with(world: World, i: int, master: Master) -> World:
    return world._replace(masters=tuple(sorted(put(world.masters, i, master), key=_order)))


def _order(master: Master) -> tuple[int, tuple[int, ...]]:
    # Masters differ in nothing but what they hold: one order for each set of them. No two have the same term.
    return master.term, master.known


def _shown(script: Script) -> str:
    if script.kind == "dispatch":
        [change] = script.changes
        run = change.record
        assert run is not None
        last = f"..{run.first + run.length - 1}" if run.length > 1 else ""
        return f" of {run.ticket}.{run.first}{last} to w{run.worker}, life {run.life}"
    moves = [f"{edge} {change.ticket}.{pos}" for change in script.changes for edge, pos in change.moves]
    return f" ({', '.join(moves)})" if moves else ""


# -- what a leader plans ---------------------------------------------------------------------------------------------


def plans(world: World, master: Master, setup: Setup, dropped: AbstractSet[Guard]) -> Iterator[Script]:
    """The scripts that the leader may send next, from a picture that is as the server's, but for what it has read."""
    term = master.term
    if next_unread(world)[0] >= 0:
        yield Script("read", term)
    if world.outcomes:
        yield settled(world, term, setup, dropped)
    for ticket, record in enumerate(world.records):
        if record is None or not record.fence:
            yield from _dispatches(world, master, ticket, record, setup)
            continue
        if Guard.OUTCOME_FIRST in dropped:
            early = Out(record.worker, record.life, "S", ticket, record.first, record.fence)
            yield settled(world._replace(outcomes=(early,)), term, setup, dropped)
        lease = world.leases[record.worker]
        if lease.held and lease.life == record.life and _missing(world, record):
            if Guard.SAME_FENCE in dropped:
                back = Out(record.worker, record.life, "B", ticket, record.first, record.fence)
                yield settled(world._replace(outcomes=(back,)), term, setup, dropped)
            else:
                yield Script("resend", term, (Change(ticket, record, record, ()),))
    for worker, life in {(record.worker, record.life) for record in world.records if record and record.fence}:
        lease = world.leases[worker]
        if lease.held and lease.life == life and Guard.LEASE_OVER not in dropped:
            continue
        if lease.early and lease.life == life and Guard.CLOCKS_AGREE not in dropped and _trusts(world, worker):
            continue
        if Guard.UNREAD not in dropped and any(out[:2] == (worker, life) for out in world.outcomes):
            continue
        yield Script("re-route", term, tuple(_rerouted(world, worker, life)), over=(worker, life))


def _trusts(world: World, worker: int) -> bool:
    """Whether a worker whose lease is gone may not know it: the leader waits until no worker could."""
    found = world.workers[worker]
    return found.mode != "down" and not found.past


def _dispatches(world: World, master: Master, ticket: int, record: Run | None, setup: Setup) -> Iterator[Script]:
    known = master.known[ticket]
    ready = [
        pos for pos, state in enumerate(world.messages[ticket]) if known >> pos & 1 and state in (WAITING, AWAITING)
    ]
    if not ready:
        return
    first = record.first if record is not None else ready[0]
    attempt = record.attempt if record is not None else 1
    again = "retry" if record is not None else "dispatch"
    following = [pos for pos in ready if pos >= first]
    alike = twins(world)
    for worker, lease in enumerate(world.leases):
        if not lease.held or lease.leaving:
            continue
        if worker and alike:
            break
        for count in range(1, min(setup.run_max, len(following)) + 1):
            moves = tuple((again if pos == first else "dispatch", pos) for pos in following[:count])
            run = Run(ticket, first, count, 0, attempt, worker, lease.life)
            yield Script("dispatch", master.term, (Change(ticket, record, run, moves),))


def _missing(world: World, record: Run) -> bool:
    """Whether the run seems to be lost: it is not in the queue, the worker does not hold it, no outcome tells of it."""
    worker = world.workers[record.worker]
    if worker.mode != "up" or worker.past:
        return False  # it reports nothing
    if any(run.fence == record.fence for run in world.queues[record.worker]):
        return False
    if any(held.run.ticket == record.ticket and held.run.fence <= record.fence for held in worker.execs):
        return False
    if sum(run.ticket == record.ticket for run in worker.hands) > 1:
        return False  # it went out again already
    return all(out.ticket != record.ticket for out in world.outcomes)


def _rerouted(world: World, worker: int, life: int) -> Iterator[Change]:
    for ticket, record in enumerate(world.records):
        if record is not None and record.fence and (record.worker, record.life) == (worker, life):
            moves = [("re-route", record.first)]
            moves += [("give back others", pos) for pos in range(record.first + 1, record.first + record.length)]
            awaits = Run(ticket, record.first, 1, 0, record.attempt, 0, 0)
            yield Change(ticket, record, awaits, tuple(moves))


def settled(world: World, term: int, setup: Setup, dropped: AbstractSet[Guard]) -> Script:
    """The script that settles all outcomes that there are, as `bridge.leader.picture.settling` would."""
    records: dict[int, Run | None] = {}
    moves: dict[int, list[tuple[str, int]]] = {}
    for out in world.outcomes:
        record = records.get(out.ticket, world.records[out.ticket])
        if record is None or not record.fence or record.first != out.pos:
            continue
        if record.fence != out.fence and Guard.OUTCOME_FENCE not in dropped:
            continue
        made = moves.setdefault(out.ticket, [])
        first, rest = record.first, range(record.first + 1, record.first + record.length)
        if out.kind == "S":
            made.append(("done", first))
            records[out.ticket] = (
                record._replace(first=first + 1, length=record.length - 1, fence=record.fence + 1, attempt=1)
                if record.length > 1
                else None
            )
            continue
        back = [("give back others", pos) for pos in rest]
        awaits = Run(out.ticket, first, 1, 0, record.attempt, 0, 0)
        if out.kind == "B":
            begun = record.attempt > 1
            made += [("give back again" if begun else "give back", first), *back]
            records[out.ticket] = awaits if begun else None
        elif record.attempt < setup.attempts_max:
            made += [("fail", first), *back]
            records[out.ticket] = awaits._replace(attempt=record.attempt + 1)
        else:
            made += [("give up", first), *back]
            records[out.ticket] = None
    changes = tuple(Change(t, world.records[t], record, tuple(moves[t])) for t, record in records.items())
    return Script("settle", term, changes, world.outcomes)
