"""What must hold in every state, and what a good end is, in the terms of the design's promises and invariants."""

from __future__ import annotations

from tests.protocol.world import AWAITING, DEAD, DONE, IN_FLIGHT, UNREAD, WAITING, Broken, World

#: Where a state may stand in its ticket: what is over, what is worked on, what waits, what nobody has read.
_RANK = {DONE: 0, DEAD: 0, IN_FLIGHT: 1, AWAITING: 1, WAITING: 2, UNREAD: 3}


def check(world: World, *, effects: bool) -> None:
    """Raises `Broken`."""
    for ticket, states in enumerate(world.messages):
        _check_ticket(world, ticket, states)
        for pos, state in enumerate(states):
            if state == DONE and not world.won[ticket][pos]:
                raise Broken(f"I3: message {ticket}.{pos} is acknowledged, and its success was never written")
            if state == DONE and effects and pos not in world.effects[ticket]:
                raise Broken(f"promise 3: message {ticket}.{pos} is acknowledged, and its effects were not applied")
    running: dict[int, str] = {}
    for w, worker in enumerate(world.workers):
        for execution in worker.execs:
            if execution.phase == "running" and not execution.late:
                ticket = execution.run.ticket
                this = f"{ticket}.{execution.pos} with fence {execution.fence} on w{w}"
                if ticket in running:
                    raise Broken(f"promise 2: {running[ticket]} and {this} run at the same time, and nobody is frozen")
                running[ticket] = this


def _check_ticket(world: World, ticket: int, states: tuple[int, ...]) -> None:
    ranks = [_RANK[state] for state in states]
    if ranks != sorted(ranks):
        raise Broken(f"I2: a message of ticket {ticket} is ahead of an older one: {states}")
    record = world.records[ticket]
    worked_on = [pos for pos, rank in enumerate(ranks) if rank == 1]
    if record is None:
        if worked_on:
            raise Broken(f"I1: messages {worked_on} of ticket {ticket} are in no record")
        return
    if worked_on != list(range(record.first, record.first + record.length)):
        raise Broken(f"I1: the record of ticket {ticket} does not name what it has in flight: {record}, {states}")
    expected = IN_FLIGHT if record.fence else AWAITING
    if any(states[pos] != expected for pos in worked_on):
        raise Broken(f"I1: the record of ticket {ticket} is {record}, and its messages are {states}")


def good_end(world: World) -> bool:
    """Everything is done or dead, and nothing is left of it."""
    return (
        not world.outcomes
        and all(record is None for record in world.records)
        and all(state in (DONE, DEAD) for states in world.messages for state in states)
    )
