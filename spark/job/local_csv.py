"""Local CSVs, before Spark reads them: the header, and what Spark does not check.

A quote may never be closed, and lines may end in several ways.
Spark would take the rest of a file with such a quote for one cell, in silence. It takes the first line end of a file
for that of all lines, so the carriage return of a later one would be a part of a cell: another ticket.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO, cast

from bridge.routing.errors import InputError

#: Bytes that are read at once.
PIECE = 1 << 20
#: Names of files that are not text, and that are not unpacked here.
_PACKED = (".bz2", ".zst", ".deflate", ".snappy", ".lz4")
_MARK = b"\xef\xbb\xbf"
#: Bytes after which a cell begins.
_BEFORE_CELL = b",\r\n"
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class _Flaws:
    """Places of what is wrong with a CSV; None: nothing is."""

    unclosed: int | None
    #: The first line end of another kind than the first one of the file.
    other_end: int | None


def is_searched(path: Path) -> bool:
    """Whether a local file can be read here."""
    return path.suffix.lower() not in _PACKED


def header_of(path: Path) -> list[str] | None:
    """The names of the columns; None: they cannot be read here, or there is no row. Bytes that are not UTF-8 become
    U+FFFD.
    """
    if not is_searched(path):
        return None
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as opened:
            lines = TextIOWrapper(cast("BinaryIO", opened), "utf-8-sig", "replace", newline="")
            return next(filter(None, csv.reader(lines)), None)
    except (OSError, EOFError, zlib.error, csv.Error):
        # Spark says what is wrong with it.
        return None


def refuse_flaws(path: Path) -> None:
    """Raises ``InputError`` for a local CSV with a quote that is never closed, or with lines that end in several ways.

    Reads the file once.
    """
    if not is_searched(path):
        return
    try:
        found = _flaws(path)
        at = found.other_end if found.unclosed is None else found.unclosed
        if at is None:
            return
        line = 1 + _line_breaks(path, at)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        # Spark says what is wrong with it.
        return
    if found.unclosed is None:
        raise InputError(
            f"line {line} of {path} does not end as the first line break of the file: give all lines one end (dos2unix)"
        )
    raise InputError(
        f"the quote that begins a cell in line {line} of {path} is never closed: all that follows would be one cell"
    )


def _flaws(path: Path) -> _Flaws:
    """What is wrong with a file.

    A quote opens a cell only as its first character. Two quotes in a cell are one of its characters: here the first one
    closes the cell, and the second one opens it again.
    """
    inside, opened, closed = False, 0, -2
    start, before = 0, b"\n"
    end: bytes | None = None
    other: int | None = None
    for piece in _pieces(path):
        if end is None and (first := _LINE_END.search(piece)):
            # Also within quotes: Spark does not look at them here.
            end = first[0]
        looks = other is None and _other_end(piece, end, 0, len(piece)) is not None
        outside = 0
        found = piece.find(b'"')
        while found >= 0:
            at = start + found
            if looks and not inside and other is None:
                other = _other_end(piece, end, outside, found, start)
            outside = found + 1
            if inside:
                inside, closed = False, at
            elif at == closed + 1:
                inside = True
            elif (piece[found - 1 : found] or before) in _BEFORE_CELL:
                inside, opened = True, at
            found = piece.find(b'"', found + 1)
        if looks and not inside and other is None:
            other = _other_end(piece, end, outside, len(piece), start)
        start, before = start + len(piece), piece[-1:]
    return _Flaws(opened if inside else None, other)


def _other_end(piece: bytes, end: bytes | None, first: int, last: int, start: int = 0) -> int | None:
    """Where the first line end is that is not ``end``, from ``first`` to before ``last``. ``start``: the place of the
    piece.
    """
    lf, cr, both = (piece.count(each, first, last) for each in (b"\n", b"\r", b"\r\n"))
    # To count is faster than to look at each line.
    if not any(count for kind, count in ((b"\n", lf - both), (b"\r", cr - both), (b"\r\n", both)) if kind != end):
        return None
    return start + next(found.start() for found in _LINE_END.finditer(piece, first, last) if found[0] != end)


def _line_breaks(path: Path, until: int) -> int:
    """The number of line breaks before a place in the text."""
    breaks = 0
    for piece in _pieces(path):
        breaks += piece[:until].count(b"\n")
        until -= len(piece)
        if until <= 0:
            break
    return breaks


def _pieces(path: Path) -> Iterator[bytes]:
    """The text, unpacked, without its byte order mark."""
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as opened:
        file = cast("BinaryIO", opened)
        piece = file.read(len(_MARK)).removeprefix(_MARK) or file.read(PIECE)
        while piece:
            # A line end of two characters is in one piece.
            while piece.endswith(b"\r") and (more := file.read(1)):
                piece += more
            yield piece
            piece = file.read(PIECE)
