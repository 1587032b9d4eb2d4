"""A sign of life for whoever supervises this process: a file that its loop touches as it turns.

Looking at the age of a file costs nothing, needs no server, and tells of a loop that hangs, which what is in Redis does
not: another master may lead meanwhile, and a worker's lease has a thread of its own.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from bridge.routing.errors import ConfigurationError

logger = logging.getLogger(__name__)

#: Seconds between two touches, at least. What looks at the file allows for the longest sleep of a loop, 5 s, and more.
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
            # Somebody tidied up.
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
