"""Output for people: one console and one progress display, for the commands of the bridge and the jobs of Spark.

It is in `routing` because `bridge` and `spark` both import this room, and no other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

#: Columns of a table that goes to a file or a pipe.
PIPE_WIDTH = 1000


def console(*, err: bool = False) -> Console:
    """A console that prints text unchanged: no markup, no highlighting, no emoji codes."""
    out = Console(stderr=err, markup=False, highlight=False, emoji=False)
    if not out.is_terminal:
        # Without a terminal, lines are not cut to a terminal's width.
        out = Console(stderr=err, markup=False, highlight=False, emoji=False, width=PIPE_WIDTH)
    return out


class Part(NamedTuple):
    """One line of a live display. With a ``total`` it has a bar. A display has the same parts all the time."""

    name: str
    text: str
    done: int = 0
    total: int | None = None


class ProgressDisplay:
    """Shows how far a job is: on a terminal a live display, elsewhere plain lines.

    - On a terminal each part is a line that is replaced in place and never wraps.
    - Elsewhere a line is printed when it differs from the last one, and at most every ``every_s`` seconds. The first
      one is printed after ``first_s`` seconds at the earliest, so that a short job prints none.
    - ``keep``: the live display stays on the terminal after `close`.
    """

    def __init__(self, out: Console, *, every_s: float = 0.0, first_s: float = 0.0, keep: bool = False) -> None:
        self._out = out
        self._every_s = every_s
        self._keep = keep
        self._live: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._last_line = ""
        self._print_at = time.monotonic() + first_s

    @property
    def is_live(self) -> bool:
        """Whether the output is a terminal."""
        return self._out.is_terminal

    def show(self, line: str, parts: Sequence[Part] = ()) -> None:
        """Shows ``line``; on a terminal ``parts`` in its place, if there are any."""
        if self.is_live:
            self._show_live(parts or (Part("", line),))
            return
        now = time.monotonic()
        if line != self._last_line and now >= self._print_at:
            self._last_line, self._print_at = line, now + self._every_s
            self._out.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Ends the live display. The next `show` begins a new one."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._last_line = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _show_live(self, parts: Sequence[Part]) -> None:
        if self._live is None:
            self._live = Progress(*_columns(parts), console=self._out, transient=not self._keep)
            self._tasks = {part.name: self._live.add_task(part.name, text=part.text) for part in parts}
            self._live.start()
        for part in parts:
            self._live.update(self._tasks[part.name], completed=part.done, total=part.total, text=part.text)


def _columns(parts: Sequence[Part]) -> list[ProgressColumn]:
    columns: list[ProgressColumn] = []
    if any(part.name for part in parts):
        columns.append(TextColumn("{task.description}", markup=False))
    if any(part.total is not None for part in parts):
        columns += [BarColumn(), TaskProgressColumn()]
    return [*columns, TextColumn("{task.fields[text]}", markup=False), TimeElapsedColumn()]
