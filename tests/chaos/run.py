"""One chaos run from its first process to its verdict: the same for the short test and for the soak."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from redis import Redis

from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST, free_port
from bridge.stack.server_program import FsyncPolicy
from bridge.testing.nodes.node import broker_environment
from bridge.testing.nodes.preloaded import read_by_apps
from bridge.testing.nodes.process import ROOT, ProcessNode, python_module
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until
from tests.chaos import evidence
from tests.chaos.chains import check_chain, together
from tests.chaos.checks import STUCK, Violation, check_all, check_states
from tests.chaos.conductor import Conductor
from tests.chaos.draw import Cast, Step
from tests.chaos.facts import Evidence, Letter, Notes, Rest
from tests.chaos.feeder import UNAVAILABLE, Feeder, FollowingFeeder, Source
from tests.chaos.http_program import LIES, LOST, read_told
from tests.chaos.ledger import LedgerReader
from tests.chaos.link import READY
from tests.chaos.repartition import Lanes, Repartitions, layouts
from tests.chaos.result import Result
from tests.chaos.seats import Seat
from tests.chaos.stranded import waits
from tests.chaos.subscriptions import NEWER, ONE, Subscription, environment, evidence_of
from tests.chaos.ticks import SCHEDULE, Ticks, schedule
from tests.chaos.versions import Deploy, Producers, chains, follows

read_by_apps("CHAOS_", "SOAK_")

APP = "tests.chaos.app"
#: Workers start a second sooner without looking for their neighbours.
QUICK = ("--without-mingle", "--without-gossip")
#: Seconds between two rounds of the conductor's loop.
ROUND_S = 0.02
#: Seconds between two looks at a lane at work, and how many of the newest messages each looks at.
LOOK_EVERY_S, LOOK_AT = 2.0, 2000
#: The counts of a lane's messages that it is done with.
SETTLED = ("done", "dropped", "dead", "left_out")
#: Messages of the newer version that are pushed after the last fault of a run with a deploy.
NEWER_AT_END = 50
#: Seconds until a lane whose work is done has nothing left of it.
REST_WITHIN_S = 20.0


@dataclass(frozen=True)
class Plan:
    """What a run consists of. ``env`` is for workers and masters."""

    folder: Path
    cast: Cast
    steps: Sequence[Step]
    source: Source
    #: So many faults, of those drawn, shall have had somebody to strike. 0: as many as there are.
    faults: int = 0
    #: No fault begins after so many seconds. A slow machine has fewer faults, and not a longer run. 0: no such end.
    faults_s: float = 0.0
    #: The run pushes as long as there are faults to come; then, and after ``messages``, no more. 0: no such end.
    messages: int = 0
    #: Messages that are pushed and not settled, at most; and how many a second are pushed, at most.
    backlog: int = 400
    rate: float = 100_000.0
    app: str = APP
    lease_s: float = 2.0
    leader_lease_s: float = 2.0
    bundle_ms: float = 10.0
    max_attempts: int = 5
    concurrency: int = 2
    fsync: FsyncPolicy = "always"
    env: dict[str, str] = field(default_factory=dict)
    #: Seconds without any progress, no fault being under way, after which the lane counts as stuck.
    patience_s: float = 60.0
    #: Tasks may kill whole workers.
    culprits: bool = False
    #: Workers without heartbeats: the lease alone must tell that they live.
    unheard: Sequence[str] = ("w2",)
    #: The lanes of the app. The faults of a lane and of its operator strike the first one.
    subscriptions: Sequence[Subscription] = ONE
    #: Those of a run that begins with the older version, and makes the deploy itself.
    producers: Producers | None = None
    #: Whether the number of partitions changes in the run.
    repartitions: bool = False
    #: Whether there are HTTP consumers, and a schedule. The app of the soak has no task for them.
    http: bool = False
    schedule: bool = False


class Run:
    """A server, its nodes, a producer and a conductor; a context manager that ends them all."""

    def __init__(self, plan: Plan, say: Callable[[str], None] = print) -> None:
        self.plan = plan
        self.say = say
        self.struck = plan.subscriptions[0]
        self.keys = self.struck.keys
        self._lanes = Lanes(list(plan.subscriptions))
        self._deploy = Deploy(self._change, plan.producers) if plan.producers else None
        #: Whether nodes start with the app that follows the older version.
        self._newer = self._deploy is None
        #: Whether nodes start with a schedule.
        self._has_schedule = plan.schedule
        #: The lanes that are there.
        #: The lanes that faults of a lane have struck: one of each layout.
        self._struck = [self.struck]
        self._begun = {one for one in plan.subscriptions if self._newer or one.version != NEWER}
        self.ledger_folder = plan.folder / "ledger"
        self.notes = Notes()
        self.server = EmbeddedServer(data_dir=plan.folder / "data", fsync=plan.fsync)
        self._found: list[Violation] = []
        self._lines: dict[str, ProcessNode] = {}

    def __enter__(self) -> Run:
        self.ledger_folder.mkdir(parents=True)
        self.server.start()
        self.redis: Redis = self.server.client(decode_responses=True)
        self.yard = ProcessYard(self.plan.folder, self.server.url)
        self._ports = {name: free_port() for name in self.plan.cast.masters} if self.plan.http else {}
        self.ledger = LedgerReader(self.ledger_folder)
        # A producer whose connection hangs blocks the conductor: the server is only frozen by calls that thaw it again.
        connected: Redis = self.server.client(decode_responses=True)
        partitions = self.struck.partitions
        self.feeder: Feeder = (
            FollowingFeeder(connected, self.plan.source, self.server.url, partitions)
            if self.plan.repartitions
            else Feeder(
                connected, self.plan.source, partitions, sorted({one.version for one in self.plan.subscriptions})
            )
        )
        self._repartitions = (
            Repartitions(self.redis, self._lanes, self._command, self.feeder, self._switched, self._closed)
            if self.plan.repartitions
            else None
        )
        self.ticks = Ticks(self.redis, self.feeder.where)
        self.conductor = Conductor(
            self.server,
            self.keys,
            self.ledger,
            self.notes,
            [self._worker(name, pool) for name, pool in self.plan.cast.workers],
            [self._master(name) for name in self.plan.cast.masters],
            [self._http_consumer(name) for name in self.plan.cast.http] if self.plan.http else [],
            self._worker,
            lease_s=self.plan.lease_s,
            leader_lease_s=self.plan.leader_lease_s,
            lossy=self.plan.fsync != "always",
            after_loss=self.feeder.forget_lost,
            deploy=self._deploy,
            repartitions=self._repartitions,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.conductor.calm_down()
        if self._repartitions is not None:
            self._repartitions.stop()
        self.feeder.close()
        for node in self.yard.nodes:
            node.close()
        self.server.close()

    def go(self, stop: Callable[[], bool] = lambda: False) -> Result:
        """Starts everything, does every step while messages flow, waits for the rest, and judges it.

        ``stop`` ends it early, with the verdict so far.
        """
        for seat in self.conductor.seats:
            seat.start()
        lanes = self._there()
        workers, http = len(self.plan.cast.workers), len(self.conductor.http)
        wait_until(
            lambda: (
                # HTTP consumers serve one subscription.
                all(self.redis.hlen(one.keys.consumers) == workers + http * one.fails for one in lanes)
                and all(self.redis.exists(one.keys.leader) for one in lanes)
            ),
            description="all consumers to register and each lane to be led",
            timeout_s=90,
        )
        began = time.monotonic()
        cut_short = not (self._faults(stop) and self._tell_all(began, stop))
        self.conductor.calm_down()
        self._end_schedule()
        stuck = self._drain(lambda: cut_short or stop())
        cut_short = cut_short or len(self.feeder.messages) < self.plan.messages
        seconds = time.monotonic() - began
        result = self._judge(stuck)
        result.seconds = seconds
        result.cut_short = cut_short
        return result

    # -- its parts ---------------------------------------------------------------------------------------------------

    def _faults(self, stop: Callable[[], bool]) -> bool:
        """Does every step, or what there is time for; whether it was not stopped."""
        began = last = time.monotonic()
        looked = began
        steps = iter(self.plan.steps)
        step = next(steps, None)
        while step is not None and self.conductor.certain < (self.plan.faults or len(self.plan.steps)):
            if stop():
                return False
            now = time.monotonic()
            if self.plan.faults_s and now - began > self.plan.faults_s:
                self.say(f"{now - began:7.1f} s  no time for more faults")
                break
            self.conductor.tick()
            if now - last >= step.after_s:
                hit = self.conductor.do(step)
                # For one that had nobody to strike the next one comes at once.
                last = now if hit else last
                self.say(
                    f"{now - began:7.1f} s  fault {step}{'' if hit else ': nobody to do it to'}  {self._progress()}"
                )
                step = next(steps, None)
            self._feed(began)
            if now - looked >= LOOK_EVERY_S:
                looked = now
                self._look()
            time.sleep(ROUND_S)
        self._end_deploy(began, stop)
        if self._repartitions is not None and not self._repartitions.done and not self._repartitions.busy:
            self._repartitions.begin(0.9, 0.5, 0.5)
        return True

    def _tell_all(self, began: float, stop: Callable[[], bool]) -> bool:
        """Goes on until each lie was told, and the schedule has ticked after the last fault; whether that came."""
        if not self.conductor.http and not self.plan.schedule:
            return True
        after_ms, until, looked = time.time_ns() // 1_000_000, time.monotonic() + self.plan.patience_s, 0.0
        while not stop():
            self.conductor.tick()
            self._feed(began)
            now = time.monotonic()
            if now - looked >= LOOK_EVERY_S / 4:
                looked = now
                self._look()
                told, _ = read_told(self.ledger_folder)
                untold = [lie for lie in LIES if not told[lie]] if self.conductor.http else []
                late = self.plan.schedule and self.ticks.newest_ms <= after_ms
                if not untold and not late:
                    return True
                if now > until:
                    lacks = [*untold, *(["a tick"] if late else [])]
                    detail = f"for {self.plan.patience_s:g} s there was no: {', '.join(lacks)}"
                    self._found.append(Violation(STUCK, "", "", detail))
                    return True
            time.sleep(ROUND_S)
        return False

    def _end_schedule(self) -> None:
        """The masters end. One comes back, with an app that has no schedule: nothing is pushed any more."""
        if not self.plan.schedule:
            return
        self._has_schedule = False
        last, *others = self.conductor.masters
        for seat in (last, *others):
            seat.node.env.pop(SCHEDULE, None)
            seat.leaving = seat is not last
        lives = {seat: seat.node.pid for seat in self.conductor.masters}
        for seat in self.conductor.masters:
            seat.retire()

        def have_ended() -> bool:
            self.conductor.tick()
            return not any(seat.node.running and seat.node.pid == pid for seat, pid in lives.items())

        wait_until(have_ended, description="the masters with a schedule to end", timeout_s=180)

    def _end_deploy(self, began: float, stop: Callable[[], bool]) -> None:
        """Makes the deploy of the run, if it has not come yet, and pushes some of the newer version."""
        if self._deploy is None:
            return
        if not self._deploy.began:
            self._deploy.begin(self.conductor.workers, self.conductor.masters, producers_first=False)
        wanted = sum(message.version == NEWER for message in self.feeder.messages) + NEWER_AT_END
        until = time.monotonic() + self.plan.patience_s
        while sum(message.version == NEWER for message in self.feeder.messages) < wanted:
            if stop() or time.monotonic() > until:
                return
            self.conductor.tick()
            self._feed(began)
            time.sleep(ROUND_S)

    def _feed(self, began: float) -> None:
        plan = self.plan
        pushed = len(self.feeder.messages)
        room = plan.backlog - (pushed - self._settled())
        due = int(plan.rate * (time.monotonic() - began)) + 1 - pushed
        left = plan.messages - pushed if plan.messages else room
        count = min(room, due, left, 500)
        if count > 0:
            self.feeder.push(count)

    def _drain(self, stop: Callable[[], bool]) -> list[Violation]:
        """Pushes what is left, unless it is to stop, and waits until everything is settled; or says it is stuck."""
        looked = moved_at = time.monotonic()
        before: object = None
        said_at = moved_at
        while True:
            self.conductor.tick()
            if self.feeder.settle():
                left = 0 if stop() else max(0, self.plan.messages - len(self.feeder.messages))
                settled = self._settled()
                room = self.plan.backlog - (len(self.feeder.messages) - settled)
                if left > 0 and room > 0:
                    self.feeder.push(min(left, room, 500))
                if time.monotonic() - looked >= LOOK_EVERY_S:
                    looked = time.monotonic()
                    self._look()
                # Before the number of ticks is compared: some may have come since.
                self._look_at_ticks()
                busy = self._repartitions is not None and self._repartitions.busy
                now_at = (settled, self._repartitions.progress if self._repartitions else ())
                if not left and settled >= len(self.feeder.messages) + self.ticks.count and not busy:
                    return []
                if now_at != before:
                    before, moved_at = now_at, time.monotonic()
            now = time.monotonic()
            if now - said_at > 10:
                said_at = now
                self.say(f"            waiting for the end  {self._progress()}")
            if now - moved_at > self.plan.patience_s:
                return [Violation(STUCK, "", "", f"nothing moved for {self.plan.patience_s:g} s: {self._standstill()}")]
            time.sleep(ROUND_S)

    def _look(self) -> None:
        self.ledger.catch_up()
        self._look_at_ticks()
        try:
            for one in self._there():
                self._found += evidence.look(self.redis, one, self.feeder.messages, LOOK_AT, self.notes.taken)
        except UNAVAILABLE:
            return

    def _look_at_ticks(self) -> None:
        if self.plan.schedule:
            with suppress(*UNAVAILABLE):
                self.ticks.look()

    def _judge(self, stuck: list[Violation]) -> Result:
        plan = self.plan
        deadline = time.monotonic() + (0 if stuck else REST_WITHIN_S)
        while True:
            self.conductor.tick()
            live = [one.keys for one in self._lanes.there]
            left = {one: gone.rest for one, gone in self._lanes.left.items()}
            left |= {one: evidence.rest(self.redis, one.keys, live) for one in self._lanes.there}
            asking = any(operator.busy for operator in self.conductor.operators)
            if (all(map(_at_rest, left.values())) and not asking) or time.monotonic() > deadline:
                break
            time.sleep(ROUND_S)
        executions = self.ledger.executions()
        effects = evidence.effects(self.redis)
        self.ticks.learn([*effects, *executions])
        messages = [*self.feeder.messages, *self.ticks.messages()]
        told, lied = read_told(self.ledger_folder)
        # When a lease is lost, one message may be charged that had not begun.
        self.notes.kills += told.pop(LOST, 0)
        broken, letters, counts = list[Violation](), list[Letter](), dict[str, int]()
        judged: dict[Subscription, Evidence] = {}
        orders = {operator.keys: operator.notes for operator in self.conductor.operators}
        for one in self._lanes.every:
            dead = [*evidence.letters(self.redis, one.keys), *self._lanes.letters.get(one, {}).values()]
            own = orders.get(one.keys, Notes())
            notes = replace(
                self.notes, replayed=own.replayed, replays=own.replays, replays_in_doubt=own.replays_in_doubt
            )
            rows = (messages, executions, effects, dead, left[one], notes, plan.max_attempts)
            judged[one] = evidence_of(one, *rows, struck=one in self._struck)
            broken += check_all(judged[one])
            letters += dead
            for name, value in sorted(self._counts(one).items()):
                counts[one.label + name] = counts.get(one.label + name, 0) + int(value)
        for older, newer in chains(plan.subscriptions):
            broken += check_chain(judged[older], judged[newer])
        for before, after in layouts(self._lanes.every):
            broken += check_chain(together([judged[one] for one in before]), together([judged[one] for one in after]))
        several = bool(plan.subscriptions[0].label)
        if plan.app == APP:
            broken += check_states(effects, evidence.states(self.redis, several=several))
        broken += self.ticks.check()
        broken += [Violation("a lie was believed", "", "", line) for line in lied]
        ended = [Violation("ended by itself", "", "", line) for line in self.conductor.complaints()]
        return Result(
            # What is wrong in one version is seen over both, too.
            violations=list(dict.fromkeys([*stuck, *self._found, *broken, *ended])),
            messages=messages,
            executions=executions,
            effects=effects,
            letters=letters,
            faults=self.conductor.done,
            killed_by_tasks=sum(seat.killed_by_tasks for seat in self.conductor.workers),
            missed=self.conductor.missed,
            waits=waits(self.conductor.strandings, [row for struck in self._struck for row in struck.own(executions)]),
            leaderless_s=self.conductor.leaderless_s,
            answers=dict(sum((Counter(operator.answers) for operator in self.conductor.operators), Counter[str]())),
            repartitions=(self._repartitions.done, self._repartitions.killed) if self._repartitions else (0, 0),
            counts=counts,
            told=dict(told),
            ticks=len(self.ticks.messages()),
        )

    # -- details -----------------------------------------------------------------------------------------------------

    def _worker(self, name: str, pool: str) -> Seat:
        plan = self.plan
        size = () if pool == "solo" else (f"--concurrency={plan.concurrency}",)
        deaf = ("--without-heartbeat",) if name in plan.unheard else ()
        node = self.yard.worker(
            name,
            app=plan.app,
            arguments=("--pool", pool, *size, *deaf, *QUICK),
            env={**self._env(name), "CHAOS_POOL": pool},
            start=False,
        )
        seat = Seat(node, "worker", pool, self.notes, culprits=plan.culprits)
        seat.slots = plan.concurrency if pool != "solo" else 1
        seat.line = self._lines.get(name)
        return seat

    def _master(self, name: str) -> Seat:
        arguments = ("--http", f"{HOST}:{self._ports[name]}") if self.plan.http else ()
        node = self.yard.master(name, app=self.plan.app, arguments=arguments, env=self._env(name), start=False)
        seat = Seat(node, "master", "", self.notes)
        seat.line = self._lines.get(name)
        return seat

    def _http_consumer(self, name: str) -> Seat:
        lies = name == self.plan.cast.http[-1]
        slots = 1 if lies else self.plan.concurrency
        urls = [f"http://{HOST}:{port}" for port in self._ports.values()]
        command = python_module("tests.chaos.http_program", name, str(slots), "lies" if lies else "honest", *urls)
        env = {**broker_environment(self.server.url), **self._env(name), "CHAOS_POOL": "http"}
        log = self.plan.folder / f"{name}.log"
        node = self.yard.add(ProcessNode(name, command, log_file=log, env=env, cwd=ROOT), wait=False, start=False)
        seat = Seat(node, "HTTP consumer", "http", self.notes)
        seat.slots = slots
        return seat

    def _line(self, name: str) -> str:
        """A line of its own to the server; its URL."""
        port = free_port()
        command = python_module("tests.chaos.link", str(port), str(self.server.port))
        self._lines[name] = self.yard.process(f"line-{name}", command, ready_text=READY)
        return f"redis://{HOST}:{port}/0"

    def _env(self, name: str) -> dict[str, str]:
        plan = self.plan
        return {
            **(broker_environment(self._line(name)) if name in plan.cast.lined else {}),
            "CHAOS_LEDGER": str(self.ledger_folder),
            "CHAOS_LEASE": str(plan.lease_s),
            "CHAOS_LEADER_LEASE": str(plan.leader_lease_s),
            "CHAOS_BUNDLE_MS": str(plan.bundle_ms),
            "CHAOS_MAX_ATTEMPTS": str(plan.max_attempts),
            **environment(plan.subscriptions),
            **(follows(plan.subscriptions) if self._newer else {}),
            **self._schedule(),
            # What is in the old partitions stays until the run has looked at it.
            **({"CHAOS_RETENTION": "600"} if plan.repartitions else {}),
            **plan.env,
        }

    def _there(self) -> list[Subscription]:
        """The lanes that are there: in a run with a deploy, those of the newer version when a master has begun them."""
        if self._deploy is not None and self._deploy.began:
            self._begun |= {
                one for one in set(self.plan.subscriptions) - self._begun if evidence.begun(self.redis, one)
            }
        if self._lanes.older:
            return self._lanes.newest
        return [one for one in self.plan.subscriptions if one in self._begun]

    def _change(self, seat: Seat) -> None:
        """From its next life on the node runs the newer app, as do those that join from now on."""
        self._newer = True
        seat.node.env.update({**follows(self.plan.subscriptions), **self._schedule()})

    def _schedule(self) -> dict[str, str]:
        """The schedule of nodes that start now. It pushes to the newest version that their app has."""
        versions = sorted({one.version for one in self.plan.subscriptions})
        return schedule(versions[-1] if self._newer else versions[0]) if self._has_schedule else {}

    def _settled(self) -> int:
        """How many messages the subscription is done with that is behind most."""
        settled: Counter[str] = Counter()
        try:
            replays = {operator.keys: operator.notes.replays for operator in self.conductor.operators}
            there = [one for one in self._lanes.every if one not in self._lanes.left]
            # In one round trip: this is asked fifty times a second.
            with self.redis.pipeline(transaction=False) as pipe:
                for one in there:
                    pipe.hmget(one.keys.counts, SETTLED)
                rows = dict(zip(there, pipe.execute(), strict=True))
            for one in self._lanes.every:
                found = rows[one] if one in rows else map(self._lanes.left[one].counts.get, SETTLED)
                settled[one.name] += sum(int(count or 0) for count in found) - replays.get(one.keys, 0)
        except UNAVAILABLE:
            return 0
        return min(settled.values())

    def _counts(self, lane: Subscription) -> dict[str, str]:
        """What the lane has counted. Of one that is gone: until it was left."""
        if lane in self._lanes.left:
            return self._lanes.left[lane].counts
        found: Any = self.redis.hgetall(lane.keys.counts)
        return dict(found)

    def _switched(self) -> None:
        """The stream has another layout."""
        [struck] = [one for one in self._lanes.newest if (one.name, one.partition) == (self.struck.name, 0)]
        self._struck.append(struck)
        self.keys = struck.keys
        self.conductor.move_to(struck.keys)
        self.say(f"            the stream has {struck.partitions} partitions of generation {struck.generation}")

    def _closed(self, lanes: Sequence[Subscription]) -> None:
        """These lanes were left for good."""
        gone = {one.keys for one in lanes}
        for operator in self.conductor.operators:
            if operator.keys in gone:
                operator.end()
        self.say(f"            {len(gone)} lanes of older partitions were left")

    def _command(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self.plan.folder / "repartition.log").open("ab") as log:
            return subprocess.Popen(
                python_module("bridge", "-A", self.plan.app, "stream", "repartition", *words),
                env={**os.environ, **broker_environment(self.server.url), **self._env("command")},
                stdout=log,
                stderr=log,
            )

    def _progress(self) -> str:
        return f"pushed {len(self.feeder.messages):,}, settled {self._settled():,}"

    def _standstill(self) -> str:
        """The state of a lane that stands still, to find the cause."""
        records: Any = self.redis.hgetall(self.keys.tickets)
        pending: Any = self.redis.xpending(self.keys.stream, self.keys.group)
        live = [one.keys for one in self._lanes.there]
        rests = [evidence.rest(self.redis, keys, live) for keys in live]
        leases = list(self.redis.scan_iter(match=f"{self.keys.prefix}:lease:*"))
        return (
            f"{self._progress()}; {rests}; pending {pending}; "
            f"leader {self.redis.get(self.keys.leader)!r}; leases {len(leases)}; "
            f"seats {self.conductor.seats}; records {dict(list(records.items())[:5])}; logs in {self.plan.folder}"
        )


def _at_rest(rest: Rest) -> bool:
    return not (
        rest.unread
        or rest.pending
        or rest.records
        or rest.applied
        or rest.retries
        or rest.outcomes
        or rest.ownerless
        or rest.delayed
    )


def default_seed(name: str) -> int:
    """The seed in the environment variable ``name``, else a new one."""
    return int(os.environ.get(name) or time.time_ns() % 1_000_000)
