"""A check that Spark does not make: whether a quote of a CSV is never closed.

Spark would take the rest of such a file for one cell, in silence.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
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


def refuse_unclosed(path: Path) -> None:
    """Raises ``InputError`` for a local CSV with a quote that is never closed. Reads the file once."""
    if path.suffix.lower() in _PACKED:
        return
    try:
        at = _unclosed(path)
        if at is None:
            return
        line = 1 + _line_breaks(path, at)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        # Spark says what is wrong with it.
        return
    raise InputError(
        f"the quote that begins a cell in line {line} of {path} is never closed: all that follows would be one cell"
    )


def _unclosed(path: Path) -> int | None:
    """Where the quote is that is never closed; None: there is none.

    A quote opens a cell only as its first character. Two quotes in a cell are one of its characters: here the first one
    closes the cell, and the second one opens it again.
    """
    inside, opened, closed = False, 0, -2
    start, before = 0, b"\n"
    for piece in _pieces(path):
        found = piece.find(b'"')
        while found >= 0:
            at = start + found
            if inside:
                inside, closed = False, at
            elif at == closed + 1:
                inside = True
            elif (piece[found - 1 : found] or before) in _BEFORE_CELL:
                inside, opened = True, at
            found = piece.find(b'"', found + 1)
        start, before = start + len(piece), piece[-1:]
    return opened if inside else None


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
        first = file.read(len(_MARK))
        if first != _MARK:
            yield first
        while piece := file.read(PIECE):
            yield piece
