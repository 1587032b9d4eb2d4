"""What workers do, in all their processes."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from tests.protocol.guards import Guard
from tests.protocol.masters import Step
from tests.protocol.scripts import start, succeed, tell
from tests.protocol.world import Exec, Lease, Run, Setup, Worker, World, put, twins

#: Phases in which a pool process has the message.
BUSY = ("running", "wrote")


def steps(world: World, setup: Setup, dropped: AbstractSet[Guard]) -> Iterator[Step]:
    """Whatever a worker may do now, and what becomes of one that a fault has struck."""
    alike = twins(world)
    for w, worker in enumerate(world.workers):
        if w and alike:
            break
        lease = world.leases[w]
        if worker.mode == "up":
            yield from _up(world, w, worker, lease, setup, dropped)
        elif worker.mode == "frozen":
            yield f"w{w} wakes up", with_worker(world, w, worker._replace(mode="up"))
            if lease.held:
                late = tuple(e._replace(late=True) for e in worker.execs)
                ended = with_worker(world, w, worker._replace(past=True, execs=late))
                yield f"the lease of w{w}, which is frozen, ends", with_lease(ended, w, lease._replace(held=False))
        elif worker.mode == "orphans":
            yield from _orphans(world, w, worker, lease, setup, dropped)
        else:
            if lease.held:
                yield f"the lease of w{w}, which is dead, ends", with_lease(world, w, lease._replace(held=False))
            if not lease.held or Guard.WAITS_OUT in dropped:
                fresh = Worker("up", 0, False, False, (), (), (0,) * len(world.messages))
                yield f"w{w} is started again", _registered(world, w, fresh, dropped)


# -- the main process --------------------------------------------------------------------------------------------------


def _up(
    world: World, w: int, worker: Worker, lease: Lease, setup: Setup, dropped: AbstractSet[Guard]
) -> Iterator[Step]:
    for at, execution in enumerate(worker.execs):
        if execution.phase in BUSY:
            yield from _running(world, w, at, execution, setup, dropped)
        else:
            yield from _unbegun(world, w, at, execution, setup, dropped)
    queue = world.queues[w]
    if not worker.past:
        if worker.going:
            yield from _going(world, w, worker, lease, dropped)
        elif queue:
            taken = world._replace(queues=put(world.queues, w, queue[1:]))
            yield f"w{w} takes a run of ticket {queue[0].ticket}", take(taken, w, worker, queue[0], dropped)
        if Guard.DEADLINE_FIRST in dropped and lease.held:
            yield f"the lease of w{w} ends before its deadline", with_lease(world, w, lease._replace(held=False))
        if not lease.held:
            lost = worker._replace(past=True, execs=stopped(worker, dropped))
            yield f"w{w} is told that its lease ended", with_worker(world, w, lost)
    else:
        if lease.held:
            yield f"the lease of w{w}, which it cannot renew, ends", with_lease(world, w, lease._replace(held=False))
        if not lease.held or Guard.WAITS_OUT in dropped:
            back = worker._replace(past=False, going=False, execs=stopped(worker, dropped))
            yield f"w{w} comes back as a new incarnation", _registered(world, w, back, dropped)
        if Guard.NEVER_REVIVE in dropped and not lease.held and lease.life == worker.life:
            execs = tuple(e._replace(late=False) for e in worker.execs)
            revived = with_worker(world, w, worker._replace(past=False, execs=execs))
            yield f"w{w} revives its lease", with_lease(revived, w, lease._replace(held=True))
    for at, run in enumerate(worker.hands):
        taken = with_worker(world, w, worker._replace(hands=(*worker.hands[:at], *worker.hands[at + 1 :])))
        yield f"w{w}, slow, takes a run of ticket {run.ticket}", take(taken, w, taken.workers[w], run, dropped)


def stopped(worker: Worker, dropped: AbstractSet[Guard]) -> tuple[Exec, ...]:
    """What is left when the deadline is over and all that runs is killed: a child that comes to the rest later looks at
    the lease.
    """
    if Guard.SELF_FENCE in dropped:
        return worker.execs
    return tuple(e for e in worker.execs if e.phase not in BUSY)


def take(world: World, w: int, worker: Worker, run: Run, dropped: AbstractSet[Guard]) -> World:
    """The main process takes a Celery message, or refuses it."""
    if run.life != worker.life and Guard.TAKE_LIFE not in dropped:
        return world
    if run.fence <= worker.newest[run.ticket] and Guard.NEWEST not in dropped:
        return tell(world, run, "B", run.first, run.fence) if forgotten(worker, run) else world
    held_now = Exec(run._replace(doubt=False), run.first, "held")
    worker = seen(worker, run)
    return with_worker(world, w, worker._replace(execs=tuple(sorted((*worker.execs, held_now)))))


def forgotten(worker: Worker, run: Run) -> bool:
    """Whether a run that came before, and is sent again, is not here any more."""
    held = any(e.run.ticket == run.ticket and e.run.life == worker.life for e in worker.execs)
    return run.doubt and not held and not worker.past


def seen(worker: Worker, run: Run) -> Worker:
    """The worker remembers the fences of the run."""
    last = max(run.fence + run.length - 1, worker.newest[run.ticket])
    return worker._replace(newest=put(worker.newest, run.ticket, last))


def _going(world: World, w: int, worker: Worker, lease: Lease, dropped: AbstractSet[Guard]) -> Iterator[Step]:
    queue = world.queues[w]
    if queue:
        run = queue[0]
        taken = world._replace(queues=put(world.queues, w, queue[1:]))
        fresh = run.fence > worker.newest[run.ticket] or Guard.QUEUE_KNOWN in dropped
        if run.life == worker.life and (fresh or forgotten(worker, run)):
            taken = tell(with_worker(taken, w, seen(worker, run)), run, "B", run.first, run.fence)
        yield f"w{w}, which is going, gives back what is in its queue", taken
    for at, execution in enumerate(worker.execs):
        if execution.phase in ("held", "looked"):
            # A child that has looked, and had not noted that it would begin, begins all the same.
            after = without(world, w, at) if execution.phase == "held" else phased(world, w, at, "begun")
            after = tell(after, execution.run, "B", execution.pos, execution.fence)
            yield f"w{w}, which is going, gives back what no child has begun", after
    if not worker.execs and not worker.hands:
        gone = with_worker(world, w, worker._replace(mode="down"))
        yield f"w{w} says good-bye", with_lease(gone, w, lease._replace(held=False))


def _registered(world: World, w: int, worker: Worker, dropped: AbstractSet[Guard]) -> World:
    life = world.leases[w].life + 1
    if Guard.QUEUE_DELETED not in dropped:
        world = world._replace(queues=put(world.queues, w, ()))
    return with_lease(with_worker(world, w, worker._replace(life=life)), w, Lease(life, True, False))


# -- a child of the pool -----------------------------------------------------------------------------------------------


def _unbegun(
    world: World, w: int, at: int, execution: Exec, setup: Setup, dropped: AbstractSet[Guard]
) -> Iterator[Step]:
    """A child comes to a message."""
    worker = world.workers[w]
    named = execution.named
    if (worker.past or worker.life != execution.run.life) and Guard.START_LEASE not in dropped:
        yield f"w{w} drops {named}: its lease is over", without(world, w, at)
    elif not setup.leaving or execution.phase in ("looked", "begun"):
        yield f"w{w} starts {named}", start(world, w, at, execution)
    elif execution.phase == "held" and Guard.NOTE_FIRST in dropped:
        if not worker.going:
            yield f"w{w} is not going: a child will begin {named}", phased(world, w, at, "looked")
    elif execution.phase == "held":
        yield f"w{w} notes {named}", phased(world, w, at, "noted")
    elif worker.going:
        after = tell(without(world, w, at), execution.run, "B", execution.pos, execution.fence)
        yield f"w{w} is going, and gives {named} back", after
    else:
        yield f"w{w} starts {named}", start(world, w, at, execution)


def _running(
    world: World, w: int, at: int, execution: Exec, setup: Setup, dropped: AbstractSet[Guard]
) -> Iterator[Step]:
    """A child ends a message, without its main process."""
    written = succeed(world, execution, setup, dropped)
    following = execution.following
    gone_on = with_exec(written, w, at, following) if following else without(written, w, at)
    yield f"w{w} writes the success of {execution.named}", gone_on
    if following and execution.phase == "running" and Guard.WRITTEN_FIRST in dropped:
        yield f"w{w} goes on before it writes the success of {execution.named}", with_exec(world, w, at, following)


def _orphans(
    world: World, w: int, worker: Worker, lease: Lease, setup: Setup, dropped: AbstractSet[Guard]
) -> Iterator[Step]:
    """The main process is dead: its children are about to die, and the watcher waits for that."""
    for at, execution in enumerate(worker.execs):
        if execution.phase in BUSY:
            yield from _running(world, w, at, execution, setup, dropped)
        yield f"the orphan of w{w} that has {execution.named} is dead", without(world, w, at)
    if not worker.execs:
        yield f"all of w{w} is dead", with_worker(world, w, worker._replace(mode="down"))
    if lease.held and (not worker.execs or Guard.CHILDREN_GONE in dropped):
        yield f"the watcher of w{w} gives a death notice", with_lease(world, w, lease._replace(held=False))


# -- worlds that differ in one place ---------------------------------------------------------------------------------


def with_worker(world: World, w: int, worker: Worker) -> World:
    return world._replace(workers=put(world.workers, w, worker))


def with_lease(world: World, w: int, lease: Lease) -> World:
    return world._replace(leases=put(world.leases, w, lease))


def with_exec(world: World, w: int, at: int, execution: Exec) -> World:
    worker = world.workers[w]
    return with_worker(world, w, worker._replace(execs=put(worker.execs, at, execution)))


def phased(world: World, w: int, at: int, phase: str) -> World:
    return with_exec(world, w, at, world.workers[w].execs[at]._replace(phase=phase))


def without(world: World, w: int, at: int) -> World:
    worker = world.workers[w]
    return with_worker(world, w, worker._replace(execs=(*worker.execs[:at], *worker.execs[at + 1 :])))
