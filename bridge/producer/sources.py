"""Reads a file of rows as numbered lines of text: a file or standard input, plain or gzipped.

Memory is bounded: a line that is longer than any row may be is refused, and not read whole.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from bridge.routing.errors import InputError

STDIN = "-"
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


class Source:
    """An open file of rows. ``name``: its name in errors."""

    def __init__(self, name: str, raw: BinaryIO, data: BinaryIO, size: int | None) -> None:
        self.name = name
        self._raw = raw
        self._data = data
        #: Size of the file on disk in bytes (compressed, if it is gzipped); None if it is no regular file.
        self.size = size
        #: Number of the last line that was read, from 1.
        self.line = 0

    @property
    def position(self) -> int:
        """How many of the ``size`` bytes were read."""
        return self._raw.tell() if self.size is not None else 0

    def lines(self, longest: int) -> Iterator[str]:
        """The lines, with their line ends. Raises `InputError` for a line over ``longest`` bytes, or not in UTF-8."""
        while True:
            try:
                raw = self._data.readline(longest + 1)
            except EOFError:
                raise self.refusal("the gzip data ends too early: the file is not complete", after=True) from None
            except (gzip.BadGzipFile, zlib.error) as exc:
                raise self.refusal(f"the gzip data is damaged: {exc}", after=True) from None
            except OSError as exc:
                raise self.refusal(f"cannot be read: {exc.strerror}", after=True) from None
            if not raw:
                return
            self.line += 1
            if len(raw) > longest:
                raise self.refusal(f"the line is longer than {longest} bytes, more than any row may have")
            if self.line == 1:
                raw = raw.removeprefix(_BOM)
            try:
                text = raw.decode()
            except UnicodeDecodeError as exc:
                column = len(raw[: exc.start].decode()) + 1
                raise self.refusal(
                    f"not UTF-8: byte 0x{raw[exc.start]:02x}; convert the file, for example with iconv", column=column
                ) from None
            yield text

    def refusal(
        self, problem: str, *, line: int | None = None, column: int | None = None, after: bool = False
    ) -> InputError:
        """An error with its position: ``file:line:column: problem``. ``after``: it lies after the last line read."""
        if after:
            return InputError(f"{self.name}: {problem} (after line {self.line})")
        where = f"{self.name}:{self.line if line is None else line}"
        return InputError(f"{where}{'' if column is None else f':{column}'}: {problem}")


class Fingerprint:
    """Tells whether a file is still the one that was checked."""

    def __init__(self, path: str) -> None:
        found = Path(path).stat()
        self._of = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fingerprint) and self._of == other._of

    __hash__ = None  # type: ignore[assignment]  # compared, never kept


def readable_twice(path: str) -> bool:
    """Whether ``path`` is a regular file, which can be checked before it is used. Raises `InputError`."""
    if path == STDIN:
        return False
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (OSError, ValueError) as exc:
        raise InputError(f"cannot read {path!r}: {getattr(exc, 'strerror', exc)}") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{path} is a folder: name a file in it")
    return stat.S_ISREG(mode)


@contextmanager
def opened(path: str) -> Iterator[Source]:
    """The source at ``path``. Raises `InputError` when it cannot be opened."""
    if path == STDIN:
        if sys.stdin is None:
            raise InputError("standard input is closed: name a file, or send the rows into the command")
        raw = cast("BinaryIO", sys.stdin.buffer)
        name, size = "standard input", None
    else:
        try:
            raw = Path(path).open("rb")  # noqa: SIM115 (closed below)
            mode = os.fstat(raw.fileno())
        except FileNotFoundError:
            raise InputError(f"there is no file {path}") from None
        except OSError as exc:
            raise InputError(f"cannot read {path}: {exc.strerror}") from None
        name, size = path, mode.st_size if stat.S_ISREG(mode.st_mode) else None
    try:
        yield Source(name, raw, _unzipped(name, raw), size)
    finally:
        if path != STDIN:
            raw.close()


def _unzipped(name: str, raw: BinaryIO) -> BinaryIO:
    if not hasattr(raw, "peek"):
        # A program that calls this code may have replaced standard input.
        raw = cast("BinaryIO", io.BufferedReader(cast("io.RawIOBase", raw)))
    try:
        # `peek` does not consume the bytes, so this works for a pipe too.
        start = cast("io.BufferedReader", raw).peek(2)[:2]
    except OSError as exc:
        raise InputError(f"cannot read {name}: {exc.strerror}") from None
    if start == _GZIP:
        return cast("BinaryIO", io.BufferedReader(gzip.GzipFile(fileobj=raw), 256 * 1024))
    if name.lower().endswith(".gz"):
        raise InputError(f"{name}: named .gz, but it is not gzip data: rename it, or compress it")
    return raw
