"""The scripts of the model. The reference does each of them, and is itself compared with the real scripts.

Among all pairs of a server and a script that a search meets, few are different: each is done once.
"""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING

from bridge.routing.batch import Batch, DeadLetter, Dispatch
from bridge.routing.effects import Success
from bridge.routing.errors import LaneConflict, NotLeading
from bridge.routing.return_codes import ReturnCode
from bridge.routing.transitions import Leadership
from tests.protocol.guards import Guard
from tests.protocol.server import (
    KEYS,
    Server,
    id_of,
    ids_of,
    lane_of,
    life_of,
    message_of,
    popped,
    server_of,
    tail_of,
    text_of,
)
from tests.protocol.world import DEAD, DONE, IN_FLIGHT, MOVES, UNREAD, Broken, Exec, Out, Run, Script, World, put
from tests.reference.contents import MASTER
from tests.reference.lane import RULES, ReferenceLane

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from tests.protocol.world import Setup


#: Guards that change what a script does. The cache of `run` depends on these alone.
_IN_SCRIPTS = RULES | {Guard.RECALL_OWN, Guard.RECALL_SINGLE}
_SEEN = attrgetter(*Server._fields)


@lru_cache
def _of_scripts(dropped: frozenset[Guard]) -> frozenset[Guard]:
    return dropped & _IN_SCRIPTS


def execute(world: World, script: Script, setup: Setup, dropped: AbstractSet[Guard]) -> tuple[str, World]:
    """What the server answers, and the world after it. Raises `Broken` when a message would leave a state that it is
    not in (I1), and, unless only promises count, when the script does what it may not (I4, I5, I8).
    """
    word, server = run(Server._make(_SEEN(world)), script, _of_scripts(frozenset(dropped)))
    if server is None:
        return word, world
    after = world._replace(**server._asdict())
    if not setup.promises_only:
        if script.term != world.lead and after != world:
            raise Broken(f"I8: the '{script.kind}' of term {script.term} changed the lane, and term {world.lead} leads")
        lease = world.leases[script.over[0]]
        if script.kind == "re-route" and lease.held and lease.life == script.over[1]:
            raise Broken(f"I5: tickets of w{script.over[0]} moved, and its lease holds")
        if script.kind == "dispatch" and after.fence <= world.fence:
            raise Broken(f"I4: the fence {after.fence} was given out before")
    return word, after


@lru_cache(maxsize=1 << 17)
def run(server: Server, script: Script, dropped: frozenset[Guard] = frozenset()) -> tuple[str, Server | None]:
    """What the script answers, and the server after it; None: the script is refused."""
    lane = lane_of(server, dropped)
    try:
        code = _call(lane, server, script, dropped)
    except NotLeading:
        return "DEPOSED", None
    except LaneConflict:
        return "CONFLICT", None
    if code is not ReturnCode.OK:
        return code.value, None
    after = server_of(lane, server)
    for change in script.changes:
        for edge, pos in change.moves:
            taken = server.messages[change.ticket][pos], after.messages[change.ticket][pos]
            if taken != MOVES[edge]:
                raise Broken(f"I1: message {change.ticket}.{pos} took the edge '{edge}', and went {taken}")
    return "OK", after


def _call(lane: ReferenceLane, server: Server, script: Script, dropped: AbstractSet[Guard]) -> ReturnCode:
    lead = Leadership(KEYS, str(script.term), MASTER)
    worker, life = str(script.over[0]), life_of(*script.over)
    if script.kind == "read":
        lane.read(lead, 1)
    elif script.kind == "re-route":
        moves = [(str(c.ticket), text_of(c.expected), text_of(c.record), 0) for c in script.changes]
        ids = [id_of(change.ticket, pos) for change in script.changes for _, pos in change.moves]
        return lane.reroute(lead, life, "0-0", moves, ids)
    elif script.kind == "resend":
        [(ticket, expected, record, _)] = script.changes
        assert record is not None
        again = message_of(record._replace(doubt=True))
        return lane.resend(lead, str(record.worker), str(ticket), text_of(expected), again)
    elif script.kind == "recall":
        queue = [popped(message) for message in lane.recall(lead, worker, len(server.queues[script.over[0]]))]
        lane.advance(lead, "", _recalled(server, script, queue, dropped))
    else:
        lane.advance(lead, "", _batch(server, script))
    return ReturnCode.OK


def _batch(server: Server, script: Script) -> Batch:
    batch = Batch()
    for ticket, expected, record, moves in script.changes:
        name = str(ticket)
        batch.expected[name] = text_of(expected)
        for edge, pos in moves:
            after, id_ = MOVES[edge][1], id_of(ticket, pos)
            if after in (DONE, DEAD):
                batch.acknowledged.append(id_)
                batch.dead += [DeadLetter(id_, [])] if after == DEAD else []
            elif after != IN_FLIGHT:
                batch.given_back.append(id_)
        if record is None:
            batch.released.append(name)
        elif script.kind == "dispatch":
            to = batch.dispatches.setdefault(name, Dispatch(str(record.worker), ""))
            to.ids += ids_of(record)
            to.runs.append((name, batch.fences, tail_of(record)))
            to.texts.append(message_of(record).removeprefix("0").encode())
            batch.fences += record.length
        else:
            batch.records += (name, text_of(record))
    settled = 0
    while settled < len(server.outcomes) and server.outcomes[settled] in script.outs:
        settled += 1
    batch.keep_outcomes_from = f"{settled + 1}-1" if settled else ""
    return batch


def _recalled(server: Server, script: Script, queue: list[Run], dropped: AbstractSet[Guard]) -> Batch:
    """What was in the queue of a worker is given back, where it is certain that it is nowhere else."""
    batch = Batch()
    for run in queue:
        record = server.records[run.ticket]
        if record is None or record.fence != run.fence or run.life != script.over[1]:
            continue
        if run.doubt and Guard.RECALL_SINGLE not in dropped:
            continue
        if run.fence <= script.since and Guard.RECALL_OWN not in dropped:
            continue
        batch.given_back += ids_of(record)
        if record.attempt > 1:
            awaits = Run(run.ticket, record.first, 1, 0, record.attempt, 0, 0)
            batch.records += (str(run.ticket), text_of(awaits))
        else:
            batch.released.append(str(run.ticket))
    return batch


@lru_cache(maxsize=1 << 12)
def _may_apply(record: Run | None, applied: int, fence: int, dropped: frozenset[Guard]) -> bool:
    lane = ReferenceLane(KEYS, dropped)
    lane.tickets = {"T": text_of(record)} if record else {}
    lane.applied = {"T": applied} if applied else {}
    return lane.apply("life", [Success("T", fence, "", ())]) == [ReturnCode.OK]


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
        if not _may_apply(record, world.applied[ticket], fence, _of_scripts(frozenset(dropped))):
            return world  # STALE, or AGAIN
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
