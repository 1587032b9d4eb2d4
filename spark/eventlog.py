"""Event logs as DataFrames: CSV, JSON lines (both also gzipped), Parquet and tables, read the same way by every job.

A CSV has no types, so none are invented: every cell is a string exactly as in the file, and an empty one is the empty
string. JSON lines, Parquet and tables keep their types.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StringType, StructType

from routing.errors import ConfigurationError, InputError
from spark.failures import REFUSED
from spark.options import nearest

FORMATS = ("csv", "json", "parquet")
#: Not a file: the name of a table or view that the session knows.
TABLE = "table"
#: The column that holds the text of a row that could not be read; null for all others.
MALFORMED = "__malformed"
#: Where a row came from: file, first byte of its piece of the file, and a number that rises within the piece.
POSITION = ("__file", "__block", "__row")
#: A CSV cell may hold line breaks in quotes and quotes by doubling, as spreadsheets write them. The header of each file
#: is compared with the columns: two files whose columns are in another order would otherwise be mixed up in silence.
CSV_OPTIONS = {"header": "true", "inferSchema": "false", "multiLine": "true", "escape": '"', "enforceSchema": "false"}
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


def read_events(session: SparkSession, path: str, kind: str | None = None, *, tolerant: bool = False) -> DataFrame:
    """The events of a log.

    ``kind`` is one of ``FORMATS`` or ``TABLE``; by default the name tells. A malformed row is an error when the
    DataFrame is used, not a row that is quietly dropped or filled up; a ``tolerant`` read has it, with its text in
    the column ``MALFORMED``. Raises ``InputError`` for a file or a table that is not there.
    """
    kind = kind or format_of(path)
    if kind == TABLE:
        return _table(session, path)
    check_readable(path)
    if "://" not in path:
        # Said outright: without a scheme a path is of the file system that Spark was configured with.
        path = f"file://{Path(path).resolve()}"
    reader = session.read.option("mode", "FAILFAST")
    if kind == "csv":
        events = reader.options(**CSV_OPTIONS).csv(path)
        if tolerant:
            schema = StructType([*events.schema.fields]).add(MALFORMED, StringType())
            lenient = session.read.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", MALFORMED)
            events = lenient.options(**CSV_OPTIONS).schema(schema).csv(path)
        return filled(events)
    if kind == "json":
        if tolerant:
            reader = session.read.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", MALFORMED)
        return reader.json(path)
    if kind == "parquet":
        return reader.parquet(path)
    raise ConfigurationError(f"unknown format {kind!r}{nearest(kind, [*FORMATS, TABLE])}")


def follow_events(
    session: SparkSession, folder: str, kind: str, *, schema: str | None, files: int, tolerant: bool = False
) -> DataFrame:
    """The events of the files that appear in a folder, as a stream: the oldest first, ``files`` in an epoch at most.

    ``schema`` names the columns as DDL; None: they are those of the files that are there. A later CSV or JSON line with
    other ones is malformed. Raises ``InputError`` when there are no files, and ``ConfigurationError`` for a schema that
    cannot be read.
    """
    columns = _columns_of(session, folder, kind, tolerant) if schema is None else _declared(schema)
    if "://" not in folder:
        folder = f"file://{Path(folder).resolve()}"
    reader = session.readStream.option("maxFilesPerTrigger", str(files))
    if kind == "json":
        return parsed_lines(reader.text(folder), columns, tolerant=tolerant)
    if kind == "parquet":
        return reader.schema(columns).parquet(folder)
    if tolerant:
        columns = StructType([*columns.fields]).add(MALFORMED, StringType())
        reader = reader.option("columnNameOfCorruptRecord", MALFORMED)
    reader = reader.option("mode", "PERMISSIVE" if tolerant else "FAILFAST").options(**CSV_OPTIONS)
    return filled(reader.schema(columns).csv(folder))


def parsed_lines(lines: DataFrame, columns: StructType, *, tolerant: bool) -> DataFrame:
    """Lines of text (column ``value``) as the JSON objects that they are.

    Spark's own reader leaves out of an object, in silence, what is not among the columns that it was told. Here such a
    line is malformed.
    """
    value = fn.col("value")
    schema, options = columns, {"mode": "FAILFAST"}
    if tolerant:
        schema = StructType([*columns.fields]).add(MALFORMED, StringType())
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED}
    known = fn.array(*(fn.lit(name) for name in columns.names))
    new = fn.get(fn.array_except(fn.json_object_keys(value), known), 0)
    rows = lines.where(fn.trim(value) != "").select(value, fn.from_json(value, schema, options).alias("row"))
    if tolerant:
        malformed = fn.when(fn.get(fn.json_object_keys(value), 0).isNull() | new.isNotNull(), value)
        told = fn.coalesce(fn.col(f"row.{MALFORMED}"), malformed)
        return rows.select(*(fn.col("row")[name].alias(name) for name in columns.names), told.alias(MALFORMED))
    text = fn.concat(
        fn.lit(f"{REFUSED}a line has a member '"),
        new,
        fn.lit("' that is no column; start anew, or name it in --schema"),
    )
    first, *others = (fn.col("row")[name].alias(name) for name in columns.names)
    checked = fn.when(new.isNotNull(), fn.raise_error(text)).otherwise(first)
    return rows.select(checked.alias(columns.names[0]), *others)


def _declared(schema: str) -> StructType:
    try:
        columns = StructType.fromDDL(schema)
    except ParseException:
        columns = None
    if not isinstance(columns, StructType) or not columns.fields:
        raise ConfigurationError("--schema must be columns with types: 'ticket_id string, seq long, note string'")
    return columns


def _columns_of(session: SparkSession, folder: str, kind: str, tolerant: bool) -> StructType:
    try:
        schema = read_events(session, folder, kind, tolerant=tolerant).schema
        return StructType([field for field in schema.fields if field.name != MALFORMED])
    except AnalysisException as error:
        if error.getCondition() not in ("UNABLE_TO_INFER_SCHEMA", "PATH_NOT_FOUND"):
            raise
    raise InputError(f"there is no file in {folder} to tell its columns; name them with --schema, or put one there")


def filled(events: DataFrame) -> DataFrame:
    """A CSV's events with the empty string where a cell is empty."""
    cells = [
        fn.coalesce(column(field.name), fn.lit("")).alias(field.name)
        if isinstance(field.dataType, StringType) and field.name != MALFORMED
        else column(field.name)
        for field in events.schema.fields
    ]
    return events.select(*cells)


def with_position(events: DataFrame) -> DataFrame:
    """The events with the columns ``POSITION``: sorted by them, they stand as in the files, those by their names.

    Raises ``InputError`` for a table that is not made of files.
    """
    name, block, row = POSITION
    # Rows of one piece of a file are numbered in their order, whichever task reads it beside which other pieces.
    try:
        return events.withColumns(
            {
                name: fn.col("_metadata.file_path"),
                block: fn.col("_metadata.file_block_start"),
                row: fn.monotonically_increasing_id(),
            }
        )
    except AnalysisException:
        raise InputError(
            "the rows of this table have no order of their own; name the column that orders them (--seq)"
        ) from None


def _table(session: SparkSession, name: str) -> DataFrame:
    try:
        return session.read.table(name)
    except ParseException:
        raise InputError(f"{name!r} is not the name of a table (catalog.schema.table)") from None
    except AnalysisException as error:
        if error.getCondition() not in ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"):
            raise
        raise InputError(f"there is no table {name}; where its catalog is, --conf key=value says") from None


def column(name: str) -> Column:
    """The column of exactly this name, even when it has dots or backticks in it."""
    return fn.col(f"`{name.replace('`', '``')}`")


def require(events: DataFrame, option: str, name: str) -> str:
    """``name`` itself when the log has this column; else ``InputError`` with the option and the nearest column."""
    if name not in events.columns:
        raise InputError(f"{option}: the log has no column {name!r}{nearest(name, events.columns)}")
    return name
