"""The faults: what may happen to any process at any moment. Each counts against the bound."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from tests.protocol.guards import Guard
from tests.protocol.masters import Step, rebuilt, standing_by
from tests.protocol.scripts import execute, succeed, tell
from tests.protocol.workers import BUSY, phased, stopped, take, with_exec, with_lease, with_worker, without
from tests.protocol.world import Lease, Script, Setup, Worker, World, put, twins


def steps(world: World, setup: Setup, dropped: AbstractSet[Guard]) -> Iterator[Step]:
    """Whatever may go wrong now."""
    for i in range(len(world.masters)):
        yield from _master(world, i, setup, dropped)
    if setup.stepping and any(lease.held for lease in world.leases):
        ended = (lease._replace(held=False, early=True) if lease.held else lease for lease in world.leases)
        yield "the server's clock is set forward, and all leases end", world._replace(leases=tuple(ended), lead=0)
    alike = twins(world)
    for w, worker in enumerate(world.workers):
        if worker.mode == "up" and not (w and alike):
            yield from _worker(world, w, worker, world.leases[w], setup, dropped)
            yield from _children(world, w, worker, setup, dropped)


def _master(world: World, i: int, setup: Setup, dropped: AbstractSet[Guard]) -> Iterator[Step]:
    master = world.masters[i]
    if not master.term:
        return
    if master.term == world.lead:
        yield f"the lease of the leader of term {master.term} ends while it lives", world._replace(lead=0)
        if setup.recalling and not master.sent:
            for w, lease in enumerate(world.leases):
                if world.queues[w]:
                    recall = Script("recall", master.term, over=(w, lease.life), since=world.outage)
                    yield f"the leader recalls what is in the queue of w{w}", execute(world, recall, setup, dropped)[1]
    script = master.sent
    standby = standing_by(world, i)
    if not isinstance(script, Script):
        yield f"the master of term {master.term} is killed", standby
    elif not world.late:
        late = (script,)
        on_its_way = f"'{script.kind}' on its way"
        yield f"the master of term {master.term} is killed with {on_its_way}", standby._replace(late=late)
        if master.term == world.lead:
            rebuilt_world = rebuilt(world._replace(late=late), i, setup, dropped)
            yield f"the leader gives up waiting, with {on_its_way}, and reads the lane again", rebuilt_world


def _worker(
    world: World, w: int, worker: Worker, lease: Lease, setup: Setup, dropped: AbstractSet[Guard]
) -> Iterator[Step]:
    queue = world.queues[w]
    if not worker.past:
        if queue and not worker.going:
            ticket = queue[0].ticket
            popped = world._replace(queues=put(world.queues, w, queue[1:]))
            yield f"a Celery message of w{w} is lost", popped
            hands = with_worker(popped, w, worker._replace(hands=(*worker.hands, queue[0])))
            yield f"w{w} pops a run of ticket {ticket}, and is slow to take it", hands
            twice = take(world, w, worker, queue[0], dropped)
            if setup.recalling:
                # It does so only after an outage. Then the leader reads the lane again.
                leading = [i for i, master in enumerate(world.masters) if master.term and master.term == world.lead]
                twice = twice._replace(outage=world.fence)
                for i in leading:
                    twice = rebuilt(twice, i, setup, dropped)
            yield f"w{w} takes a run of ticket {ticket}, and the server will give it out again", twice
        if setup.leaving and not worker.going:
            after = with_worker(world, w, worker._replace(going=True))
            yield f"w{w} is asked to stop", with_lease(after, w, lease._replace(leaving=True))
        past = worker._replace(past=True, execs=stopped(worker, dropped))
        yield f"w{w} cannot renew: its deadline is over", with_worker(world, w, past)
        yield f"w{w} freezes", with_worker(world, w, worker._replace(mode="frozen"))
    busy = tuple(e for e in worker.execs if e.phase in BUSY)
    killed = worker._replace(mode="orphans" if busy else "down", hands=(), execs=busy)
    yield f"the main process of w{w} is killed", with_worker(world, w, killed)


def _children(world: World, w: int, worker: Worker, setup: Setup, dropped: AbstractSet[Guard]) -> Iterator[Step]:
    for at, execution in enumerate(worker.execs):
        run, pos, named = execution.run, execution.pos, execution.named
        if execution.phase == "running":
            failed = tell(world, run, "F", pos, execution.fence)
            goes_on = execution.following if Guard.RUN_STOPS in dropped else None
            yield f"{named} fails", with_exec(failed, w, at, goes_on) if goes_on else without(failed, w, at)
            written = succeed(world, execution, setup, dropped)
            yield f"w{w} writes the success of {named}, and the reply is lost", phased(written, w, at, "wrote")
        if execution.phase in BUSY and not worker.past:
            after = tell(world, run, "L", pos, execution.fence)
            if Guard.GONE_BEFORE_TOLD not in dropped:
                after = without(after, w, at)
            yield f"the process of w{w} that runs {named} is killed", after
