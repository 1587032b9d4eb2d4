"""The processes and the server of a chaos run, and what is known of them at the moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis import Redis

from bridge.routing.keys import LaneKeys
from bridge.routing.records import parse
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import WorkerNode
from tests.chaos.facts import Notes
from tests.chaos.ledger import LedgerReader, now_ns
from tests.chaos.operator import Operator
from tests.chaos.repartition import Repartitions
from tests.chaos.seats import Seat
from tests.chaos.stranded import Stranding
from tests.chaos.versions import Deploy

#: Makes the seat of a worker: (name, pool).
NewWorker = Callable[[str, str], Seat]


class Company:
    """Finds whom a fault may strike."""

    def __init__(
        self,
        server: EmbeddedServer,
        keys: LaneKeys,
        ledger: LedgerReader,
        notes: Notes,
        workers: list[Seat],
        masters: list[Seat],
        http: list[Seat],
        new_worker: NewWorker,
        *,
        lease_s: float,
        leader_lease_s: float,
        lossy: bool = False,
        after_loss: Callable[[], object] = lambda: None,
        deploy: Deploy | None = None,
        repartitions: Repartitions | None = None,
    ) -> None:
        self.server = server
        self.keys = keys
        self.redis: Redis = server.client(decode_responses=True, socket_timeout=5)
        self.ledger = ledger
        self.notes = notes
        self.workers = workers
        self.masters = masters
        #: The HTTP consumers.
        self.http = http
        self.new_worker = new_worker
        self.lease_s = lease_s
        self.leader_lease_s = leader_lease_s
        self.lossy = lossy
        self.after_loss = after_loss
        self.deploy = deploy
        self.repartitions = repartitions
        #: How often each action was done, and how often there was nobody to do it to.
        self.done: dict[str, int] = {}
        self.missed: dict[str, int] = {}
        self.strandings: list[Stranding] = []
        #: The last one gives orders. Those before it are of lanes of older layouts.
        self.operators = [Operator(self.redis, keys, notes)]
        #: Seconds that each killed leader's lane was without one.
        self.leaderless_s: list[float] = []
        self.leader_gone_at: float | None = None
        self.leave_at: dict[str, float] = {}
        self.joined = 0
        self.traps: list[tuple[float, str, Callable[[], bool]]] = []

    @property
    def operator(self) -> Operator:
        """Who gives the orders."""
        return self.operators[-1]

    def move_to(self, keys: LaneKeys) -> None:
        """From now on the faults of a lane and of its operator strike this one."""
        self.keys = keys
        self.operators.append(Operator(self.redis, keys, Notes()))

    @property
    def seats(self) -> list[Seat]:
        return [*self.workers, *self.masters, *self.http]

    def pick(self, seats: list[Seat], die: float) -> Seat | None:
        idle = [seat for seat in seats if seat.idle and not seat.leaving]
        # Somebody must go on working, or nothing is shown but that nobody works.
        if len(idle) < 2 and seats and seats[0].kind == "worker":
            return None
        return idle[int(die * len(idle))] if idle else None

    def may_stop(self, seat: Seat) -> bool:
        """Whether the seat can be stopped now: another worker goes on working."""
        return seat.kind != "worker" or sum(one.idle and not one.leaving for one in self.workers) > 1

    def forking(self) -> list[Seat]:
        return [seat for seat in self.workers if seat.pool == "prefork"]

    def queues(self) -> list[str]:
        """The queues that have something in them."""
        names: Any = self.redis.hkeys(self.keys.consumers)
        return [queue for name in sorted(names) if self.redis.llen(queue := self.keys.queue(name))]

    def leader(self) -> Seat | None:
        leader: Any = self.redis.get(self.keys.leader)
        pid = str(leader).split(":")[-2] if leader else ""
        found = [seat for seat in self.masters if seat.idle and str(seat.node.pid) == pid]
        return found[0] if found else None

    def back_in(self, die: float) -> float:
        """Seconds until a node comes back: mostly at once, as a supervisor does it, sometimes after its lease."""
        return 0.0 if die < 0.5 else (die - 0.5) * 3 * self.lease_s

    def strand(self, seat: Seat, how_ended: str) -> Stranding:
        """What is in flight there now."""
        consumer = consumer_of(seat)
        found: Any = self.redis.hgetall(self.keys.tickets)
        runs = {}
        for ticket, raw in found.items():
            record = parse(raw)
            if record.in_flight and record.consumer == consumer:
                runs[ticket] = record.ids
        pids = {seat.node.pid or 0, *seat.pool_processes()}
        return Stranding(how_ended, seat.pool, now_ns(), frozenset(pids), runs)

    def lined(self, seats: list[Seat]) -> list[Seat]:
        return [seat for seat in seats if seat.line is not None]


def consumer_of(seat: Seat) -> str:
    """The name under which the lane knows a worker."""
    assert isinstance(seat.node, WorkerNode), f"{seat} is no worker"
    return seat.node.hostname()
