"""Local paths for Spark's readers. They read a path as a pattern, so a name with ``[1]`` would mean another file.

Only for reading: writers and checkpoints take a path literally.
"""

from __future__ import annotations

import re
from pathlib import Path

from bridge.routing.errors import InputError

_OF_PATTERNS = re.compile(r"([\[\]{}*?])")


def to_read(path: str | Path) -> str:
    """A path for a reader. A local path means exactly this file or folder; other file systems' paths are unchanged.

    Raises ``InputError`` for a backslash, which Hadoop always reads as an escape.
    """
    if "://" in str(path):
        return str(path)
    name = str(Path(path).resolve())
    if "\\" in name:
        raise InputError(f"a path with a backslash cannot be read by Spark: rename {path}")
    # With the scheme: without one, Spark uses its configured file system.
    return "file://" + _OF_PATTERNS.sub(r"\\\1", name)
