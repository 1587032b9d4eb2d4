"""Logs each message that has become a dead letter; of very many, a part.

The first ones within `EVERY_S` seconds get a line each, the others one line with their number. No line has a payload or
the text of an error, which may have parts of it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.routing.text import one_line

if TYPE_CHECKING:
    from bridge.routing.batch import Batch, DeadLetter
    from bridge.routing.transitions import Advanced

logger = get_logger(__name__)

#: Length of the interval, in seconds, and the lines that it has at most.
EVERY_S = 10.0
LINES = 5


class DeadLog:
    """The log lines about dead letters of one term, on the leader's thread."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._lines = 0
        self._others = 0

    def settled(self, _done: Advanced, batch: Batch) -> None:
        """Logs the letters that a batch wrote."""
        for letter in batch.dead:
            if self._lines >= LINES or self._others:
                self.look()
            if self._lines < LINES:
                if not self._lines:
                    self._began = time.monotonic()
                self._lines += 1
                logger.warning("%s", _line(letter))
            else:
                self._others += 1

    def look(self) -> None:
        """Ends the interval when it is over."""
        if time.monotonic() - self._began < EVERY_S:
            return
        self.close()
        self._lines = 0

    def close(self) -> None:
        """Logs the number now: nobody looks for minutes, or never again. More letters may follow."""
        if self._others:
            logger.warning("%d more messages are dead (`bridge dead list`)", self._others)
        self._others = 0


def _line(letter: DeadLetter) -> str:
    fields = {str(name): value for name, value in zip(letter.fields[::2], letter.fields[1::2], strict=True)}
    ticket, task = fields.get("ticket_id"), fields.get("task")
    which = "" if ticket is None else f" of ticket {one_line(str(ticket), 100)}"
    runs = "" if task is None else f", task {one_line(str(task), 100)}"
    return f"message {letter.message_id}{which}{runs} is dead: {one_line(str(fields.get('reason', '')), 200)}"
