"""Whether a child process has ended, without giving its number away.

`subprocess.Popen.poll` reaps a process that has ended. From then on the kernel may give its number to another process,
and a signal for the rest of its group may reach that one. A process that is not reaped keeps its number.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any


def exit_code_of(process: subprocess.Popen[Any]) -> int | None:
    """None before its end; negative: the signal that ended it. It stays a zombie until it is waited for."""
    if process.returncode is not None:
        return process.returncode
    try:
        end = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        # Where SIGCHLD is ignored, the kernel reaps it at once. In a fork it is the child of another process.
        return process.poll()
    if end is None:
        return None
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
