"""The log lines of a master: one line for each message, which names the lane where a master stands for several.

A lane has threads of its own, whose names say which lane it is. So no part of a leader has to name its lane.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bridge.routing.text import printable

if TYPE_CHECKING:
    from bridge.app.lanes import AppLane

#: The name of a lane's thread begins with this, and goes on with the title of the lane.
PREFIX = "lane "
#: The form of a log line of a master.
FORMAT = "[%(asctime)s: %(levelname)s/%(name)s]%(lane)s %(message)s"


def name_thread(lane: AppLane) -> None:
    """Names this thread after ``lane``, unless it is the only lane that its app can have."""
    if lane.is_subscription or lane.partition is not None or lane.older:
        threading.current_thread().name = f"{PREFIX}{lane.title}"


@contextmanager
def thread_named(lane: AppLane) -> Iterator[None]:
    """Like `name_thread`, within the block."""
    thread = threading.current_thread()
    before = thread.name
    name_thread(lane)
    try:
        yield
    finally:
        thread.name = before


class OneLine(logging.Formatter):
    """Writes control characters out, but not in tracebacks. A producer chooses the names of tickets and tasks, and must
    not write lines of its own.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name of the standard library)
        return printable(super().formatMessage(record))


class LaneOfThread(logging.Filter):
    """Sets ``lane`` of a record: `` [billing on ticket_stream]``; empty outside of a lane's threads."""

    def filter(self, record: logging.LogRecord) -> bool:
        name = record.threadName or ""
        record.lane = f" [{name.removeprefix(PREFIX)}]" if name.startswith(PREFIX) else ""
        return True
