"""Puts the drawn faults into practice, on real processes and a real server, while messages flow.

One thread and no waiting: a fault starts something (a process is killed, frozen, asked to stop) and `tick` looks after
what comes of it, so faults overlap as they please. Only the server's own faults block, for as long as it is away.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from redis import Redis

from bridge.embedded import EmbeddedServer
from routing.keys import LaneKeys
from routing.records import parse
from tests.chaos.checks import Notes
from tests.chaos.draw import Step
from tests.chaos.feeder import UNAVAILABLE
from tests.chaos.ledger import LedgerReader, now_ns
from tests.chaos.operator import Operator
from tests.chaos.seats import Seat
from tests.chaos.stranded import Stranding

#: Makes the node of a worker: (name, pool, whether it sends heartbeats).
NewWorker = Callable[[str, str], Seat]
#: Seconds for which a fault that needs something in a queue waits for it.
TRAP_S = 5.0


def method_of(action: str) -> str:
    """The name of the conductor's method for an action of the draw."""
    return "_" + action.replace(" ", "_").replace("'", "")


class Conductor:
    """Does one step after another, and keeps what is to be known of them."""

    def __init__(
        self,
        server: EmbeddedServer,
        keys: LaneKeys,
        ledger: LedgerReader,
        notes: Notes,
        workers: list[Seat],
        masters: list[Seat],
        new_worker: NewWorker,
        *,
        lease_s: float,
        leader_lease_s: float,
        lossy: bool = False,
        after_loss: Callable[[], object] = lambda: None,
    ) -> None:
        self.server = server
        self.keys = keys
        self.redis: Redis = server.client(decode_responses=True, socket_timeout=5)
        self.ledger = ledger
        self.notes = notes
        self.workers = workers
        self.masters = masters
        self.new_worker = new_worker
        self.lease_s = lease_s
        self.leader_lease_s = leader_lease_s
        self.lossy = lossy
        self.after_loss = after_loss
        #: How often each action was done, and how often there was nobody to do it to.
        self.done: dict[str, int] = {}
        self.missed: dict[str, int] = {}
        self.strandings: list[Stranding] = []
        self.operator = Operator(self.redis, keys, notes)
        #: Seconds that each killed leader's lane was without one.
        self.leaderless_s: list[float] = []
        self._leader_gone_at: float | None = None
        self._last_leader = ""
        self._leave_at: dict[str, float] = {}
        self._joined = 0
        self._traps: list[tuple[float, str, Callable[[], bool]]] = []

    @property
    def seats(self) -> list[Seat]:
        return [*self.workers, *self.masters]

    @property
    def certain(self) -> int:
        """How many faults were done; those that still lie in wait are not counted."""
        return sum(self.done.values()) - len(self._traps)

    def do(self, step: Step) -> bool:
        """Does one step now; False when there is nobody to do it to."""
        action = getattr(self, method_of(step.action))
        try:
            hit = bool(action(*step.dice))
        except UNAVAILABLE:
            hit = False
        counts = self.done if hit else self.missed
        counts[step.action] = counts.get(step.action, 0) + 1
        return hit

    def tick(self) -> None:
        """Looks after everything that is on its way."""
        now = time.monotonic()
        for seat in self.seats:
            due = self._leave_at.get(seat.node.name)
            if due is not None and now >= due and seat.idle:
                del self._leave_at[seat.node.name]
                seat.leaving = True
                seat.stop(0)
            seat.tick()
        self._look_for_leader()
        self._spring_traps()
        self.operator.tick()

    def calm_down(self) -> None:
        """No more faults: what is frozen goes on, and what an operator holds back is let go."""
        for seat in self.seats:
            seat.thaw()
            seat.mend()
        self.operator.undo_all()

    def complaints(self) -> list[str]:
        """What processes did of their own accord and should not have."""
        return [line for seat in self.seats for line in seat.complaints]

    # -- workers -----------------------------------------------------------------------------------------------------

    def _kill_the_worker(self, who: float, when: float, *_: float) -> bool:
        return self._kill_worker(who, when, Seat.kill, "worker killed")

    def _kill_the_worker_and_its_watcher(self, who: float, when: float, *_: float) -> bool:
        return self._kill_worker(who, when, Seat.kill_with_watcher, "worker and watcher killed")

    def _kill_everything_of_the_worker(self, who: float, when: float, *_: float) -> bool:
        return self._kill_worker(who, when, Seat.vanish, "everything killed")

    def _kill_worker(self, who: float, when: float, how: Callable[[Seat, float], None], told: str) -> bool:
        seat = self._pick(self.workers, who)
        if seat is None:
            return False
        stranding = self._strand(seat, told)
        how(seat, self._back_in(when))
        self.strandings.append(stranding)
        return True

    def _stop_the_worker(self, who: float, when: float, *_: float) -> bool:
        seat = self._pick(self.workers, who)
        if seat is None:
            return False
        stranding = self._strand(seat, "worker stopped")
        seat.stop(self._back_in(when))
        self.strandings.append(stranding)
        return True

    def _freeze_the_worker(self, who: float, long: float, *_: float) -> bool:
        return self._freeze_worker(who, 0.1 + long * 0.5 * self.lease_s)

    def _freeze_the_worker_past_its_lease(self, who: float, long: float, *_: float) -> bool:
        return self._freeze_worker(who, self.lease_s * (1.2 + long))

    def _freeze_worker(self, who: float, for_s: float) -> bool:
        seat = self._pick(self.workers, who)
        if seat is None or seat.node.pid is None:
            return False
        seat.freeze([seat.node.pid, *seat.pool_processes()], for_s)
        return True

    def _freeze_the_main_process_past_its_lease(self, who: float, long: float, *_: float) -> bool:
        # With pools that do not fork it is the whole worker.
        seat = self._pick(self.workers, who)
        if seat is None or seat.node.pid is None:
            return False
        seat.freeze([seat.node.pid], self.lease_s * (1.2 + long))
        return True

    def _freeze_a_pool_process_past_the_lease(self, who: float, which: float, long: float, *_: float) -> bool:
        seat = self._pick(self._forking(), who)
        pids = seat.pool_processes() if seat else []
        if seat is None or not pids:
            return False
        seat.freeze([pids[int(which * len(pids))]], self.lease_s * (1.2 + long))
        return True

    def _kill_a_busy_pool_process(self, who: float, *_: float) -> bool:
        def strike() -> bool:
            owners = {pid: seat for seat in self._forking() if seat.idle for pid in seat.pool_processes()}
            busy = sorted(owners.keys() & self.ledger.running())
            if busy:
                pid = busy[int(who * len(busy))]
                owners[pid].kill_pool_process(pid)
            return bool(busy)

        return self._lie_in_wait("kill a busy pool process", strike)

    def _kill_an_idle_pool_process(self, who: float, *_: float) -> bool:
        owners = {pid: seat for seat in self._forking() if seat.idle for pid in seat.pool_processes()}
        idle = sorted(owners.keys() - self.ledger.running())
        if not idle:
            return False
        pid = idle[int(who * len(idle))]
        owners[pid].kill_pool_process(pid)
        return True

    def _let_a_worker_join_and_leave(self, pool: float, long: float, *_: float) -> bool:
        if len(self._leave_at) >= 2:
            return False
        self._joined += 1
        pools = [seat.pool for seat in self.workers]
        seat = self.new_worker(f"j{self._joined}", pools[int(pool * len(pools))])
        seat.start()
        self.workers.append(seat)
        self._leave_at[seat.node.name] = time.monotonic() + 4 + 8 * long
        return True

    # -- masters -----------------------------------------------------------------------------------------------------

    def _kill_the_leader(self, _: float, when: float, *__: float) -> bool:
        seat = self._leader()
        if seat is None:
            return False
        self._leader_gone_at = time.monotonic()
        seat.kill(self._back_in(when))
        return True

    def _kill_the_standby(self, who: float, when: float, *_: float) -> bool:
        leader = self._leader()
        seat = self._pick([seat for seat in self.masters if seat is not leader], who)
        if seat is None:
            return False
        seat.kill(self._back_in(when))
        return True

    def _stop_the_leader(self, _: float, when: float, *__: float) -> bool:
        seat = self._leader()
        if seat is None:
            return False
        seat.stop(self._back_in(when))
        return True

    def _freeze_the_leader_past_its_lease(self, long: float, *_: float) -> bool:
        seat = self._leader()
        if seat is None or seat.node.pid is None:
            return False
        seat.freeze([seat.node.pid], self.leader_lease_s * (1.2 + long))
        return True

    # -- the network -------------------------------------------------------------------------------------------------

    def _cut_a_worker_off(self, who: float, long: float, *_: float) -> bool:
        return self._cut_off(self._pick(self._lined(self.workers), who), 0.1 + long * 0.6 * self.lease_s)

    def _cut_a_worker_off_past_its_lease(self, who: float, long: float, *_: float) -> bool:
        return self._cut_off(self._pick(self._lined(self.workers), who), self.lease_s * (1.2 + long))

    def _cut_the_leader_off_past_its_lease(self, long: float, *_: float) -> bool:
        return self._cut_off(self._leader(), self.leader_lease_s * (1.2 + long))

    def _cut_off(self, seat: Seat | None, for_s: float) -> bool:
        if seat is None or seat.line is None:
            return False
        seat.cut_off(for_s)
        return True

    def _lined(self, seats: list[Seat]) -> list[Seat]:
        return [seat for seat in seats if seat.line is not None]

    # -- the server --------------------------------------------------------------------------------------------------

    def _kill_the_server(self, _: float, long: float, *__: float) -> bool:
        began = now_ns()
        if self.lossy:
            self.notes.lossy_crashes.append((began, time.time_ns()))
        self.server.kill()
        time.sleep(long**2 * 1.5 * self.lease_s)  # the fault itself: it is away
        self.server.start()
        self.notes.outages.append((began, now_ns()))
        if self.lossy:
            self.after_loss()
        return True

    def _restart_the_server(self, *_: float) -> bool:
        began = now_ns()
        self.server.restart()
        self.notes.outages.append((began, now_ns()))
        return True

    def _freeze_the_server(self, long: float, *_: float) -> bool:
        began = now_ns()
        self.server.pause()
        time.sleep(0.1 + long**2 * 1.5 * self.lease_s)  # the fault itself
        self.server.resume()
        self.notes.outages.append((began, now_ns()))
        return True

    def _cut_all_connections(self, *_: float) -> bool:
        began = now_ns()
        for kind in ("normal", "pubsub"):
            self.redis.client_kill_filter(_type=kind, skipme=True)
        self.notes.outages.append((began, now_ns()))
        return True

    # -- the lane ----------------------------------------------------------------------------------------------------

    def _purge_a_queue(self, who: float, *_: float) -> bool:
        return self._lie_in_wait("purge a queue", lambda: self._at_a_queue(who, self.redis.delete))

    def _throw_a_Celery_message_away(self, who: float, end: float, *_: float) -> bool:
        pop = self.redis.rpop if end < 0.5 else self.redis.lpop
        return self._lie_in_wait("throw a Celery message away", lambda: self._at_a_queue(who, pop))

    def _at_a_queue(self, who: float, strike: Callable[[str], Any]) -> bool:
        """Strikes if some queue is not empty now."""
        queues = self._queues()
        return bool(queues) and bool(strike(queues[int(who * len(queues))]))

    def _lie_in_wait(self, action: str, strike: Callable[[], bool]) -> bool:
        """Strikes at the first moment that suits: tasks are short, and workers empty their queues fast."""
        self._traps.append((time.monotonic() + TRAP_S, action, strike))
        return True

    def _spring_traps(self) -> None:
        left = []
        for until, action, strike in self._traps:
            try:
                struck = strike()
            except UNAVAILABLE:
                struck = False
            if not struck and time.monotonic() < until:
                left.append((until, action, strike))
            elif not struck:
                self.done[action] -= 1
                self.missed[action] = self.missed.get(action, 0) + 1
        self._traps = left

    def _claim_a_message_by_hand(self, which: float, *_: float) -> bool:
        found: Any = self.redis.xpending_range(self.keys.stream, self.keys.group, "-", "+", 200)
        if not found:
            return False
        id_ = found[int(which * len(found))]["message_id"]
        return bool(self.redis.xclaim(self.keys.stream, self.keys.group, "somebody", 0, [id_], justid=True))

    # -- an operator -------------------------------------------------------------------------------------------------

    def _park_a_ticket(self, which: float, long: float, *_: float) -> bool:
        tickets: Any = self.redis.hkeys(self.keys.tickets)
        if not tickets:
            return False
        ticket = sorted(tickets)[int(which * len(tickets))]
        return self.operator.park(ticket, 0.5 + 3 * long)

    def _drain_a_worker(self, who: float, long: float, *_: float) -> bool:
        seat = self._pick(self.workers, who)
        return seat is not None and self.operator.drain(_consumer(seat), 0.5 + 3 * long)

    def _transfer_a_workers_tickets(self, who: float, *_: float) -> bool:
        seat = self._pick(self.workers, who)
        return seat is not None and self.operator.transfer(_consumer(seat))

    def _replay_a_dead_letter(self, which: float, *_: float) -> bool:
        found: Any = self.redis.xrange(self.keys.dead, count=500)
        if not found:
            return False
        letter, fields = found[int(which * len(found))]
        return self.operator.replay(letter, fields["message_id"])

    # -- details -----------------------------------------------------------------------------------------------------

    def _pick(self, seats: list[Seat], die: float) -> Seat | None:
        idle = [seat for seat in seats if seat.idle and not seat.leaving]
        # Somebody must go on working, or nothing is shown but that nobody works.
        if len(idle) < 2 and seats and seats[0].kind == "worker":
            return None
        return idle[int(die * len(idle))] if idle else None

    def _forking(self) -> list[Seat]:
        return [seat for seat in self.workers if seat.pool == "prefork"]

    def _queues(self) -> list[str]:
        """The queues that have something in them."""
        names: Any = self.redis.hkeys(self.keys.consumers)
        return [queue for name in sorted(names) if self.redis.llen(queue := self.keys.queue(name))]

    def _leader(self) -> Seat | None:
        told: Any = self.redis.get(self.keys.leader)
        pid = str(told).split(":")[-2] if told else ""
        found = [seat for seat in self.masters if seat.idle and str(seat.node.pid) == pid]
        return found[0] if found else None

    def _look_for_leader(self) -> None:
        """Takes the time from the kill of a leader to the next one's lead."""
        if self._leader_gone_at is None:
            return
        try:
            told = str(self.redis.get(self.keys.leader) or "")
        except UNAVAILABLE:
            self._leader_gone_at = None  # another fault is in the way of the measurement
            return
        pid = told.split(":")[-2] if told else ""
        if any(seat.node.running and str(seat.node.pid) == pid for seat in self.masters):
            self.leaderless_s.append(time.monotonic() - self._leader_gone_at)
            self._leader_gone_at = None

    def _back_in(self, die: float) -> float:
        """Seconds until a node comes back: mostly at once, as a supervisor does it, sometimes after its lease."""
        return 0.0 if die < 0.5 else (die - 0.5) * 3 * self.lease_s

    def _strand(self, seat: Seat, told: str) -> Stranding:
        """What is in flight there now."""
        consumer = _consumer(seat)
        found: Any = self.redis.hgetall(self.keys.tickets)
        runs = {}
        for ticket, raw in found.items():
            record = parse(raw)
            if record.in_flight and record.consumer == consumer:
                runs[ticket] = record.ids
        pids = {seat.node.pid or 0, *seat.pool_processes()}
        return Stranding(told, seat.pool, now_ns(), frozenset(pids), runs)


def _consumer(seat: Seat) -> str:
    return str(getattr(seat.node, "hostname", ""))
