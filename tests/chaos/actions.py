"""What the conductor can do to a lane: one method for each action of the draw, with its name.

Each takes the dice of its step and returns whether there was anybody to do it to. None of them waits, but for those
that take the server away.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from redis.exceptions import ResponseError

from bridge.routing.keys import layout_key, masters, masters_stand
from tests.chaos.company import Company, consumer_of
from tests.chaos.ledger import now_ns
from tests.chaos.seats import Seat
from tests.chaos.subscriptions import STREAMS

#: Seconds for which a fault waits for the moment that suits it.
TRAP_S = 5.0
#: The name in the group under which a person acts.
SOMEBODY = "somebody"


def method_of(action: str) -> str:
    """The name of the method for an action of the draw."""
    return "_" + action.replace(" ", "_").replace("'", "")


class Actions(Company):
    """Does single faults."""

    # -- workers -----------------------------------------------------------------------------------------------------

    def _kill_the_worker(self, who: float, when: float, *_: float) -> bool:
        return self._kill_worker(who, when, Seat.kill, "worker killed")

    def _kill_the_worker_and_its_watcher(self, who: float, when: float, *_: float) -> bool:
        return self._kill_worker(who, when, Seat.kill_with_watcher, "worker and watcher killed")

    def _kill_everything_of_the_worker(self, who: float, when: float, *_: float) -> bool:
        return self._kill_worker(who, when, Seat.vanish, "everything killed")

    def _kill_worker(self, who: float, when: float, how: Callable[[Seat, float], None], how_ended: str) -> bool:
        seat = self.pick(self.workers, who)
        if seat is None:
            return False
        stranding = self.strand(seat, how_ended)
        how(seat, self.back_in(when))
        self.strandings.append(stranding)
        return True

    def _stop_the_worker(self, who: float, when: float, *_: float) -> bool:
        seat = self.pick(self.workers, who)
        if seat is None:
            return False
        stranding = self.strand(seat, "worker stopped")
        seat.stop(self.back_in(when))
        self.strandings.append(stranding)
        return True

    def _freeze_the_worker(self, who: float, long: float, *_: float) -> bool:
        return self._freeze_worker(who, 0.1 + long * 0.5 * self.lease_s)

    def _freeze_the_worker_past_its_lease(self, who: float, long: float, *_: float) -> bool:
        return self._freeze_worker(who, self.lease_s * (1.2 + long))

    def _freeze_worker(self, who: float, for_s: float) -> bool:
        seat = self.pick(self.workers, who)
        if seat is None or seat.node.pid is None:
            return False
        seat.freeze([seat.node.pid, *seat.pool_processes()], for_s)
        return True

    def _freeze_the_main_process_past_its_lease(self, who: float, long: float, *_: float) -> bool:
        # With pools that do not fork it is the whole worker.
        seat = self.pick(self.workers, who)
        if seat is None or seat.node.pid is None:
            return False
        seat.freeze([seat.node.pid], self.lease_s * (1.2 + long))
        return True

    def _freeze_a_pool_process_past_the_lease(self, who: float, which: float, long: float, *_: float) -> bool:
        seat = self.pick(self.forking(), who)
        pids = seat.pool_processes() if seat else []
        if seat is None or not pids:
            return False
        seat.freeze([pids[int(which * len(pids))]], self.lease_s * (1.2 + long))
        return True

    def _kill_a_busy_pool_process(self, who: float, *_: float) -> bool:
        def strike() -> bool:
            owners = {pid: seat for seat in self.forking() if seat.idle for pid in seat.pool_processes()}
            busy = sorted(owners.keys() & self.ledger.running())
            if busy:
                pid = busy[int(who * len(busy))]
                owners[pid].kill_pool_process(pid)
            return bool(busy)

        return self._lie_in_wait("kill a busy pool process", strike)

    def _kill_an_idle_pool_process(self, who: float, *_: float) -> bool:
        owners = {pid: seat for seat in self.forking() if seat.idle for pid in seat.pool_processes()}
        idle = sorted(owners.keys() - self.ledger.running())
        if not idle:
            return False
        pid = idle[int(who * len(idle))]
        owners[pid].kill_pool_process(pid)
        return True

    def _let_a_worker_join_and_leave(self, pool: float, long: float, *_: float) -> bool:
        if len(self.leave_at) >= 2:
            return False
        self.joined += 1
        pools = [seat.pool for seat in self.workers]
        seat = self.new_worker(f"j{self.joined}", pools[int(pool * len(pools))])
        seat.start()
        self.workers.append(seat)
        self.leave_at[seat.node.name()] = time.monotonic() + 4 + 8 * long
        return True

    # -- masters -----------------------------------------------------------------------------------------------------

    def _kill_the_leader(self, _: float, when: float, *__: float) -> bool:
        seat = self.leader()
        if seat is None:
            return False
        self.leader_gone_at = time.monotonic()
        seat.kill(self.back_in(when))
        return True

    def _kill_the_standby(self, who: float, when: float, *_: float) -> bool:
        leader = self.leader()
        seat = self.pick([seat for seat in self.masters if seat is not leader], who)
        if seat is None:
            return False
        seat.kill(self.back_in(when))
        return True

    def _stop_the_leader(self, _: float, when: float, *__: float) -> bool:
        seat = self.leader()
        if seat is None:
            return False
        seat.stop(self.back_in(when))
        return True

    def _freeze_the_leader_past_its_lease(self, long: float, *_: float) -> bool:
        seat = self.leader()
        if seat is None or seat.node.pid is None:
            return False
        seat.freeze([seat.node.pid], self.leader_lease_s * (1.2 + long))
        return True

    # -- the network -------------------------------------------------------------------------------------------------

    def _cut_a_worker_off(self, who: float, long: float, *_: float) -> bool:
        return self._cut_off(self.pick(self.lined(self.workers), who), 0.1 + long * 0.6 * self.lease_s)

    def _cut_a_worker_off_past_its_lease(self, who: float, long: float, *_: float) -> bool:
        return self._cut_off(self.pick(self.lined(self.workers), who), self.lease_s * (1.2 + long))

    def _cut_the_leader_off_past_its_lease(self, long: float, *_: float) -> bool:
        return self._cut_off(self.leader(), self.leader_lease_s * (1.2 + long))

    def _cut_off(self, seat: Seat | None, for_s: float) -> bool:
        if seat is None or seat.line is None:
            return False
        seat.cut_off(for_s)
        return True

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
        queues = self.queues()
        return bool(queues) and bool(strike(queues[int(who * len(queues))]))

    def _lie_in_wait(self, action: str, strike: Callable[[], bool]) -> bool:
        """Strikes at the first moment that suits: tasks are short, and workers empty their queues fast."""
        self.traps.append((time.monotonic() + TRAP_S, action, strike))
        return True

    def _claim_a_message_by_hand(self, which: float, *_: float) -> bool:
        ids = [id_ for id_, _ in self._pending_list()]
        if not ids:
            return False
        id_ = ids[int(which * len(ids))]
        return bool(self.redis.xclaim(self.keys.stream, self.keys.group, SOMEBODY, 0, [id_], justid=True))

    def _change_the_group_by_hand(self, how: float, which: float, many: float, *_: float) -> bool:
        """Takes messages off the pending list that are not done, or new ones from under the leader's eyes."""
        stream, group = self.keys.stream, self.keys.group
        listed = self._pending_list()
        names = sorted({name for _, name in listed})
        if how < 0.4 and listed:
            first = int(which * len(listed))
            ids = [id_ for id_, _ in listed[first : first + 1 + int(10 * many)]]
            self.notes.taken.update(ids)
            return bool(self.redis.xack(stream, group, *ids))
        if how < 0.6 and names:
            name = names[int(which * len(names))]
            self.notes.taken.update(id_ for id_, its in listed if its == name)
            return bool(self.redis.xgroup_delconsumer(stream, group, name))
        if how < 0.8 and listed:
            # What is delayed, too.
            pending: Any = self.redis.xpending_range(stream, group, "-", "+", 1_000_000)
            self.notes.taken.update(row["message_id"] for row in pending)
            return bool(self.redis.xgroup_destroy(stream, group))
        return bool(listed) and bool(self.redis.xreadgroup(group, SOMEBODY, {stream: ">"}, count=1 + int(10 * many)))

    def _pending_list(self) -> list[tuple[str, str]]:
        """(id, name) of what is pending, but for what is delayed. That is taken back by a repair, which may be after it
        is due: then its place has passed.
        """
        try:
            pending: Any = self.redis.xpending_range(self.keys.stream, self.keys.group, "-", "+", 1000)
        except ResponseError:
            # It was destroyed by hand.
            return []
        return [(row["message_id"], row["consumer"]) for row in pending if not row["consumer"].endswith("/delayed")]

    def _lose_the_set_of_masters(self, which: float, *_: float) -> bool:
        kinds = ((masters, masters_stand), (masters,), (masters_stand,))[int(3 * which)]
        return bool(self.redis.delete(*(kind(stream) for kind in kinds for stream in STREAMS.values())))

    def _lose_the_layout(self, *_: float) -> bool:
        return bool(self.redis.delete(*map(layout_key, STREAMS.values())))

    # -- HTTP consumers, and the ports of masters ---------------------------------------------------------------------

    def _kill_an_HTTP_consumer(self, who: float, when: float, *_: float) -> bool:
        return self._hit(self.pick(self.http, who), Seat.kill, self.back_in(when))

    def _stop_an_HTTP_consumer(self, who: float, when: float, *_: float) -> bool:
        return self._hit(self.pick(self.http, who), Seat.stop, self.back_in(when))

    def _freeze_an_HTTP_consumer(self, who: float, long: float, *_: float) -> bool:
        return self._hit(self.pick(self.http, who), Seat.freeze_all, 0.1 + long * 0.5 * self.lease_s)

    def _freeze_an_HTTP_consumer_past_its_lease(self, who: float, long: float, *_: float) -> bool:
        return self._hit(self.pick(self.http, who), Seat.freeze_all, self.lease_s * (1.2 + long))

    @staticmethod
    def _hit(seat: Seat | None, how: Callable[[Seat, float], None], seconds: float) -> bool:
        if seat is not None:
            how(seat, seconds)
        return seat is not None

    def _kill_the_processes_of_a_port(self, who: float, which: float, *_: float) -> bool:
        seat = self.pick(self.masters, who)
        return seat is not None and seat.kill_port(which)

    # -- an operator -------------------------------------------------------------------------------------------------

    def _deploy_the_newer_version(self, early: float, *_: float) -> bool:
        if self.deploy is None or self.deploy.began:
            return False
        self.deploy.begin(self.workers, self.masters, producers_first=early < 0.5)
        return True

    def _repartition_the_stream(self, which: float, kills: float, early: float, *_: float) -> bool:
        return self.repartitions is not None and self.repartitions.begin(which, kills, early)

    def _park_a_ticket(self, which: float, long: float, *_: float) -> bool:
        tickets: Any = self.redis.hkeys(self.keys.tickets)
        if not tickets:
            return False
        ticket = sorted(tickets)[int(which * len(tickets))]
        return self.operator.park(ticket, 0.5 + 3 * long)

    def _drain_a_worker(self, who: float, long: float, *_: float) -> bool:
        seat = self.pick(self.workers, who)
        return seat is not None and self.operator.drain(consumer_of(seat), 0.5 + 3 * long)

    def _transfer_a_workers_tickets(self, who: float, *_: float) -> bool:
        seat = self.pick(self.workers, who)
        return seat is not None and self.operator.transfer(consumer_of(seat))

    def _replay_a_dead_letter(self, which: float, *_: float) -> bool:
        found: Any = self.redis.xrange(self.keys.dead, count=500)
        if not found:
            return False
        letter, fields = found[int(which * len(found))]
        return self.operator.replay(letter, fields["message_id"])
