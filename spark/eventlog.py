"""Event logs as DataFrames: CSV, JSON lines (both also gzipped) and Parquet, read the same way by every job.

A CSV has no types, so none are invented: every cell is a string exactly as in the file, and an empty one is the empty
string. JSON lines and Parquet keep their types.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from routing.errors import ConfigurationError, InputError
from spark.options import nearest

FORMATS = ("csv", "json", "parquet")
_SUFFIXES = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSED = (".gz", ".bz2", ".zst")


def format_of(path: str) -> str:
    """``csv``, ``json`` or ``parquet``, from the name. Raises ``ConfigurationError`` when the name does not tell."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    kind = _SUFFIXES.get(suffixes[-1]) if suffixes else None
    if kind is None:
        raise ConfigurationError(f"cannot tell the format of {path} from its name; add --format {'|'.join(FORMATS)}")
    return kind


def check_readable(path: str) -> None:
    """Raise ``InputError`` when a local path does not exist or cannot be read; other file systems Spark asks."""
    if "://" in path:
        return
    local = Path(path)
    try:
        if local.is_dir():
            next(local.iterdir(), None)
        else:
            with local.open("rb"):
                pass
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def read_events(session: SparkSession, path: str, kind: str | None = None) -> DataFrame:
    """The events of a log.

    ``kind`` is one of ``FORMATS``; by default the name tells. A malformed row is an error when the DataFrame is used,
    not a row that is quietly dropped or filled up.
    """
    kind = kind or format_of(path)
    check_readable(path)
    if "://" not in path:
        path = str(Path(path).resolve())
    reader = session.read.option("mode", "FAILFAST")
    if kind == "csv":
        # A cell may hold line breaks in quotes and quotes by doubling, as spreadsheets write them.
        events = reader.csv(path, header=True, inferSchema=False, multiLine=True, escape='"')
        return events.fillna("")
    if kind == "json":
        return reader.json(path)
    if kind == "parquet":
        return reader.parquet(path)
    raise ConfigurationError(f"unknown format {kind!r}{nearest(kind, list(FORMATS))}")


def column(name: str) -> Column:
    """The column of exactly this name, even when it has dots or backticks in it."""
    return fn.col(f"`{name.replace('`', '``')}`")


def require(events: DataFrame, option: str, name: str) -> str:
    """``name`` itself when the log has this column; else ``InputError`` with the option and the nearest column."""
    if name not in events.columns:
        raise InputError(f"{option}: the log has no column {name!r}{nearest(name, events.columns)}")
    return name
