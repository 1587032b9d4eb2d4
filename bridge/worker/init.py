"""The first process of a container whose program is a worker: ``python -m bridge.worker.init celery -A APP worker …``.

When the first process of a container ends, the kernel kills all others. If the first process is the worker, the kernel
kills the watcher before it can write its death notice. A usual init is no help: it ends as soon as the worker has
ended. This init

- starts the worker, and passes on every signal that it gets;
- adopts processes that lost their parent, above all the watcher of a dead worker;
- ends when the worker *and* its watcher have ended. The watcher ends at the latest when the lease is over;
- exits with the worker's exit code, or with 128 plus the signal's number if a signal killed the worker.

It also works where it is not the first process (under another init, or in a container with several programs).
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
#: From linux/prctl.h: a descendant that loses its parent becomes a child of this process.
PR_SET_CHILD_SUBREAPER = 36
#: Signals that concern this process alone, or that cannot be caught.
OWN = {
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE,
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS,
}  # fmt: skip
#: Exit codes, as shells use them.
NOT_FOUND, CANNOT_RUN, KILLED = 127, 126, 128


def run(command: list[str]) -> int:
    """Runs ``command`` until it and its watcher have ended. Returns the exit code for this process."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    passed_on = signal.valid_signals() - OWN
    # Blocked until the worker's pid is known: a signal that came before could not be passed on.
    signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
    try:
        worker = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            setsigmask=[],
            # Python ignores these. The worker shall have their default actions.
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            # A process group of its own. Else a Ctrl-C on a terminal would reach the worker twice, from the terminal
            # and from this process, and the second one is a cold shutdown.
            setpgroup=0,
        )
    except OSError as exc:
        print(f"error: cannot start {command[0]}: {exc.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(exc, FileNotFoundError) else CANNOT_RUN
    for number in passed_on:
        # The C library reserves some signals.
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
            # The kernel may give its pid to another process now.
            worker = 0
    if code is None:
        return 1
    return KILLED - code if code < 0 else code


def _pass_on(worker: int, number: int) -> None:
    if worker:
        with suppress(ProcessLookupError):
            os.kill(worker, number)


def _has_watcher() -> bool:
    """Whether a watcher is a child of this process: its worker has ended, and the watcher still runs."""
    own = os.getpid()
    for entry in PROC.iterdir():
        if entry.name.isdigit() and parent_of(int(entry.name)) == own:
            with suppress(OSError):
                # The file is empty when the process has ended.
                if WATCHER in (entry / "cmdline").read_bytes().split(b"\0"):
                    return True
    return False


def main() -> None:
    """The program ``python -m bridge.worker.init COMMAND …``."""
    if len(sys.argv) < 2:
        print("error: which program? python -m bridge.worker.init celery -A APP worker -n NAME@%h", file=sys.stderr)
        raise SystemExit(2)
    raise SystemExit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
