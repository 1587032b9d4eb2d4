"""Reading an archive: its tables as DataFrames, and ranges of message ids.

``bridge.spark.archive`` writes the tables ``history``, ``dead`` and ``messages``, each a folder of Parquet files by
date and batch. All times are UTC. A message id is ``<ms>-<seq>``, two unsigned 64-bit numbers, and in a split
stream the name of a partition. The numbers are compared as numbers: as text, ``9-0`` would come after ``10-0``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.routing.errors import ConfigurationError, InputError
from bridge.routing.partitions import AT
from bridge.spark.archiving.tables import AGAIN, COLUMNS, LATER
from bridge.spark.job.paths import to_read

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ID = re.compile(r"(\d{1,20})(?:-(\d{1,20})(?:@[gp\d]+)?)?")
#: The generation of the layout in the name of a partition.
_GENERATION = f"{AT}g([0-9]+)"
#: Digits of a year, and of a date without hyphens.
_DATES = (4, 8)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MISSING = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")
_ID_TYPE = "decimal(20,0)"


@dataclass(frozen=True)
class Range:
    """Message ids from ``start`` on and before ``end``, each (ms, seq); None: no bound on that side."""

    start: tuple[int, int] | None = None
    end: tuple[int, int] | None = None

    @classmethod
    def of(cls, start: str | None, end: str | None) -> Range:
        """The range between two times or ids as a user writes them.

        ``start`` is included. An ``end`` that is a time is excluded, so that neighbouring days share no message. An
        ``end`` that is an id is included, as in XRANGE. A partition that an id names does not matter: ids have one
        order over all partitions. Raises ``ConfigurationError`` for a text that is neither a time
        nor an id, and for an empty range.
        """
        found = cls(_bound("--from", start, after=False), _bound("--to", end, after=True))
        if found.start is not None and found.end is not None and found.start >= found.end:
            raise ConfigurationError(f"--from {start} is not before --to {end}")
        return found

    def holds(self, message_id: Column) -> Column:
        """Whether the id in a column is in the range."""
        from pyspark.sql import functions as fn

        ms, seq = id_numbers(message_id)
        held = fn.lit(True)
        if self.start is not None:
            held &= (ms > self.start[0]) | ((ms == self.start[0]) & (seq >= self.start[1]))
        if self.end is not None:
            held &= (ms < self.end[0]) | ((ms == self.end[0]) & (seq < self.end[1]))
        return held


def _bound(option: str, text: str | None, *, after: bool) -> tuple[int, int] | None:
    if text is None:
        return None
    found = _ID.fullmatch(text.strip())
    if found and found[2] is not None:
        return (int(found[1]), int(found[2]) + after)
    if found and len(found[1]) in _DATES:
        raise ConfigurationError(
            f"{option} {text.strip()} could be a date or a message id: write 2026-03-14, or {found[1]}-0"
        )
    if found:
        return (int(found[1]) + after, 0)
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigurationError(
            f"{option} must be a time (2026-03-14T09:00, UTC unless it names its zone) or a message id, not {text!r}"
        ) from None
    passed = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
    # Rounded up to whole milliseconds, which ids are: an earlier id is before this time.
    return (-(-passed // timedelta(milliseconds=1)), 0)


def id_numbers(message_id: Column) -> tuple[Column, Column]:
    """The two numbers of an id. Ids are in the order of these numbers, and not in that of their texts."""
    from pyspark.sql import functions as fn

    ms = fn.substring_index(message_id, "-", 1)
    seq = fn.substring_index(fn.substring_index(message_id, AT, 1), "-", -1)
    return ms.try_cast(_ID_TYPE), seq.try_cast(_ID_TYPE)


def layout_generation(message_id: Column) -> Column:
    """The generation of the layout in which the message was added. The messages of a ticket that were added in an
    earlier one come first.
    """
    from pyspark.sql import functions as fn

    return fn.coalesce(fn.regexp_extract(message_id, _GENERATION, 1).try_cast("int"), fn.lit(0))


def check_archive(archive: str) -> None:
    """Raises ``InputError`` when a local archive does not exist. Spark checks other file systems."""
    if "://" in archive:
        return
    if not Path(archive).is_dir():
        raise InputError(f"there is no archive at {archive}; `python -m bridge.spark.archive` makes one")
    if not any((Path(archive) / name).is_dir() for name in COLUMNS):
        raise InputError(f"{archive} is not an archive: it has none of {', '.join(COLUMNS)}")


def read_table(session: SparkSession, archive: str, name: str) -> DataFrame:
    """One table of an archive, with exactly the columns ``COLUMNS[name]``; empty if nothing was archived of it yet.

    Raises ``InputError`` for a table that lacks a column: with nulls instead, numbers would be wrong.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as fn

    columns, place = COLUMNS[name], f"{to_read(archive)}/{name}"
    try:
        found = session.read.parquet(place)
    except AnalysisException as error:
        if error.getCondition() not in _MISSING:
            raise
        return session.createDataFrame([], ", ".join(f"{column} {kind}" for column, kind in columns.items()))
    # The columns that were found are those of one file.
    later = [column for column in LATER[name] if column not in found.columns]
    if later:
        schema = found.schema
        for column in later:
            schema = schema.add(column, columns[column])
        found = session.read.schema(schema).parquet(place)
    again = AGAIN[name]()
    lacking = [column for column in columns if column not in found.columns and column not in again]
    if lacking:
        raise InputError(f"{archive}/{name} has no column {lacking[0]!r}; was it written by another version?")
    made = {column: again.get(column, fn.col(column)) for column in columns}
    return found.select(*(made[column].cast(kind).alias(column) for column, kind in columns.items()))
