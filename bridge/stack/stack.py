"""The whole stack on one machine, as child processes: server, masters, workers, Flower.

- They start in the order of their dependencies. Each is ready when it does its work: the server answers, masters of
  this stack lead all lanes, each worker is registered with its process id, Flower answers HTTP.
- A child that ends unexpectedly is an error of the whole stack.
- They stop in the reverse order, since a process may need the others to finish.
- No child outlives this process (`bridge.stack.orphan_stopper.OrphanStopper`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson
from redis import Redis

from bridge.link.connections import client
from bridge.protocol.registration import read_registration
from bridge.routing.errors import ConfigurationError, InputError, PortInUse, StackFailed
from bridge.routing.leadership import read_token
from bridge.settings.lane import LaneSettings
from bridge.stack.child import Child, end_all
from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST, free_port, port_is_taken
from bridge.stack.stopping import StopRequest

#: Seconds that a process may take until it does its work. Generous: a small machine starts them all at once.
READY_TIMEOUT_S = 90.0
#: Flower's default columns lack the arguments, which hold the ticket.
FLOWER_COLUMNS = "name,uuid,state,args,received,runtime,worker"
#: Seconds between two questions whether Flower answers.
ASK_FLOWER_S = 0.25
#: The environment may name a proxy. It does not reach this machine's own address, or reaches its own machine there.
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Plan:
    """What a stack consists of."""

    #: The app's name, as for ``celery -A``.
    app: str
    #: The folder for logs and data; made when it does not exist.
    directory: Path
    workers: int = 3
    #: Processes of each worker.
    concurrency: int = 1
    masters: int = 2
    #: 0 takes a free one.
    port: int = 0
    flower: bool = True
    #: 0 takes a free one.
    flower_port: int = 0
    #: Whether the first master listens for HTTP consumers, at a free port of this machine.
    http: bool = False
    #: The subscriptions that the workers serve; empty: all.
    serve: tuple[str, ...] = ()
    #: On top of this process's environment, for masters and workers.
    env: Mapping[str, str] = field(default_factory=dict)


class Stack:
    """Starts, watches and stops the processes of a plan; a context manager that stops them."""

    def __init__(
        self,
        plan: Plan,
        lanes: Sequence[LaneSettings],
        stop: StopRequest,
        say: Callable[[str], None],
        *,
        lanes_on: Callable[[Redis], Sequence[LaneSettings]] | None = None,
    ) -> None:
        """`start` starts it. ``lanes``: those that its masters lead. ``say`` gets a line for each step. ``lanes_on``
        says what the lanes are by what the server has: the data of an earlier run may have another layout.
        """
        self.plan = plan
        self.lanes = tuple(lanes)
        self._lanes_on = lanes_on
        self.stop = stop
        self._say = say
        self.server = EmbeddedServer(
            port=plan.port, data_dir=plan.directory / "data", log_file=plan.directory / "server.log"
        )
        self.masters: list[Child] = []
        self.workers: dict[str, Child] = {}
        self.flower: Child | None = None
        self.flower_port = plan.flower_port
        self.http_port = 0
        #: What an HTTP consumer needs to call the port.
        self.http_token = secrets.token_urlsafe(24)
        self.jobs: list[Child] = []
        #: Other programs that work until the stack stops.
        self.programs: list[Child] = []
        #: Children that were stopped or killed on purpose.
        self._ended: set[Child] = set()
        self._redis: Redis | None = None
        self._serving = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- where things are --------------------------------------------------------------------------------------------

    @property
    def redis(self) -> Redis:
        """A client of the server, while it runs."""
        if self._redis is None:
            self._redis = client(self.server.url)
        return self._redis

    @property
    def flower_url(self) -> str:
        return f"http://{HOST}:{self.flower_port}"

    @property
    def http_url(self) -> str:
        """The address of the first master's port."""
        return f"http://{HOST}:{self.http_port}"

    @property
    def environment(self) -> dict[str, str]:
        """Where the children find the server: the project's own variable, and Celery's for any other app."""
        url = self.server.url
        where = {"BRIDGE_BROKER_URL": url, "CELERY_BROKER_URL": url, "CELERY_RESULT_BACKEND": url}
        # Without Flower, task events would cost time and have no reader.
        events = {} if self.plan.flower else {"BRIDGE_TASK_EVENTS": "0"}
        return {**events, **self.plan.env, **where}

    def worker_name(self, short: str) -> str:
        """The node name under which the lane knows a worker."""
        return f"{short}@{socket.gethostname()}"

    # -- start -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts everything; returns when all of it does its work.

        Raises `PortInUse`, `ServerStartFailed`, `StackFailed`, and `Stopped` when the user does not want it any more.
        """
        plan = self.plan
        if plan.flower and find_spec("flower") is None:
            raise ConfigurationError("Flower is not installed: pip install 'ticket-bridge[flower]', or add --no-flower")
        self._choose_ports()
        try:
            plan.directory.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise ConfigurationError(f"cannot make {plan.directory}: {exc.strerror}") from None
        self.server.start()
        self._serving = True
        self._say(f"server    {self.server.url}")
        if self._lanes_on is not None:
            self.lanes = tuple(self._lanes_on(self.redis))
        self.masters = [self._master(n) for n in range(1, plan.masters + 1)]
        for master in self.masters:
            master.start()
        self.wait_for(self._all_lanes_are_led, "a master to lead", READY_TIMEOUT_S)
        how = "one leads, the others stand by" if len(self.lanes) == 1 else f"they share {len(self.lanes)} lanes"
        self._say(f"masters   {plan.masters}: {how}")
        self.add_workers([f"w{n}" for n in range(1, plan.workers + 1)], wait=False)
        if plan.flower:
            self.flower = self._child(
                "flower",
                "celery",
                *("flower", f"--address={HOST}", f"--port={self.flower_port}", f"--tasks_columns={FLOWER_COLUMNS}"),
                log_level="WARNING",
            )
            self.flower.start()
        self.wait_for(self._workers_are_registered, "all workers to register", READY_TIMEOUT_S)
        self._say(f"workers   {', '.join(self.workers)}, {plan.concurrency} processes each")
        if plan.flower:
            self.wait_for(self._flower_answers, "Flower to answer", READY_TIMEOUT_S, poll_s=ASK_FLOWER_S)
            self._say(f"Flower    {self.flower_url}")

    def add_workers(self, names: Sequence[str], *, wait: bool = True) -> None:
        """Starts more workers."""
        for name in names:
            worker = self._child(
                name,
                "celery",
                *("worker", "-n", f"{name}@%h", "-c", str(self.plan.concurrency)),
                *(["-E"] if self.plan.flower else []),
                # At INFO Celery writes two lines for each message.
                log_level="WARNING",
            )
            self.workers[name] = worker
            worker.start()
        if wait:
            self.wait_for(self._workers_are_registered, f"{', '.join(names)} to register", READY_TIMEOUT_S)

    def start_job(self, name: str, module: str, *arguments: str, on_line: Callable[[str], None] | None = None) -> Child:
        """Starts a program that ends by itself, ``python -m module``."""
        job = Child(
            name,
            [sys.executable, "-m", module, *arguments],
            log_file=self.plan.directory / f"{name}.log",
            on_line=on_line,
        )
        self.jobs.append(job)
        job.start()
        return job

    def start_program(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> Child:
        """Starts a program that works until the stack stops. ``env``: on top of this process's environment."""
        program = Child(name, command, log_file=self.plan.directory / f"{name}.log", env=env)
        self.programs.append(program)
        program.start()
        return program

    # -- while it runs -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises `StackFailed` when a process ended that should run, and `InputError` when a job failed."""
        if self._serving and not self.server.running:
            raise StackFailed(f"the server ended; its log {self.server.log_file} ends with: {self.server.log_tail()}")
        for job in self.jobs:
            if job.exit_code:
                job.finished()
                last_line = job.log_tail(1).strip().removeprefix("error: ")
                raise InputError(f"{last_line} (said by the job {job.name}, see {job.log_file})")
        for child in [*self.masters, *self.workers.values(), *self.programs, *([self.flower] if self.flower else [])]:
            if child in self._ended or child.running or not child.pid:
                continue
            how = _how(child)
            raise StackFailed(f"{child.name} ended {how}; its log {child.log_file} ends with:\n{child.log_tail()}")

    def wait_for(
        self, predicate: Callable[[], bool], what: str, timeout_s: float | None = None, poll_s: float = 0.05
    ) -> None:
        """Waits, watching the processes. Raises `StackFailed` when the time is over, `Stopped` when asked to stop."""

        def look() -> bool:
            self.check()
            return predicate()

        if not self.stop.wait(look, timeout_s, poll_s):
            raise StackFailed(f"waited {timeout_s:g} s for {what}; the logs are in {self.plan.directory}")

    def kill_worker(self, name: str) -> int:
        """SIGKILL to the main process of a worker, as the kernel does it when memory is short; its process id.

        The pool processes end by themselves: Celery asks the kernel for that.
        """
        worker = self.workers[name]
        self._ended.add(worker)
        os.kill(worker.pid, signal.SIGKILL)
        return worker.pid

    # -- stop --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stops all processes. A process stops before the processes that it needs."""
        first = [*self.jobs, *self.programs, *([self.flower] if self.flower else [])]
        running = [*self.masters, *self.workers.values(), *first]
        if any(child.running for child in running):
            # Whatever becomes of the output, the processes stop in their order.
            with contextlib.suppress(OSError, ValueError):
                self._say("stopping …")
        self._ended.update(running)
        end_all(first, self.stop)
        end_all(list(self.workers.values()), self.stop)
        end_all(self.masters, self.stop)
        if self._redis is not None:
            self._redis.close()
            self._redis = None
        if self.stop.hurry:
            self.server.kill()
        self.server.close()

    # -- details -----------------------------------------------------------------------------------------------------

    def _master(self, number: int) -> Child:
        if number > 1 or not self.plan.http:
            return self._child(f"m{number}", "bridge", "run", log_level=None)
        token = {"name": "stack", "token": self.http_token, "verbs": ["consume"], "subscriptions": ["*"]}
        env = {"BRIDGE_HTTP_TOKENS": orjson.dumps([token]).decode()}
        return self._child("m1", "bridge", "run", "--http", f"{HOST}:{self.http_port}", log_level=None, env=env)

    def _child(
        self, name: str, module: str, *arguments: str, log_level: str | None, env: Mapping[str, str] | None = None
    ) -> Child:
        command = [sys.executable, "-m", module, "-A", self.plan.app, *arguments]
        if log_level is not None:
            command.append(f"--loglevel={log_level}")
        environment = {**self.environment, **(env or {})}
        return Child(name, command, log_file=self.plan.directory / f"{name}.log", env=environment)

    def _choose_ports(self) -> None:
        plan = self.plan
        for port, option in ((plan.port, "--port"), (plan.flower_port if plan.flower else 0, "--flower-port")):
            if port and port_is_taken(port):
                raise PortInUse(
                    f"port {port} on {HOST} is in use: stop what listens there, or choose another one with {option}"
                )
        if plan.flower and not self.flower_port:
            self.flower_port = free_port()
            while self.flower_port == plan.port:
                self.flower_port = free_port()
        if plan.http:
            self.http_port = free_port()
            while self.http_port in (plan.port, self.flower_port):
                self.http_port = free_port()

    def _all_lanes_are_led(self) -> bool:
        ours = tuple(f"{socket.gethostname()}:{master.pid}:" for master in self.masters)
        leaders: Any = self.redis.mget([lane.keys.leader for lane in self.lanes])
        return all(leader and read_token(leader).holder.startswith(ours) for leader in leaders)

    def _workers_are_registered(self) -> bool:
        running = {name: worker for name, worker in self.workers.items() if worker not in self._ended}
        return all(
            self._is_registered(name, worker.pid, lane)
            for name, worker in running.items()
            for lane in self.lanes
            if lane.group in self.plan.serve or not self.plan.serve
        )

    def _is_registered(self, name: str, pid: int, lane: LaneSettings) -> bool:
        found: Any = self.redis.hget(lane.keys.consumers, self.worker_name(name))
        registration = read_registration(found) if found else None
        if registration is None or registration.pid != pid:
            return False
        return bool(self.redis.exists(lane.keys.lease(registration.incarnation)))

    def _flower_answers(self) -> bool:
        try:
            with _DIRECTLY.open(f"{self.flower_url}/healthcheck", timeout=2.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def _how(child: Child) -> str:
    code = child.exit_code or 0
    return f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
