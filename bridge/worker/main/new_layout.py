"""What a worker does when its stream has a new layout.

A pool process gets the shared pages of its worker's lanes when it is forked. So a worker cannot take up a lane while it
runs. When there are new partitions it does what Celery does at SIGHUP: a warm shutdown, in which running tasks are
finished, and then the same command line once more, in the same process (its id stays). A worker that a program or a
test started within its own process cannot do that: the command line is the program's. It goes on with the lanes that
it has, and logs that the program must start it again. Until then the old partitions stay.

The process may also end in another way than Celery's (`bridge.worker.main.forced_end`), or find that the server is away
when it has started again. It starts again in the first case too, and waits for the server in the second: nobody asked
the worker to stop.

When there are only fewer partitions, the worker leaves their lanes. Nothing of them is undone then.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.apps.worker import Worker
from celery.utils.log import get_logger
from celery.worker import state
from redis.exceptions import RedisError

from bridge.link.connections import client
from bridge.routing.errors import ConfigurationError
from bridge.routing.keys import layout_key
from bridge.routing.layouts import layout_of

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)

#: Seconds between two reads of the stored layout, and the timeout of one.
LAYOUT_S = 1.0
TIMEOUT_S = 2.0


class LayoutWatch:
    """Looks at the stored layout of the stream, on a thread of its own, and starts the worker again when it is new."""

    def __init__(
        self, app: Celery, worker: Any, *, leave: Callable[[frozenset[str]], None], begin_shutdown: Callable[[], None]
    ) -> None:
        """``worker``: Celery's. ``leave`` is called with streams whose lanes the worker shall leave, and
        ``begin_shutdown`` as at SIGTERM.
        """
        bridge = app.bridge
        self._leave = leave
        self._begin_shutdown = begin_shutdown
        self._url: str = bridge.settings.redis_url
        self._stream: str = bridge.settings.lane.stream
        self._streams: frozenset[str] = bridge.layout.all_streams(self._stream)
        self._text: str = bridge.layout.text
        self._is_program = can_start_again(worker)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to look. Does nothing when it has begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="bridge-layout", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread soon. The worker stops."""
        self._ended.set()

    def _run(self) -> None:
        with client(self._url, timeout_s=TIMEOUT_S) as redis:
            while not self._ended.wait(LAYOUT_S):
                try:
                    stored: Any = redis.get(layout_key(self._stream))
                except (RedisError, OSError):
                    # The lease's thread says what is wrong with the server.
                    continue
                text = stored.decode(errors="backslashreplace") if stored else ""
                if text not in ("", self._text):
                    self._text = text
                    self._take(text)

    def _take(self, text: str) -> None:
        try:
            streams = layout_of(text, self._stream).all_streams(self._stream)
        except ConfigurationError as exc:
            logger.error("going by the layout as it was: %s", exc)
            return
        if streams - self._streams:
            self._start_again(text)
        elif streams != self._streams:
            logger.info("the stream %s has a new layout, %s: leaving the old partitions", self._stream, text)
            self._leave(self._streams - streams)
            self._streams = streams

    def _start_again(self, text: str) -> None:
        if not self._is_program:
            logger.error(
                "the stream %s has a new layout, %s: this worker serves the old partitions alone; the program that "
                "started it must start it again",
                self._stream,
                text,
            )
            return
        logger.warning(
            "the stream %s has a new layout, %s: starting again, when the running tasks have ended", self._stream, text
        )
        if not self._ended.is_set():
            self._ended.set()
            start_again_at_end()
            self._begin_shutdown()
            state.should_stop = os.EX_OK


#: The process that shall become a worker again at its end.
_starts_again = 0
#: Environment variable of a process that has started again: its number.
STARTED_AGAIN = "BRIDGE_STARTED_AGAIN"
#: Where this process is by now: Celery has followed --workdir.
_FOLDER = str(Path.cwd())


def can_start_again(worker: Any) -> bool:
    """Whether ``worker`` (Celery's) is the program of this process. Called on the thread that runs it."""
    return isinstance(worker, Worker) and threading.current_thread() is threading.main_thread()


def start_again_at_end() -> None:
    """Makes this process a worker again when it ends, unless it is asked to stop."""
    global _starts_again
    _starts_again = os.getpid()


@signals.worker_shutting_down.connect(weak=False)  # type: ignore[untyped-decorator, unused-ignore]
def _asked_to_stop(**_: Any) -> None:
    # A worker that an operator stops stays stopped.
    global _starts_again
    _starts_again = 0


def has_started_again() -> bool:
    """Whether this process was the worker before, with another layout."""
    return os.environ.get(STARTED_AGAIN) == str(os.getpid())


def start_again() -> None:
    """Makes this process a worker again now, if it was to become one at its end. Else it does nothing."""
    if _starts_again == os.getpid():
        flush()
        if "CELERY_WORKDIR" in os.environ:
            os.environ["CELERY_WORKDIR"] = _FOLDER
        os.environ[STARTED_AGAIN] = str(os.getpid())
        words = command_line(with_script(sys.orig_argv[1:]), _FOLDER, is_root=os.geteuid() == 0)
        os.execv(sys.executable, [sys.executable, *words])  # noqa: S606


def flush() -> None:
    """Writes what this process has printed. What cannot be written is lost."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


def with_script(words: Sequence[str]) -> list[str]:
    """``words`` with the whole path of this process's script: Celery has left the folder that it was relative to."""
    found = list(words)
    script, file = sys.argv[0], getattr(sys.modules["__main__"], "__file__", None)
    # A program in a folder or in an archive has a file within it.
    if script in found and file is not None and Path(script).name == Path(file).name:
        found[found.index(script)] = str(Path(file).absolute())
    return found


def command_line(words: Sequence[str], folder: str, *, is_root: bool) -> list[str]:
    """``words``, as they are right in a process that has followed them.

    A relative --workdir has led to ``folder`` already. After --uid and --gid the process is not root any more, and
    cannot follow them once more.
    """
    found = list(words)
    for at in reversed(range(len(words))):
        name, joined, _ = words[at].partition("=")
        option = slice(at, at + (1 if joined else 2))
        if name == "--workdir":
            found[option] = [f"{name}={folder}"] if joined else [name, folder]
        elif name in ("--uid", "--gid") and not is_root:
            del found[option]
    return found


# Registered when the worker is set up, so before what its parts register: it is called last.
atexit.register(start_again)
