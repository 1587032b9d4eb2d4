"""How much memory Spark takes while something runs: Java, and its Python workers."""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

import psutil

#: Seconds between two looks.
_LOOK_S = 0.1
_MIB = 2**20


class Peaks:
    """The largest memory of this process's Java, and of all its Python workers together, while ``with`` runs.

    Counted is what is a process's own: workers are forked from one daemon, whose pages they share.
    """

    def __init__(self) -> None:
        #: In bytes.
        self.java = self.python = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __str__(self) -> str:
        return f"Java {self.java / _MIB:,.0f} MiB, Python workers {self.python / _MIB:,.0f} MiB"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            java = python = 0
            for process in psutil.Process().children(recursive=True):
                # A worker may end while it is looked at.
                with suppress(psutil.Error):
                    name, own = process.name(), process.memory_full_info().uss
                    java += own if "java" in name else 0
                    python += own if "python" in name else 0
            self.java, self.python = max(self.java, java), max(self.python, python)
