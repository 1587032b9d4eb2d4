"""The main process's handle of its watcher (`bridge.worker.guard.watcher`): starts it, restarts it, and ends it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.worker.guard.watcher import ANNOUNCED_END, WatcherConfig

if TYPE_CHECKING:
    from bridge.settings.lane import LaneSettings
    from bridge.worker.guard.shared_page import SharedPage

logger = get_logger(__name__)

#: The folder that contains the package `bridge`, for the watcher's PYTHONPATH: the worker may have found it otherwise.
_HOME = str(Path(__file__).absolute().parents[__name__.count(".")])


class WatcherProcess:
    """Must be made before the pool forks, so that every pool child holds the writing end of the pipe.

    The main process also keeps the reading end. So it can start a new watcher on the same pipe when one was killed.
    """

    def __init__(self, url: str, lane: LaneSettings, name: str, shared: SharedPage) -> None:
        self._url = url
        self._lane = lane
        self._name = name
        self._shared = shared
        self._reading, self._writing = os.pipe()
        self._process: subprocess.Popen[bytes] | None = None
        self._warned = False

    def ensure(self) -> None:
        """Starts a watcher when none is running. Called at start and with each renewal of the lease."""
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
            page=self._shared.fd,
            url=self._url,
            stream=self._lane.stream,
            group=self._lane.group,
            name=self._name,
            lease=self._lane.lease,
        )
        path = os.pathsep.join(filter(None, (_HOME, os.environ.get("PYTHONPATH"))))
        process = subprocess.Popen(
            # The name is shown in lists of processes.
            [sys.executable, "-m", "bridge.worker.guard.watcher", self._name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(self._reading, self._shared.fd),
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
