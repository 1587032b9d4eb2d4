"""Forks of the process that has collected the tests (`tests.collected`): each is one of xdist's processes.

A fork has its own of what pytest's plugins keep for one process: the captured streams, the folder for temporary files,
the environment with the names of xdist.
"""

from __future__ import annotations

import atexit
import os
import random
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import pytest
import xdist.remote
from _pytest.tmpdir import TempPathFactory
from execnet import gateway_base

from bridge.testing.nodes import preloaded
from tests.scheduling import QUIET_NICENESS, is_quiet

#: How long a test may go on when the process that distributes them has ended, before it is interrupted, and then.
PATIENCE_S = (5, 10)


class Gateway(gateway_base.WorkerGateway):
    """The fork's end of its connection with xdist."""

    def __init__(self, reading: int, writing: int) -> None:
        model = gateway_base.get_execmodel("main_thread_only")
        # What would be executed by a new interpreter.
        with open(reading, "rb", buffering=0, closefd=False) as source:
            source.readline()
        io = gateway_base.Popen2IO(os.fdopen(writing, "w", 1), os.fdopen(reading, "r", 1), model)
        io.write(b"1")
        super().__init__(io=cast(gateway_base.IO, io), id="fork", _startcount=2)
        self.tasks: SimpleQueue[Any] = SimpleQueue()
        self.over = threading.Event()
        self._executetask_complete = None
        self._initreceive()

    def _local_schedulexec(self, channel: gateway_base.Channel, sourcetask: bytes) -> None:
        self.tasks.put((channel, gateway_base.loads_internal(sourcetask)))

    def _terminate_execution(self) -> None:
        """Called by the thread that receives, at the end of the connection."""
        self.tasks.put(None)
        if self.over.wait(PATIENCE_S[0]):
            return
        os.kill(os.getpid(), signal.SIGINT)
        if not self.over.wait(PATIENCE_S[1]):
            os._exit(1)

    def asked_for_tests(self) -> gateway_base.Channel | None:
        """The channel of xdist's own module. Other code, which tells about this process, is executed."""
        while (task := self.tasks.get()) is not None:
            channel, (source, *_) = task
            if "WorkerInteractor" in source:
                return channel  # type: ignore[no-any-return]
            self.executetask(task)
        return None


class Forks:
    """A plugin of the collecting process: instead of the tests' loop it forks, and the forks go on with that loop."""

    def __init__(self, config: pytest.Config, listening: socket.socket) -> None:
        self._config = config
        self._listening = listening
        self._gateway: Gateway | None = None
        self._channel: gateway_base.Channel | None = None
        self._connection: socket.socket | None = None
        self._failed: list[pytest.CollectReport] = []
        self._warnings: list[dict[str, Any]] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if self._gateway is None and not report.passed:
            self._failed.append(report)

    def pytest_warning_recorded(self, warning_message: Any, when: Any, nodeid: str, location: Any) -> None:
        if self._gateway is None:
            self._warnings.append(
                {"warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location}
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        capture: Any = self._config.pluginmanager.getplugin("capturemanager")
        # Forks would share the files that it writes to.
        capture.stop_global_capturing()
        streams = self._serve()
        if streams is None:
            return True
        capture.start_global_capturing()
        capture.suspend_global_capture()
        self._gateway = Gateway(*streams)
        self._channel = self._gateway.asked_for_tests()
        if self._channel is None:
            return True
        worker = self._worker(self._channel)
        worker.pytest_sessionstart(session)
        worker.pytest_collection()
        for report in self._failed:
            worker.pytest_collectreport(report)
        if worker.workerid == "gw0":
            for warning in self._warnings:
                worker.pytest_warning_recorded(**warning)
        worker.pytest_collection_finish(session)
        return bool(worker.pytest_runtestloop(session))

    def _worker(self, channel: gateway_base.Channel) -> xdist.remote.WorkerInteractor:
        """Does in this fork what xdist's module does in a new interpreter."""
        given, _, options, path = channel.receive()
        if path is not None:
            sys.path[:] = path
        os.environ["PYTEST_XDIST_TESTRUNUID"] = given["testrunuid"]
        os.environ["PYTEST_XDIST_WORKER"] = given["workerid"]
        os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(given["workercount"])
        if is_quiet(int(given["workerid"].removeprefix("gw")), given["workercount"]):
            os.nice(QUIET_NICENESS)
        preloaded.take_environment()
        config: Any = self._config
        config.workerinput.update(given)
        config._parser.prog = Path(given["mainargv"][0]).name
        config.option.basetemp = options.get("basetemp")
        config._tmp_path_factory = TempPathFactory.from_config(config, _ispytest=True)
        random.seed()
        worker = xdist.remote.WorkerInteractor(config, channel)
        # A name of its module, which one of its methods reads.
        vars(xdist.remote)["interactor"] = worker
        return worker

    def _serve(self) -> tuple[int, int] | None:
        """Forks until standard input ends. Returns only then, and in each fork with its two streams."""
        assert threading.active_count() == 1, threading.enumerate()
        poll = select.poll()
        for number in (0, self._listening.fileno()):
            poll.register(number, select.POLLIN | select.POLLHUP)
        while True:
            ready = {number for number, _ in poll.poll()}
            if 0 in ready:
                return None
            connection, _ = self._listening.accept()
            _, streams, _, _ = socket.recv_fds(connection, 16, 3)
            if os.fork() == 0:
                self._connection = connection
                self._listening.close()
                devnull = os.open(os.devnull, os.O_RDONLY)
                os.dup2(devnull, 0)
                os.close(devnull)
                return streams[0], streams[1]
            connection.close()
            for stream in streams:
                os.close(stream)

    def end(self) -> None:
        """Ends this process: a fork as an interpreter ends, but for taking its modules apart."""
        if self._gateway is None:
            return
        if self._channel is not None:
            self._channel.close()
        self._gateway.over.set()
        self._gateway.join()
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stderr.flush()
        assert self._connection is not None
        self._connection.close()
        os._exit(0)
