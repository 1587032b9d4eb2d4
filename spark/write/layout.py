"""Which column of a DataFrame becomes what in the stream's entries, decided once on the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.routing.errors import ConfigurationError
from bridge.spark.wire.encoder import KEY_FIELD
from bridge.spark.wire.options import nearest
from bridge.spark.write.limits import MAX_FIELDS
from bridge.spark.write.message_options import DUE, EXPIRES
from bridge.spark.write.options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

#: In the metadata of the key's column: how many partitions its DataFrame has. Spark does not tell a task, and a second
#: attempt with another number would have other rows in each partition.
PARTITIONS = "redisstream.partitions"
#: Types of whole numbers.
WHOLE = ("byte", "short", "integer", "long")
#: Types that have exactly one text. The user must convert others (times, arrays, structures), and knows how.
_SENDABLE = ("string", "varchar", "char", "binary", "boolean", "decimal", "float", "double", "date", *WHOLE)
#: Types that the writer can sort by.
_SORTABLE = (*_SENDABLE, "timestamp", "timestamp_ntz")


def has_fractions(kind: DataType) -> bool:
    """Whether a type holds numbers with fractions. Such a number has several texts (``7``, ``7.0``), so that it names
    no ticket; and a double has one text for several large numbers.
    """
    return kind.typeName() in ("float", "double") or getattr(kind, "scale", 0) > 0


@dataclass(frozen=True)
class Layout:
    """Names of columns, which all exist and can be sent."""

    key: str
    fields: tuple[str, ...]
    sequence: str | None
    #: How many partitions the DataFrame has, if ``bridge.spark.write.order`` has noted it; None: not known.
    partitions: int | None = None

    @classmethod
    def of(cls, schema: StructType, options: WriteOptions) -> Layout:
        """The layout for a DataFrame with this schema.

        Raises ``ConfigurationError`` that names the option for a column that is missing or of a type that cannot be
        sent, and for a column that is there twice.
        """
        doubled = next((name for name in schema.names if schema.names.count(name) > 1), None)
        if doubled is not None:
            raise ConfigurationError(f"there is a column {doubled!r} twice: rename or drop one of them")
        kinds = {column.name: column.dataType.typeName() for column in schema.fields}

        def existing(option: str, column: str) -> str:
            if column not in kinds:
                raise ConfigurationError(f"{option}: there is no column {column!r}{nearest(column, list(kinds))}")
            return column

        key = existing("keyColumn", options.key_column)
        if has_fractions(next(column.dataType for column in schema.fields if column.name == key)):
            raise ConfigurationError(
                f"keyColumn: {key!r} holds numbers with fractions, which name no ticket; cast it to long, or make it a "
                "string"
            )
        sequence = existing("seqColumn", options.seq_column) if options.seq_column else None
        if sequence and kinds[sequence] not in WHOLE:
            raise ConfigurationError(
                f"seqColumn: {sequence!r} is {kinds[sequence]}, not a whole number; cast it to long"
            )
        for column in options.order_by:
            if kinds[existing("orderBy", column)] not in _SORTABLE:
                raise ConfigurationError(f"orderBy: {column!r} is {kinds[column]}, which has no order")
        fields = tuple(existing("fields", column) for column in options.fields) or tuple(
            column for column in kinds if column not in (key, sequence)
        )
        if KEY_FIELD in fields:
            raise ConfigurationError(f"fields: {KEY_FIELD!r} is written from keyColumn ({key!r}) already")
        for column in (key, *fields):
            is_time = kinds[column] == "timestamp" and (column == DUE or (column == EXPIRES and "payload" in fields))
            if kinds[column] not in _SENDABLE and not is_time:
                raise ConfigurationError(
                    f"column {column!r} is {kinds[column]}, which has no one text; "
                    "make it a string (to_json, date_format)"
                )
        if len(fields) > MAX_FIELDS:
            raise ConfigurationError(f"a row has {len(fields)} fields, at most {MAX_FIELDS} are allowed; name fewer")
        noted = next((column.metadata.get(PARTITIONS) for column in schema.fields if column.name == key), None)
        return cls(key, fields, sequence, noted if isinstance(noted, int) else None)
