"""The main process's handle of its watcher (`bridge.worker.guard.watcher`): starts it, restarts it, and ends it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from celery.utils.log import get_logger

from bridge.worker.guard.watcher import ANNOUNCED_END, WatchedConfig, WatcherConfig

if TYPE_CHECKING:
    from bridge.settings.lane import LaneSettings
    from bridge.worker.guard.shared_page import SharedPage

logger = get_logger(__name__)

#: The folder that contains the package `bridge`, for the watcher's PYTHONPATH: the worker may have found it otherwise.
_HOME = str(Path(__file__).absolute().parents[__name__.count(".")])


class WatchedLane(NamedTuple):
    """A lane in which the worker has a lease."""

    lane: LaneSettings
    shared: SharedPage


class WatcherProcess:
    """Must be made before the pool forks, so that every pool child holds the writing end of the pipe.

    The main process also keeps the reading end. So it can start a new watcher on the same pipe when one was killed.
    """

    def __init__(self, url: str, lanes: Sequence[WatchedLane], name: str) -> None:
        self._url = url
        self._lanes = lanes
        self._name = name
        #: Held while a watcher is started: each lane's lease has a thread of its own.
        self._starting = threading.Lock()
        self._reading, self._writing = os.pipe()
        self._process: subprocess.Popen[bytes] | None = None
        self._warned = False

    def ensure(self) -> None:
        """Starts a watcher when none is running. Called at start and with each renewal of the lease."""
        with self._starting:
            self._ensure()

    def _ensure(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        if self._process is not None:
            logger.warning("the watcher of %s ended with %d: starting another", self._name, self._process.returncode)
        try:
            self._process = self._start()
        except OSError as exc:
            if not self._warned:
                self._warned = True
                logger.warning("cannot start a watcher, a crash will be noticed when the lease is over: %s", exc)

    def _start(self) -> subprocess.Popen[bytes]:
        config = WatcherConfig(
            pipe=self._reading,
            url=self._url,
            name=self._name,
            lanes=[WatchedConfig(shared.fd, lane.stream, lane.group, lane.lease) for lane, shared in self._lanes],
        )
        path = os.pathsep.join(filter(None, (_HOME, os.environ.get("PYTHONPATH"))))
        process = subprocess.Popen(
            # The name is shown in lists of processes.
            [sys.executable, "-m", "bridge.worker.guard.watcher", self._name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(self._reading, *(one.shared.fd for one in self._lanes)),
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert process.stdin is not None
        # Not on the command line: the URL may hold a password.
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(config.text())
        return process

    def end(self) -> None:
        """Announces that the worker ends by itself, so that the watcher gives no notice. May be called twice."""
        if self._writing < 0:
            return
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._writing, ANNOUNCED_END)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=1.0)
        os.close(self._writing)
        os.close(self._reading)
        self._writing = self._reading = -1
