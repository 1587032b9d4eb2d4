"""Ends processes that a task forked (``os.fork``) and that come back from the task's body.

Such a child raised, called ``sys.exit``, or returned. It would go on as a second pool process with the pipes of the
first one. It would run the first one's messages again, and take further ones.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn

from bridge.routing.text import safe_repr

logger = logging.getLogger(__name__)

#: Most characters of an exception in the log.
SHOWN_CHARS = 1000

#: How many forks this process is away from the first one. It is compared instead of the process id, which would cost a
#: system call.
fork_depth = 0


def _count() -> None:
    global fork_depth
    fork_depth += 1


os.register_at_fork(after_in_child=_count)


def exit_forked_child(task: str) -> NoReturn:
    """Ends this process, which ``task`` forked. The exit code is that of its ``sys.exit``, or else 1 with an error in
    the log.
    """
    exc = sys.exc_info()[1]
    code = exc.code if isinstance(exc, SystemExit) else 1
    if code is None:
        code = 0
    elif not isinstance(exc, SystemExit) or not isinstance(code, int):
        logger.error(
            "task %s forked, and the child process came back from the task%s: it ends here; end it with os._exit",
            task,
            f" with {safe_repr(exc, SHOWN_CHARS)}" if exc is not None else "",
        )
        code = 1
    with suppress(Exception):
        sys.stdout.flush()
    os._exit(code & 0xFF)
