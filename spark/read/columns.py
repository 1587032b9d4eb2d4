"""What each column of a read holds: the schema, checked once, on the driver.

Three names are special: ``id``, ``enqueued_at`` and ``fields``. Every other column holds the field of its own name.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import (
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bridge.routing.errors import ConfigurationError

ID = "id"
#: When the entry was added, by the server's clock, as its id says.
ENQUEUED_AT = "enqueued_at"
#: The fields of the entry that have no column of their own.
REST = "fields"
#: The fields that a message of a ticket stream may have, each a column unless asked otherwise.
MESSAGE = ("ticket_id", "task", "payload")


@dataclass(frozen=True)
class Columns:
    """The columns of a read in their order. Pickled into the tasks."""

    names: tuple[str, ...]
    #: For each column, whether its values are bytes rather than text. In the map of other fields: its values.
    binary: tuple[bool, ...]
    #: For each column, whether it may be null. Only an id never is.
    nullable: tuple[bool, ...]

    @classmethod
    def of(cls, schema: StructType) -> Columns:
        """The columns of a schema; ``ConfigurationError`` for a type that a stream cannot hold."""
        for column in schema.fields:
            if not _fits(column):
                raise ConfigurationError(
                    f"column {column.name} cannot be read as {column.dataType.simpleString()}: {_allowed(column.name)}"
                )
            if not column.nullable and column.name != ID:
                raise ConfigurationError(f"column {column.name} may be null; leave NOT NULL out of the schema")
        doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if doubled:
            raise ConfigurationError(f"the schema has column {doubled[0]} twice")
        return cls(
            tuple(schema.names),
            tuple(_is_binary(column.dataType) for column in schema.fields),
            tuple(column.nullable for column in schema.fields),
        )

    @property
    def own(self) -> frozenset[bytes]:
        """The fields that have a column of their own."""
        return frozenset(name.encode() for name in self.names if name not in (ID, ENQUEUED_AT, REST))


def default_schema(fields: tuple[str, ...] = ()) -> StructType:
    """The columns of a read without a schema.

    ``fields`` are the fields that become columns. If it is empty, the fields of a message become columns, and a map
    holds all others.
    """
    columns = [StructField(ID, StringType(), nullable=False)]
    columns += [StructField(name, StringType()) for name in fields or MESSAGE if name not in (ID, ENQUEUED_AT, REST)]
    if not fields or REST in fields:
        columns.append(StructField(REST, MapType(StringType(), StringType())))
    columns.append(StructField(ENQUEUED_AT, TimestampType()))
    return StructType(columns)


def _fits(column: StructField) -> bool:
    kind = column.dataType
    if column.name == ENQUEUED_AT:
        return isinstance(kind, TimestampType)
    if column.name == REST:
        return (
            isinstance(kind, MapType)
            and isinstance(kind.keyType, StringType)
            and isinstance(kind.valueType, StringType | BinaryType)
            and kind.valueContainsNull
        )
    return isinstance(kind, StringType) or (isinstance(kind, BinaryType) and column.name != ID)


def _allowed(name: str) -> str:
    if name == ENQUEUED_AT:
        return "it is a TIMESTAMP"
    if name == REST:
        return "it is a MAP<STRING, STRING> or a MAP<STRING, BINARY>"
    if name == ID:
        return "it is a STRING"
    return "entries hold text and bytes; read it as STRING or BINARY, and cast it then"


def _is_binary(kind: DataType) -> bool:
    return isinstance(kind.valueType if isinstance(kind, MapType) else kind, BinaryType)
