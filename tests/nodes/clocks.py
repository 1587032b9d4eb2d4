"""Wall clocks that a test sets while its processes run: a preloaded library adds to the real time."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

SOURCE = Path(__file__).with_name("stepped.c")


@cache
def library() -> Path:
    """Builds the library that is preloaded. Skips the test without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler, and so no clock to set: install gcc")
    built = Path(mkdtemp(prefix="ticket-bridge-clock-")) / "stepped.so"
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-o", str(built), str(SOURCE), "-ldl"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"the C compiler cannot build {SOURCE.name}: {done.stderr.strip()}")
    return built


class SettableClock:
    """The wall clock of the processes that are started with `env`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = folder / f"{name}.clock"
        self._file.write_bytes(bytes(8))
        self.env = {"LD_PRELOAD": str(library()), "STEPPED_BY": str(self._file)}
        descriptor = os.open(self._file, os.O_RDWR)
        self._page = mmap.mmap(descriptor, 8)
        os.close(descriptor)

    @property
    def ahead_s(self) -> float:
        """By how many seconds it is ahead of this machine's."""
        return float(struct.unpack("q", self._page[:])[0]) / 1e6

    def set(self, ahead_s: float) -> None:
        """Sets it for all its processes at once."""
        self._page[:] = struct.pack("q", int(ahead_s * 1e6))

    def program(self, binary: Path) -> Path:
        """A program that runs ``binary`` by this clock."""
        path = self._file.with_suffix(".run")
        variables = " ".join(f"{name}='{value}'" for name, value in self.env.items())
        path.write_text(f"#!/bin/sh\nexec env {variables} '{binary}' \"$@\"\n")
        path.chmod(0o755)
        return path
