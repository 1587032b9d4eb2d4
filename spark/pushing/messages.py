"""Rows of an event log as messages of the stream: ticket, task and payload."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from bridge.routing.errors import ConfigurationError, InputError
from bridge.routing.exact_json import MAX_DEPTH
from bridge.spark.job.eventlog import with_position
from bridge.spark.job.log_columns import MALFORMED, PLACE, POSITION, require
from bridge.spark.wire.encoder import KEY_FIELD
from bridge.spark.write.columns import column
from bridge.spark.write.layout import has_fractions
from bridge.spark.write.message_options import DUE, HOLD
from bridge.spark.write.refusals import PAYLOAD, TASK
from bridge.spark.write.rejects import REASON, ROW, Checks

#: The column that orders the rows of a ticket, if the log has it and the user names no other.
USUAL_SEQUENCE = "seq"
_TIME = "__time"
#: What refusals call the place of a row in the file. No name of a column: the log may have one of this name.
_IN_FILE = "place in the file"
#: Names of columns that messages and rejected rows use. Spark compares names without regard to capitals. Names that
#: begin with two underscores are reserved too.
_RESERVED = (KEY_FIELD, PAYLOAD, TASK, DUE, HOLD, REASON, ROW)
_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_FRACTIONAL = (FloatType, DoubleType, DecimalType)
_OBJECTS = (StructType, ArrayType, MapType, VariantType)
_INSTANTS = (TimestampType, TimestampNTZType, DateType)
#: Keys of a map that Spark writes as their text (`map()` has those of no type). Of others it writes what Java has: an
#: address, a number of days.
_KEYS = (StringType, BooleanType, *_INTEGERS, *_FRACTIONAL, NullType)
#: Formats of times in a payload, with microseconds: Spark has them, and would write milliseconds.
_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


@dataclass(frozen=True)
class Mapping:
    """Which column of a log becomes what. It names no file, so it is the same for a log and its next piece."""

    key: str = KEY_FIELD
    #: None: the column ``seq`` where there is one, else the order of times, else that of the file.
    seq: str | None = None
    #: Column of times. Messages of different tickets are written in the order of these times.
    order: str | None = None
    task: str | None = None
    task_column: str | None = None
    #: Columns that say when a message is due, and whether its ticket waits for it.
    due_column: str | None = None
    hold_column: str | None = None
    #: A column that holds the payload as JSON already.
    payload_column: str | None = None
    #: Member of the payload -> column, where the two have different names.
    renamed: tuple[tuple[str, str], ...] = ()
    #: Columns that are left out of the payload.
    excluded: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises ``ConfigurationError`` for options that exclude each other."""
        if self.task and self.task_column:
            raise ConfigurationError("--task and --task-column exclude each other")
        if self.hold_column and not self.due_column:
            raise ConfigurationError("--hold-column needs --due-column: it says what the ticket does until then")
        if self.payload_column and (self.renamed or self.excluded):
            raise ConfigurationError("--payload-column is the whole payload: --map and --exclude do not go with it")
        members = [member for member, _ in self.renamed]
        doubled = sorted({member for member in members if members.count(member) > 1})
        if doubled:
            raise ConfigurationError(f"--map names {doubled[0]!r} twice")


@dataclass(frozen=True)
class Messages:
    """A DataFrame of messages and the names of its columns."""

    frame: DataFrame
    key: str
    sequence: str
    #: The column of times that orders messages of different tickets; None if there is none.
    time: str | None
    #: The columns that are fields of an entry, beside the ticket.
    fields: list[str]
    #: What orders the rows of a ticket, in words.
    ordered_by: str
    #: Whether two rows of a ticket may have the same number. Places in a file are always different.
    may_tie: bool
    #: Whether masters may refuse the payload: it comes from the log as text, or may be nested too deeply.
    unsure_json: bool
    #: The refusal of a row without a number: which column is not a number or a time.
    unplaced: str

    def checks(self, max_payload: int) -> Checks:
        """The checks of these messages; ``max_payload`` is in bytes."""
        return Checks(self.fields, max_payload, self.unsure_json, self.unplaced)


def parse_map(members: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """``--map member=column``, given any number of times. Raises ``ConfigurationError``."""
    pairs = []
    for text in members:
        member, equals, name = text.partition("=")
        if not equals or not member or not name:
            raise ConfigurationError(f"--map must be member=column, not {text!r}")
        pairs.append((member, name))
    return tuple(pairs)


def to_messages(events: DataFrame, mapping: Mapping) -> Messages:
    """The messages of a log.

    The payload is a JSON object of all columns, without those of the ticket, the task, ``--due-column`` and
    ``--hold-column``, and the excluded ones. CSV cells, even empty ones, are strings in it. Null values of JSON lines,
    Parquet and tables are left out of the object. A column ``MALFORMED`` is kept beside the messages.

    Raises ``InputError`` for a column that does not exist. The sequence is read as a whole number: as text, 10 would
    come before 9. A value that is not a number becomes null, which the data source refuses, naming the ticket.
    """
    for option, name in _named(mapping):
        require(events, option, name)
        if option in ("--key", "--task-column", "--due-column", "--hold-column") and isinstance(
            events.schema[name].dataType, _OBJECTS
        ):
            raise InputError(f"{option}: the column {name!r} holds objects or lists, not names")
    if has_fractions(events.schema[mapping.key].dataType):
        raise InputError(
            f"--key: the column {mapping.key!r} holds numbers with fractions, which name no ticket: make them whole "
            "numbers or text"
        )
    members = [] if mapping.payload_column else _members(events, mapping)
    for name in [mapping.payload_column] if mapping.payload_column else [source for _, source in members]:
        odd = _no_json(events.schema[name].dataType)
        if odd is not None:
            raise InputError(f"the column {name!r} has {odd}, or leave the column out")
    placed = _placed(events, mapping)
    # Under its own name if that is free, since refusals name the column.
    free = placed.name.lower() not in _RESERVED and not placed.name.startswith("__")
    sequence = placed.name if free else f"{placed.name} (sequence)"
    columns = [column(mapping.key).cast("string").alias(KEY_FIELD), placed.number.alias(sequence)]
    fields = [PAYLOAD]
    if mapping.task is not None:
        columns.append(fn.lit(mapping.task).alias(TASK))
        fields.insert(0, TASK)
    elif mapping.task_column is not None:
        # A CSV has no null: an empty cell is no name.
        named = column(mapping.task_column).cast("string")
        columns.append(fn.when(named != "", named).alias(TASK))
        fields.insert(0, TASK)
    if mapping.due_column is not None:
        columns.append(_due(events, mapping.due_column).alias(DUE))
        fields.insert(0, DUE)
    if mapping.hold_column is not None:
        columns.append(column(mapping.hold_column).cast("string").alias(HOLD))
        fields.insert(0, HOLD)
    columns.append(_payload(events, mapping, members).alias(PAYLOAD))
    kinds = [events.schema[name].dataType for _, name in members]
    whole = events.schema[mapping.payload_column].dataType if mapping.payload_column else StructType()
    is_deep = any(_levels(kind) >= MAX_DEPTH for kind in kinds) or _levels(whole) > MAX_DEPTH
    if mapping.order is not None:
        columns.append(column(mapping.order).alias(_TIME))
    if MALFORMED in events.columns:
        columns.append(column(MALFORMED))
    return Messages(
        frame=placed.events.select(*columns),
        key=KEY_FIELD,
        sequence=sequence,
        time=_TIME if mapping.order is not None else None,
        fields=fields,
        ordered_by=placed.ordered_by,
        may_tie=placed.may_tie,
        unsure_json=isinstance(whole, StringType) or is_deep,
        unplaced=placed.unplaced,
    )


def _named(mapping: Mapping) -> list[tuple[str, str]]:
    """Option and column for each column that the user named."""
    single = {
        "--key": mapping.key,
        "--seq": mapping.seq,
        "--order": mapping.order,
        "--task-column": mapping.task_column,
        "--due-column": mapping.due_column,
        "--hold-column": mapping.hold_column,
        "--payload-column": mapping.payload_column,
    }
    named = [(option, name) for option, name in single.items() if name is not None]
    named += [("--map", name) for _, name in mapping.renamed]
    return named + [("--exclude", name) for name in mapping.excluded]


def _members(events: DataFrame, mapping: Mapping) -> list[tuple[str, str]]:
    """Member of the payload and its column, in the order of the columns. Raises ``InputError``."""
    own = {
        mapping.key,
        mapping.task_column,
        mapping.due_column,
        mapping.hold_column,
        MALFORMED,
        *POSITION,
        *mapping.excluded,
    }
    members: list[tuple[str, str]] = []
    for name in events.columns:
        renamed = [(member, source) for member, source in mapping.renamed if source == name]
        members += renamed or ([(name, name)] if name not in own else [])
    if not members:
        raise InputError("the log has no column beside the ticket: there is nothing to send")
    names = [member for member, _ in members]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InputError(f"--map: the payload would have {doubled[0]!r} twice; leave the column out with --exclude")
    return members


def _no_json(kind: DataType) -> str | None:
    """What is in a type, at any depth, that would be no JSON object, or not the same one; with advice."""
    match kind:
        case MapType() if not isinstance(kind.keyType, _KEYS):
            return (
                f"a map whose keys are {kind.keyType.simpleString()}, and members of a JSON object have texts for "
                "names: make the keys text (with transform_keys)"
            )
        case MapType():
            return _no_json(kind.valueType)
        case ArrayType():
            return _no_json(kind.elementType)
        case StructType():
            doubled = [name for name in kind.names if kind.names.count(name) > 1]
            if doubled:
                return f"a structure that has {doubled[0]!r} twice: give one of the two another name"
            return next(filter(None, (_no_json(field.dataType) for field in kind.fields)), None)
    return None


def _levels(kind: DataType) -> float:
    """How deeply the JSON of a type may be nested."""
    match kind:
        case StructType():
            return 1 + max((_levels(field.dataType) for field in kind.fields), default=0)
        case ArrayType():
            return 1 + _levels(kind.elementType)
        case MapType():
            return 1 + _levels(kind.valueType)
        case VariantType():
            return math.inf
    return 0


def _due(events: DataFrame, name: str) -> Column:
    """When messages are due, in milliseconds since 1970, as text; a text that is no time stays, and is refused."""
    if not _is_text(events, name):
        kind = events.schema[name].dataType
        return (fn.unix_millis(column(name).cast("timestamp")) if isinstance(kind, _INSTANTS) else column(name)).cast(
            "string"
        )
    given = fn.when(column(name) != "", column(name))
    # Spark takes a time without a date for one of today: another one tomorrow.
    dated = fn.when(~given.rlike(r"^[\s\p{Cntrl}]*T?[0-9]{1,2}:"), given)
    at = fn.unix_millis(dated.try_cast("timestamp")).cast("string")
    return fn.when(given.rlike("^[0-9]{5,}$"), given).otherwise(fn.coalesce(at, given))


def _payload(events: DataFrame, mapping: Mapping, members: list[tuple[str, str]]) -> Column:
    if mapping.payload_column is None:
        pieces = [column(name).alias(member) for member, name in members]
        return fn.to_json(fn.struct(*pieces), {"ignoreNullFields": "true", **_TIMES})
    given = column(mapping.payload_column)
    text = given if _is_text(events, mapping.payload_column) else fn.to_json(given, _TIMES)
    # Without the field, an entry's other fields would be taken for its payload.
    return fn.coalesce(text, fn.lit("null"))


def _is_text(events: DataFrame, name: str) -> bool:
    return isinstance(events.schema[name].dataType, StringType)


@dataclass(frozen=True)
class _Placed:
    """Rows, and the number that orders those of a ticket."""

    events: DataFrame
    number: Column
    name: str
    #: What orders the rows, in words for the user.
    ordered_by: str
    may_tie: bool
    #: The refusal of a row without a number.
    unplaced: str


def _placed(events: DataFrame, mapping: Mapping) -> _Placed:
    """The rows with their number: of the sequence, else by time, else by the place in the file.

    Several rows of a ticket may have the same time. In a file, the order of the rows decides then. In a table, equal
    times are refused.
    """
    seq = mapping.seq or (USUAL_SEQUENCE if USUAL_SEQUENCE in events.columns else None)
    if seq is not None:
        unplaced = f"{seq} is not a whole number"
        if _is_text(events, seq):
            unplaced += " (times go with --order)"
        return _Placed(events, _whole_number(events, seq), seq, f"column {seq}", may_tie=True, unplaced=unplaced)
    if events.isStreaming:
        raise InputError("--follow needs --seq: the column that orders the rows of a ticket")
    if mapping.order is None:
        rows = with_position(events)
        number = fn.row_number().over(Window.partitionBy(column(mapping.key)).orderBy(*map(column, POSITION)))
        ordered_by = "the order of the rows in the file"
        placed = rows.withColumn(PLACE, number)
        return _Placed(placed, column(PLACE), _IN_FILE, ordered_by, may_tie=False, unplaced="place is unknown")
    time = column(mapping.order).try_cast("timestamp")
    name, unplaced = f"place by {mapping.order}", f"{mapping.order} is not a time"
    try:
        rows = with_position(events)
    except InputError:
        ordered_by = f"the times of {mapping.order}"
        return _Placed(events, fn.unix_micros(time), name, ordered_by, may_tie=True, unplaced=unplaced)
    window = Window.partitionBy(column(mapping.key)).orderBy(time, *map(column, POSITION))
    number = fn.when(time.isNotNull(), fn.row_number().over(window))
    ordered_by = f"the times of {mapping.order}, equal ones by their rows' order in the file"
    return _Placed(rows.withColumn(PLACE, number), column(PLACE), name, ordered_by, may_tie=False, unplaced=unplaced)


def _whole_number(events: DataFrame, name: str) -> Column:
    """A column as a whole number, times in microseconds; null for a value that is not a whole number.

    Raises ``InputError`` for a column whose type has no numbers.
    """
    kind: DataType = events.schema[name].dataType
    if isinstance(kind, _INSTANTS):
        return fn.unix_micros(column(name).cast("timestamp"))
    number = column(name).try_cast("long")
    if isinstance(kind, _FRACTIONAL):
        # A cast alone would make 1 of 1.5, beside another 1.
        return fn.when(number == column(name), number)
    if not isinstance(kind, (*_INTEGERS, StringType)):
        raise InputError(f"--seq: the column {name!r} is {kind.simpleString()}: whole numbers or times order a ticket")
    return number
