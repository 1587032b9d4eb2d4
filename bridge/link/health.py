"""The health file: the loop of a process touches it, and a supervisor checks its age.

The check is cheap, needs no server, and detects a loop that hangs. The state in Redis would not show that: another
master may lead, and a worker renews its lease from another thread.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from bridge.routing.errors import ConfigurationError

logger = logging.getLogger(__name__)

#: Least seconds between two touches. A supervisor must accept an age above 5 s, the loop's longest sleep.
EVERY_S = 1.0


class Health:
    """Touches ``file``; nothing, when that is None. Raises `ConfigurationError` when it cannot be made."""

    def __init__(self, file: str | None) -> None:
        self._file = file
        self._next = 0.0
        if file is None:
            return
        try:
            Path(file).touch()
        except OSError as exc:
            raise ConfigurationError(f"bridge_health_file: cannot write {file}: {exc.strerror}") from None

    def turn(self) -> None:
        """The loop turned."""
        if self._file is None or (now := time.monotonic()) < self._next:
            return
        self._next = now + EVERY_S
        try:
            os.utime(self._file)
        except FileNotFoundError:
            # The file was deleted: make it again.
            self._again()
        except OSError as exc:
            self._give_up(exc)

    def _again(self) -> None:
        try:
            Path(self._file or "").touch()
        except OSError as exc:
            self._give_up(exc)

    def _give_up(self, exc: OSError) -> None:
        logger.warning("bridge_health_file: cannot write %s any more: %s", self._file, exc.strerror)
        self._file = None
