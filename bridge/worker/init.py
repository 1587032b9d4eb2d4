"""The first process of a container whose program is a worker: ``python -m bridge.worker.init celery -A APP worker …``.

The kernel ends every process of a container with its first one. If that is the worker, its watcher dies with it, before
it can give notice of the death; a plain init ends as soon as the worker has, which is too soon, too. This one

- starts the worker, and sends it every signal that it gets itself;
- takes up whatever lost its parent, the watcher of a dead worker above all;
- ends when the worker has ended *and* its watcher has said what it had to say, which is when the lease is over at the
  latest; with the worker's exit code, 128 and the signal's number for one that was killed.

It does the same where it is not the first process (under another init, or in a container with several).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

from bridge.worker.guard.processes import PROC, parent_of

#: What a watcher's command line holds: see `bridge.worker.guard.watcher_process`.
WATCHER = b"bridge.worker.guard.watcher"
#: From linux/prctl.h: what loses its parent becomes a child of this process.
PR_SET_CHILD_SUBREAPER = 36
#: Signals that are about this process, or cannot be caught.
OWN = {
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE,
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS,
}  # fmt: skip
#: As shells have it.
NOT_FOUND, CANNOT_RUN, KILLED = 127, 126, 128


def run(command: list[str]) -> int:
    """Runs ``command`` to its end and its watcher's; the exit code for this process."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    passed_on = signal.valid_signals() - OWN
    # None may come between the start of the worker and the note of its number.
    signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
    try:
        worker = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            setsigmask=[],
            # What Python ignores, the worker is to find as usual.
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            # Of its own, so that Ctrl-C on a terminal comes once: a second one would end a worker cold.
            setpgroup=0,
        )
    except OSError as exc:
        print(f"error: cannot start {command[0]}: {exc.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(exc, FileNotFoundError) else CANNOT_RUN
    for number in passed_on:
        # Some belong to the C library.
        with suppress(OSError, ValueError):
            signal.signal(number, lambda number, _frame: _pass_on(worker, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
    code: int | None = None
    while code is None or _has_watcher():
        try:
            ended, status = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if ended == worker:
            code = os.waitstatus_to_exitcode(status)
            # Its number may become another's.
            worker = 0
    if code is None:
        return 1
    return KILLED - code if code < 0 else code


def _pass_on(worker: int, number: int) -> None:
    if worker:
        with suppress(ProcessLookupError):
            os.kill(worker, number)


def _has_watcher() -> bool:
    """Whether a watcher is a child of this process: its worker has ended, and it has not."""
    own = os.getpid()
    for entry in PROC.iterdir():
        if entry.name.isdigit() and parent_of(int(entry.name)) == own:
            with suppress(OSError):
                # Of a process that has ended it is empty.
                if WATCHER in (entry / "cmdline").read_bytes().split(b"\0"):
                    return True
    return False


def main() -> None:
    """What ``python -m bridge.worker.init COMMAND …`` does."""
    if len(sys.argv) < 2:
        print("error: which program? python -m bridge.worker.init celery -A APP worker -n NAME@%h", file=sys.stderr)
        raise SystemExit(2)
    raise SystemExit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
