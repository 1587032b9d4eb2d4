"""What a task that forks leaves behind: the copy of its process must not go on as a worker.

A child of ``os.fork`` that comes back from the task's body, as one that raises or calls ``sys.exit`` does, is a second
pool process with the first one's pipes. It would run the messages that the first one has, and take further ones.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn

logger = logging.getLogger(__name__)

#: How many forks are between this process and the one that began. To ask for the process id costs a call of the kernel.
fork_depth = 0


def _count() -> None:
    global fork_depth
    fork_depth += 1


os.register_at_fork(after_in_child=_count)


def exit_forked_child(task: str) -> NoReturn:
    """Ends this process, which ``task`` made and which came back from its body; with the code of its ``sys.exit``, else
    with 1 and a line that says so.
    """
    exc = sys.exc_info()[1]
    code = exc.code if isinstance(exc, SystemExit) else 1
    if code is None:
        code = 0
    elif not isinstance(exc, SystemExit) or not isinstance(code, int):
        logger.error(
            "task %s forked, and the copy of its process came back from it%s: it ends here; end it with os._exit",
            task,
            f" with {exc!r}" if exc is not None else "",
        )
        code = 1
    with suppress(Exception):
        sys.stdout.flush()
    os._exit(code & 0xFF)
