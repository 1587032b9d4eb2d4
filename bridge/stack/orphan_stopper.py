"""Ends a process group when the process that started it has ended, however that ended."""

from __future__ import annotations

import contextlib
import subprocess

# Waits for one line on its standard input. The line means that the group has ended. The end of the input without a line
# means that the writer has died: end the group, with SIGTERM first, so that the append-only file is complete.
_SCRIPT = """
read -r released && exit 0
kill -s TERM -- "-$1" 2>/dev/null || exit 0
for second in 1 2 3 4 5; do
  sleep 1
  kill -s 0 -- "-$1" 2>/dev/null || exit 0
done
kill -s KILL -- "-$1" 2>/dev/null
"""


class OrphanStopper:
    """A shell that ends a process group when the process that made it has ended."""

    def __init__(self, group_id: int) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "sh", str(group_id)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def release(self) -> None:
        """Ends only the shell. Call it as soon as the group has ended, before the kernel reuses its id."""
        if self._shell.stdin is None or self._shell.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            self._shell.stdin.write(b"released\n")
            self._shell.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            self._shell.stdin.close()
        self._shell.wait()
