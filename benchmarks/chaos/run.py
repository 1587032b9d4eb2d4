"""One run of one peer: messages at a steady rate, kills at a stated one, and the evidence of what came of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from benchmarks.apps.chaos_names import PATIENCE, WORK
from benchmarks.chaos.judge import Evidence, Kill
from benchmarks.chaos.ledger import read
from benchmarks.chaos.peers import Peer
from benchmarks.failover import WATCHER
from benchmarks.feed import items
from benchmarks.stack import KEYS, Stack

#: How often each kind of kill is drawn.
WEIGHTS = {"worker": 4, "master": 1, "server": 1}
#: Seconds until what was killed is started again, as a supervisor does it.
RESTART_S = 1.0
#: Seconds after its start in which a process is spared, if there is another one.
SETTLED_S = 5.0
#: Seconds between two looks.
TICK_S = 0.01
#: Seconds that processes may take to come up.
START_S = 120.0


@dataclass(frozen=True)
class Plan:
    """What a run is made of; the same for all peers. Rates in one second and in one minute."""

    seconds: float = 60.0
    rate: float = 100.0
    tickets: int = 60
    kills_a_minute: float = 12.0
    work_s: float = 0.005
    #: After how many seconds peers take a message for abandoned, where they go by time.
    patience_s: float = 10.0
    seed: int = 1
    kinds: tuple[str, ...] = tuple(WEIGHTS)

    @property
    def messages(self) -> int:
        """How many are pushed."""
        return int(self.seconds * self.rate)

    @property
    def quiet_s(self) -> float:
        """Seconds without any progress after which a run is over: what comes back by time had its time."""
        return 3 * self.patience_s + 5

    def kills(self) -> list[tuple[float, str]]:
        """(seconds since the first push, kind) of each kill, drawn by the seed. None in the first two seconds."""
        dice = random.Random(self.seed)
        count = round(self.seconds * self.kills_a_minute / 60)
        times = sorted(dice.uniform(2.0, max(2.0, self.seconds - 1.0)) for _ in range(count))
        weights = [WEIGHTS[kind] for kind in self.kinds]
        return [(at, dice.choices(self.kinds, weights)[0]) for at in times]


def run(peer: Peer, plan: Plan, say: Callable[[str], None]) -> Evidence:
    """Raises `BenchmarkFailed` when its processes do not come up."""
    with Stack("plain") as stack:
        more = {PATIENCE: f"{plan.patience_s:g}", WORK: f"{plan.work_s:g}"}
        stack.environment_more |= {**more, **peer.environment}
        company = _Company(stack, peer, random.Random(plan.seed))
        evidence = Evidence()
        push = peer.producer(stack)
        messages = list(items(plan.messages, plan.tickets))
        # All processes work before the clock starts. These messages have a ticket of their own, which is not judged.
        push([("WARM", {"t": plan.tickets, "n": number + 1}) for number in range(50)])
        stack.wait(lambda: int(stack.redis.llen(f"effects:{plan.tickets}")) >= 50, "the first messages", START_S)
        company.wait_until_ready()
        began = time.monotonic()
        kills, sent = plan.kills(), 0
        while sent < len(messages) or kills:
            now = time.monotonic() - began
            due = min(len(messages), int(now * plan.rate) + 1)
            if sent < due:
                at = time.monotonic_ns()
                push(messages[sent:due])
                evidence.pushed |= {(payload["t"], payload["n"]): at for _, payload in messages[sent:due]}
                sent = due
            if kills and kills[0][0] <= now:
                _, kind = kills.pop(0)
                if (kill := company.kill(kind)) is not None:
                    evidence.kills.append(kill)
                say(f"{kind} killed, {sent} of {len(messages)} pushed")
            company.keep_alive()
            time.sleep(TICK_S)
        if not _settle(stack, company, plan, say):
            # What a peer has and does not run comes to light when all that is its own is started again.
            evidence.restarted = time.monotonic_ns()
            company.kill_all()
            _settle(stack, company, plan, say)
        evidence.executions = [one for one in read(stack.folder) if one.message[0] < plan.tickets]
        for ticket in range(plan.tickets):
            found = stack.redis.lrange(f"effects:{ticket}", 0, -1)
            evidence.effects[ticket] = [int(number) for number in found]
        return evidence


def _settle(stack: Stack, company: _Company, plan: Plan, say: Callable[[str], None]) -> bool:
    """Waits until each message has an effect, or nothing moved for so long that nothing will: whether each has."""
    moved, seen = time.monotonic(), -1
    while time.monotonic() - moved < plan.quiet_s:
        company.keep_alive()
        with stack.redis.pipeline(transaction=False) as pipe:
            for ticket in range(plan.tickets):
                pipe.lrange(f"effects:{ticket}", 0, -1)
            found = sum(len(set(numbers)) for numbers in pipe.execute())
        if found >= plan.messages:
            return True
        if found != seen:
            moved, seen = time.monotonic(), found
        say(f"{found} of {plan.messages} done")
        time.sleep(0.1)
    return False


class _Company:
    """The processes of a peer; what ended is started again."""

    def __init__(self, stack: Stack, peer: Peer, dice: random.Random) -> None:
        self._stack = stack
        self._dice = dice
        self._parts = peer.parts()
        self._living: dict[int, psutil.Process] = {}
        #: Number of a part -> when it was started last.
        self._born: dict[int, float] = {}
        #: Number of a part -> when it is started again.
        self._due: dict[int, float] = dict.fromkeys(range(len(self._parts)), 0.0)
        self.keep_alive()

    def keep_alive(self) -> None:
        """Starts what is due, and notes what ended by itself."""
        now = time.monotonic()
        for number, process in list(self._living.items()):
            if _over(process):
                self._stack.release(process)
                del self._living[number]
                self._due[number] = now + RESTART_S
        for number, at in list(self._due.items()):
            if at <= now:
                part = self._parts[number]
                self._living[number] = self._stack.start(part.role, *part.arguments, program=part.program)
                self._born[number] = now
                del self._due[number]

    def wait_until_ready(self) -> None:
        """Until each worker has said so."""
        workers = sum(part.role == "worker" for part in self._parts)
        self._stack.wait(lambda: len(self._stack.tally.ready()) >= workers, "the workers to be ready", START_S)

    def kill(self, kind: str) -> Kill | None:
        """None where the peer has no such process, or none that is alive."""
        if kind == "server":
            self._stack.server.kill()
            kill = Kill(kind, time.monotonic_ns(), frozenset())
            time.sleep(RESTART_S)
            self._stack.server.start()
            return kill
        numbers = [number for number in self._living if self._parts[number].role == kind]
        if kind == "master":
            numbers = [number for number in numbers if self._leads(self._living[number])] or numbers
        # One that has only just been started has nothing yet that a kill could hurt.
        settled = [number for number in numbers if time.monotonic() - self._born[number] > SETTLED_S]
        numbers = settled or numbers
        if not numbers:
            return None
        return Kill(kind, time.monotonic_ns(), self._kill(self._dice.choice(numbers)))

    def kill_all(self) -> None:
        """Everything that is the peer's own; the server stays."""
        for number in list(self._living):
            self._kill(number)

    def _kill(self, number: int) -> frozenset[int]:
        """Ends a process and its pool in one moment. The bridge's watcher, which is there for this, lives on."""
        process = self._living.pop(number)
        self._stack.release(process)
        family = [process, *(child for child in process.children(recursive=True) if not _watches(child))]
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        self._due[number] = time.monotonic() + RESTART_S
        return frozenset(one.pid for one in family)

    def _leads(self, process: psutil.Process) -> bool:
        holder = self._stack.redis.get(KEYS.leader)
        return isinstance(holder, bytes) and f":{process.pid}:".encode() in holder


def _watches(process: psutil.Process) -> bool:
    try:
        return WATCHER in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _over(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
