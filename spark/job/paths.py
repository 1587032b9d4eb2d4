"""Local paths for Spark's readers, which take a path for a pattern: of a name with ``[1]`` in it, another file's.

Only for reading. Writers, checkpoints among them, take a path as it is.
"""

from __future__ import annotations

import re
from pathlib import Path

from bridge.routing.errors import InputError

_OF_PATTERNS = re.compile(r"([\[\]{}*?])")


def to_read(path: str | Path) -> str:
    """A path for a reader: of a local one exactly this file or folder; one of another file system as it is.

    Raises ``InputError`` for a backslash, which Hadoop takes for an escape even where it is escaped itself.
    """
    if "://" in str(path):
        return str(path)
    name = str(Path(path).resolve())
    if "\\" in name:
        raise InputError(f"a path with a backslash cannot be read by Spark: rename {path}")
    # Said outright: without a scheme a path is of the file system that Spark was configured with.
    return "file://" + _OF_PATTERNS.sub(r"\\\1", name)
