"""Names of columns that reading a log adds to those of the log, and the check that a named column exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.routing.errors import InputError
from bridge.spark.wire.options import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

#: The text of a row that could not be read; null for all others.
MALFORMED = "__malformed"
#: Where a row came from: file, first byte of its piece of the file, and a number that rises within the piece.
POSITION = ("__file", "__block", "__row")
#: The place of a row in its ticket, where no column of the log says it.
PLACE = "__place"
#: Of JSON lines: the line, its row, and the text of a line that is not a row.
LINE, ROW, WRONG = "__line", "__parsed", "__wrong"
#: No column of a log may have one of these names.
OWN_NAMES = (MALFORMED, *POSITION, PLACE, LINE, ROW, WRONG)


def require(events: DataFrame, option: str, name: str) -> str:
    """``name`` itself when the log has this column; else ``InputError`` with the option and the nearest column."""
    if name not in events.columns:
        raise InputError(f"{option}: the log has no column {name!r}{nearest(name, events.columns)}")
    return name


def refuse_two_sources(in_files: Iterable[str], in_folders: Iterable[str]) -> None:
    """Raises ``InputError`` for a column of files that is also in the names of their folders (``store=007``).

    Spark would take the folder's value for all rows, in silence. It compares names without regard to capitals.
    """
    folders = {name.lower() for name in in_folders}
    for name in in_files:
        if name.lower() in folders:
            raise InputError(
                f"the files have a column {name!r}, and their folders' names have it too: rename one of them"
            )
