"""Event logs as DataFrames: CSV, JSON lines (both also gzipped), Parquet and tables, read in the same way by every job.

A CSV has no types: every cell is a string exactly as in the file, and an empty cell is the empty string. JSON lines,
Parquet and tables keep their types.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StringType, StructField, StructType

from bridge.routing.errors import ConfigurationError, InputError
from bridge.spark.job.failures import COLON
from bridge.spark.job.json_lines import infer_columns, parsed_lines
from bridge.spark.job.local_csv import header_of, is_searched, refuse_flaws
from bridge.spark.job.log_columns import LINE, MALFORMED, OWN_NAMES, POSITION, refuse_two_sources
from bridge.spark.job.paths import to_read
from bridge.spark.wire.options import nearest
from bridge.spark.write.columns import column, in_one_line
from bridge.spark.write.limits import REFUSED

FORMATS = ("csv", "json", "parquet")
#: The kind of a log that is no file, but a table or view of the session.
TABLE = "table"
#: A CSV cell may hold line breaks in quotes, and doubled quotes, as spreadsheets write them. The header of each file is
#: compared with the columns: otherwise files with another order of columns would be mixed up in silence.
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
_Named = TypeVar("_Named", DataFrame, StructType)
#: What Spark puts in place of bytes of a CSV that are not UTF-8.
_UNDECODED = "\ufffd"
_NO_FILES = "UNABLE_TO_INFER_SCHEMA"
#: How much older than the newest file a file may be. With Spark's week, a backfill would never be read, and a file that
#: was forgotten by then would be read again.
_OLDEST = "36500d"


def format_of(path: str) -> str:
    """``csv``, ``json`` or ``parquet``, from the name. Raises ``ConfigurationError`` for other names."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    kind = _SUFFIXES.get(suffixes[-1]) if suffixes else None
    if kind is None:
        raise ConfigurationError(f"cannot tell the format of {path} from its name; add --format {'|'.join(FORMATS)}")
    return kind


def check_readable(path: str) -> None:
    """Raises ``InputError`` when a local path does not exist or cannot be read. Spark checks other file systems.

    Also for a folder within the folder, unless its name is that of a column (``day=2026-11-22``): Spark would skip it.
    """
    if "://" in path:
        return
    local = Path(path)
    try:
        if local.is_dir():
            _check_folder(local)
        else:
            _check_file(local)
            with local.open("rb"):
                pass
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _check_folder(folder: Path) -> None:
    """Raises ``InputError`` for a folder below this one whose files Spark would skip, and for what it cannot read."""
    for child in _seen(folder):
        if not child.is_dir():
            # Another program may have removed it meanwhile.
            with suppress(FileNotFoundError):
                _check_file(child)
        elif "=" in child.name:
            _check_folder(child)
        elif _has_files(child):
            raise InputError(
                f"the files in {child} would not be read: give that folder by itself, or name it column=value"
            )


def _check_file(file: Path) -> None:
    if not stat.S_ISREG(file.stat().st_mode):
        raise InputError(f"{file} is a pipe or a device: write what it gives to a file first")
    # Hadoop takes the beginning of the name of such a file's checksum (`.10:00.csv.crc`) for a scheme.
    if ":" in file.name:
        raise InputError(f"{COLON}: rename {file}")


def _local_files(path: str) -> Iterator[Path]:
    """The local files that Spark reads, of a path that ``check_readable`` has checked."""
    local = Path(path)
    if "://" in path:
        return
    if not local.is_dir():
        yield local
        return
    for child in _seen(local):
        yield from _local_files(str(child))


def _has_files(folder: Path) -> bool:
    return any(_has_files(child) if child.is_dir() else True for child in _seen(folder))


def _seen(folder: Path) -> list[Path]:
    """The files and folders in a folder, without those whose names tell Spark to ignore them."""
    names = (child.name for child in folder.iterdir())
    return [folder / name for name in sorted(names) if name[0] != "." and (name[0] != "_" or "=" in name)]


def read_events(session: SparkSession, path: str, kind: str | None = None, *, tolerant: bool = False) -> DataFrame:
    """The events of a log.

    ``kind`` is one of ``FORMATS`` or ``TABLE``; by default it follows from the name. A malformed row is an error when
    the DataFrame is used; it is never dropped or filled up in silence. A ``tolerant`` read keeps it, with its text in
    the column ``MALFORMED``. Raises ``InputError`` for a file or a table that does not exist, and for a local CSV with
    a quote that is never closed, or with lines that end in several ways.
    """
    kind = kind or format_of(path)
    try:
        events = _read(session, path, kind, tolerant)
        if kind == "csv":
            for file in _local_files(path):
                refuse_flaws(file)
        return events
    except AnalysisException as error:
        if error.getCondition() != _NO_FILES:
            raise
    raise InputError(f"there is no file in {path} (names that begin with _ or . are skipped)")


def _read(session: SparkSession, path: str, kind: str, tolerant: bool) -> DataFrame:
    if kind == TABLE:
        return _table(session, path)
    check_readable(path)
    given, path = path, to_read(path)
    reader = session.read.option("mode", "FAILFAST")
    lines = session.read.schema(f"{LINE} string").text(path)
    # The names of folders (`day=2026-11-22`) give columns too, but not to a reader of all files below.
    in_folders, flat = lines.columns[1:], session.read.option("recursiveFileLookup", "true")
    if kind == "csv":
        header = _local_header(given)
        if header is not None:
            # Spark's inference takes a name with brackets for a pattern, and would take the header of another file.
            reader = reader.schema(StructType([StructField(name, StringType()) for name in header]))
        events = _with_free_names(reader.options(**CSV_OPTIONS).csv(path))
        if not events.columns:
            raise InputError(f"{given} is empty")
        if header is None:
            _check_inferred(session, events)
        if in_folders:
            own = flat.options(**CSV_OPTIONS).csv(path).columns if header is None else header
            refuse_two_sources(own, in_folders)
        if tolerant:
            schema = StructType([*events.schema.fields]).add(MALFORMED, StringType())
            lenient = session.read.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", MALFORMED)
            events = lenient.options(**CSV_OPTIONS).schema(schema).csv(path)
        is_local = "://" not in given
        return filled(_readable(events, searched=is_local and all(map(is_searched, _local_files(given)))))
    if kind == "json":
        inferred, doubled = infer_columns(session, path, lines, tolerant=tolerant)
        columns = _with_free_names(inferred)
        if not columns.fields:
            is_empty = lines.where(column(LINE).rlike(r"\S")).isEmpty()
            raise InputError(f"{given} {'is empty' if is_empty else 'has no line that is an object with members'}")
        return parsed_lines(lines, columns, tolerant=tolerant, compare_members=doubled)
    if kind == "parquet":
        # Otherwise Spark takes the columns of one file, and those that only others have are lost in silence.
        try:
            events = _with_free_names(reader.option("mergeSchema", "true").parquet(path))
        except AnalysisException as error:
            raise _of_type(given, error) or error from None
        if in_folders:
            refuse_two_sources(flat.option("mergeSchema", "true").parquet(path).columns, in_folders)
        return events
    raise ConfigurationError(f"unknown format {kind!r}{nearest(kind, [*FORMATS, TABLE])}")


def _of_type(path: str, error: AnalysisException) -> InputError | None:
    """The error for a type of Parquet that Spark cannot read."""
    match error.getCondition():
        case "PARQUET_TYPE_ILLEGAL":
            kind = str((error.getMessageParameters() or {}).get("parquetType"))
            better = "with microseconds" if "NANOS" in kind else "as another type"
        case "UNSUPPORTED_TIME_TYPE":
            kind, better = "TIME", "as text"
        case _:
            return None
    return InputError(f"{path} has a column of the type {kind}, which Spark cannot read: write it {better}")


def follow_events(
    session: SparkSession, folder: str, kind: str, *, columns: StructType, files: int, tolerant: bool = False
) -> DataFrame:
    """The events of the files that appear in a folder, as a stream: the oldest first, ``files`` in an epoch at most.

    A CSV or JSON line with other columns is malformed.
    """
    check_readable(folder)
    columns = _with_free_names(columns)
    folder = to_read(folder)
    reader = session.readStream.option("maxFilesPerTrigger", str(files)).option("maxFileAge", _OLDEST)
    if kind == "json":
        return parsed_lines(reader.schema(f"{LINE} string").text(folder), columns, tolerant=tolerant)
    if kind == "parquet":
        return reader.schema(columns).parquet(folder)
    if tolerant:
        columns = StructType([*columns.fields]).add(MALFORMED, StringType())
        reader = reader.option("columnNameOfCorruptRecord", MALFORMED)
    reader = reader.option("mode", "PERMISSIVE" if tolerant else "FAILFAST").options(**CSV_OPTIONS)
    return filled(_readable(reader.schema(columns).csv(folder), searched=False))


def _local_header(path: str) -> list[str] | None:
    """The header of the first local CSV that has one and can be read here. Raises ``InputError`` for a bad one."""
    for file in _local_files(path):
        header = header_of(file)
        if header is not None:
            _check_header(str(file), header)
            return header
    return None


def _check_inferred(session: SparkSession, events: DataFrame) -> None:
    """Raises ``InputError`` for a bad header of the columns that Spark has inferred.

    Spark replaces a name that is there twice, or is empty, by one that ends in the number of the column. If a name
    does, the header of the first local file is read again.
    """
    if not any(name.endswith(str(number)) for number, name in enumerate(events.columns)):
        return
    local = sorted(uri for uri in events.inputFiles() if urlsplit(uri).scheme == "file")
    if not local:
        return
    file = unquote(urlsplit(local[0]).path)
    first = session.read.options(**{**CSV_OPTIONS, "header": "false"}).csv(to_read(file)).head()
    _check_header(file, [] if first is None else list(first))


def _check_header(file: str, header: list[str]) -> None:
    """Raises ``InputError`` for a header with a name twice, or with an empty one."""
    seen: dict[str, str] = {}
    for name in header:
        if not name:
            raise InputError(f"the header of {file} has a column without a name: give it one")
        if name.lower() in seen:
            both = f"the columns {seen[name.lower()]!r} and {name!r}, which are one"
            what = f"the column {name!r} twice" if seen[name.lower()] == name else both
            raise InputError(f"the header of {file} has {what}: rename one of them")
        seen[name.lower()] = name


def _with_free_names(events: _Named) -> _Named:
    """The events, or their columns. Raises ``InputError`` for a column with a name that is used here."""
    names = events.names if isinstance(events, StructType) else events.columns
    for name in names:
        if name.lower() in OWN_NAMES:
            raise InputError(f"the log has a column {name!r}: that name is used here, rename it")
    return events


def declared_columns(schema: str) -> StructType:
    """Columns as DDL. Raises ``ConfigurationError`` for an invalid schema."""
    try:
        columns = StructType.fromDDL(schema)
    except ParseException:
        columns = None
    if not isinstance(columns, StructType) or not columns.fields:
        raise ConfigurationError("--schema must be columns with types: 'ticket_id string, seq long, note string'")
    return columns


def present_columns(session: SparkSession, folder: str, kind: str, *, tolerant: bool = False) -> StructType:
    """The columns of the present files of a folder. Raises ``InputError`` when there are no files."""
    try:
        schema = _read(session, folder, kind, tolerant).schema
        return StructType([field for field in schema.fields if field.name != MALFORMED])
    except AnalysisException as error:
        if error.getCondition() not in (_NO_FILES, "PATH_NOT_FOUND"):
            raise
    raise InputError(
        f"there is no file in {folder} to take the columns from; name them with --schema, or put a file there"
    )


def _readable(events: DataFrame, *, searched: bool) -> DataFrame:
    """A CSV's events, in which rows that are not UTF-8 are malformed.

    Spark puts U+FFFD in place of any bytes that it cannot decode: two tickets would become one. Where the files are not
    ``searched`` for line ends of another kind, a row with a cell that ends in a carriage return is malformed, too.
    """
    if any(_UNDECODED in name for name in events.columns):
        raise InputError("the header of a CSV is not valid UTF-8: convert the file (iconv -t UTF-8)")
    cells = [
        column(field.name)
        for field in events.schema.fields
        if isinstance(field.dataType, StringType) and field.name != MALFORMED
    ]
    undecoded = returns = fn.lit(False)
    for cell in cells:
        undecoded |= fn.coalesce(fn.contains(cell, fn.lit(_UNDECODED)), fn.lit(False))
        if not searched:
            returns |= fn.coalesce(fn.endswith(cell, fn.lit("\r")), fn.lit(False))
    text = fn.concat_ws(",", *cells)
    if MALFORMED in events.columns:
        return events.withColumn(MALFORMED, fn.coalesce(column(MALFORMED), fn.when(undecoded | returns, text)))
    wrong = fn.when(undecoded, fn.lit("is not valid UTF-8, or holds U+FFFD, which stands for that")).when(
        returns, fn.lit("has a cell that ends in a carriage return: lines of its file end in several ways")
    )
    said = fn.concat(fn.lit(f"{REFUSED}a row "), wrong, fn.lit(": "), in_one_line(fn.substring(text, 1, 60)))
    return events.where(fn.when(wrong.isNotNull(), fn.raise_error(said)).otherwise(fn.lit(True)))


def filled(events: DataFrame) -> DataFrame:
    """A CSV's events, with the empty string for an empty cell."""
    cells = [
        fn.coalesce(column(field.name), fn.lit("")).alias(field.name)
        if isinstance(field.dataType, StringType) and field.name != MALFORMED
        else column(field.name)
        for field in events.schema.fields
    ]
    return events.select(*cells)


def with_position(events: DataFrame) -> DataFrame:
    """The events with the columns ``POSITION``. Sorted by them, rows have the order of their file, and files are sorted
    by name.

    Raises ``InputError`` for a table that is not made of files.
    """
    name, block, row = POSITION
    # Rows of one piece of a file have rising numbers, whichever task reads the piece.
    try:
        return events.withColumns(
            {
                # A URI has another form of some characters (`%5B` for `[`), and with it another order.
                name: fn.url_decode(fn.replace(fn.col("_metadata.file_path"), fn.lit("+"), fn.lit("%2B"))),
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
        return _with_free_names(session.read.table(name))
    except ParseException:
        raise InputError(f"{name!r} is not the name of a table (catalog.schema.table)") from None
    except AnalysisException as error:
        if error.getCondition() not in ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"):
            raise
        raise InputError(f"there is no table {name}; --conf key=value configures a catalog") from None


def is_view(session: SparkSession, name: str) -> bool:
    """Whether a table that ``read_events`` has read is a view."""
    try:
        return session.catalog.getTable(name).tableType in ("VIEW", "TEMPORARY", "METRIC_VIEW")
    except AnalysisException:
        # A folder in the place of a name (parquet.`/folder`).
        return False
