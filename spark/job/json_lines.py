"""JSON lines as events. A line that is not exactly one object, or has a member without a name, is malformed.

Of all other lines nothing is lost but what Spark's inference gives no type: a member that is an empty object, or a list
of empty objects, in every line.
"""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from bridge.routing.errors import InputError
from bridge.spark.job.log_columns import LINE, MALFORMED, ROW, WRONG, refuse_two_sources
from bridge.spark.write.columns import column, in_one_line
from bridge.spark.write.limits import REFUSED

#: A member without a name, which Spark leaves out. In JSON, two quotes in a row are an empty text, unless the first one
#: is a part of a text.
_NO_NAME = r'(?<!\\)""\s*:'
#: An escape of a surrogate, and one that is no part of a pair, in a line without escaped backslashes. Spark makes a
#: question mark of the latter.
_SURROGATE = r"\\u[dD][89a-fA-F]"
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = rf"{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW}"
#: An object with members of any kind, each as text.
_MEMBERS = "map<string,string>"
#: An object whose members are not read.
_NOTHING = "struct<__nothing: int>"
_TWICE = "COLUMN_ALREADY_EXISTS"


def infer_columns(session: SparkSession, path: str, lines: DataFrame, *, tolerant: bool) -> tuple[StructType, bool]:
    """The columns of JSON lines, with the types that Spark infers; and whether a line has a member twice.

    Raises ``InputError`` for a member that the names of folders have too.
    """
    doubled = False
    # Only the members: Spark would put the columns of folder names in the place of members of the same names.
    reader = session.read.option("mode", "FAILFAST").option("recursiveFileLookup", "true")
    if tolerant:
        reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", MALFORMED)
    try:
        try:
            found = reader.json(path).schema
        except AnalysisException as error:
            if not tolerant or error.getCondition() != _TWICE:
                raise
            doubled = True
            # A line that has a member twice is put aside. Lines of which nothing is left are no objects, or have a
            # member twice.
            text = column(LINE)
            found = reader.json(lines.where(fn.try_parse_json(text).isNotNull()).select(text)).schema
    except AnalysisException as error:
        if error.getCondition() != _TWICE:
            raise
        name = (error.getMessageParameters() or {}).get("columnName", "").strip("`")
        raise InputError(
            f"a line has the member {name!r} twice, or two lines have it in other capitals: they would be one column"
        ) from None
    members = [field for field in found.fields if field.name != MALFORMED]
    folders = [field for field in lines.schema.fields if field.name != LINE]
    refuse_two_sources((field.name for field in members), (field.name for field in folders))
    return StructType([*members, *folders]), doubled


def parsed_lines(lines: DataFrame, columns: StructType, *, tolerant: bool, compare_members: bool = True) -> DataFrame:
    """Lines of text (the first column) as JSON objects. Other columns come from the names of folders.

    Spark's own reader drops in silence: what follows the first value of a line, members that are no columns, at any
    depth, and all but the last of several members with one name. Here such a line is malformed. Columns that were
    inferred from these lines need no comparison of members (``compare_members``).
    """
    line, *others = lines.columns
    text = column(line)
    schema, options = columns, {"mode": "FAILFAST"}
    if tolerant:
        schema = StructType([*columns.fields]).add(MALFORMED, StringType())
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED}
    # A member that has the name of a folder's column would be left out in silence.
    members = StructType([field for field in columns.fields if field.name not in others])
    wrong = what_is_wrong(text, members, compare_members=compare_members)
    given = lines.where(text.rlike(r"\S"))
    wanted = [
        (column(field.name).cast(field.dataType) if field.name in others else column(ROW)[field.name]).alias(field.name)
        for field in columns.fields
    ]
    row = fn.from_json(text, schema, options).alias(ROW)
    if tolerant:
        rows = given.select(*map(column, others), row, fn.when(wrong.isNotNull(), text).alias(WRONG))
        return rows.select(*wanted, fn.coalesce(column(ROW)[MALFORMED], column(WRONG)).alias(MALFORMED))
    said = fn.concat(fn.lit(f"{REFUSED}a line "), wrong, fn.lit(": "), in_one_line(fn.substring(text, 1, 60)))
    # A filter, since Spark may remove a column that the payload leaves out, but no filter.
    checked = given.where(fn.when(wrong.isNotNull(), fn.raise_error(said)).otherwise(fn.lit(True)))
    return checked.select(*map(column, others), row).select(*wanted)


def what_is_wrong(text: Column, columns: StructType, *, compare_members: bool = True) -> Column:
    """What is wrong with a line of text; null when nothing is."""
    wrong = (
        fn.when(~fn.is_valid_utf8(text), fn.lit("is not valid UTF-8"))
        .when(~_is_one_object(text), fn.lit("is not one JSON object and nothing else"))
        .when(text.rlike(_NO_NAME), fn.lit("has a member whose name is empty"))
        # Most lines have none, and need no copy.
        .when(text.rlike(_SURROGATE) & _has_half(text), fn.lit("has half of a surrogate pair, which is no character"))
    )
    return wrong.otherwise(_wrong_within(text, columns)) if compare_members else wrong


def _is_one_object(text: Column) -> Column:
    """Whether a text is exactly one JSON object, as Spark reads them (NaN and single quotes are allowed).

    A text that parses as the only element of an array, and as the only member of an object, is exactly one value.
    """
    listed = fn.from_json(fn.concat(fn.lit("["), text, fn.lit("]")), f"array<{_NOTHING}>")
    named = fn.from_json(fn.concat(fn.lit('{"":'), text, fn.lit("}")), f"map<string,{_NOTHING}>")
    is_one = text.rlike(r"^\s*\{") & (fn.size(listed) == 1) & named.isNotNull()
    return fn.coalesce(is_one, fn.lit(False))


def _has_half(text: Column) -> Column:
    # What is behind an escaped backslash is no escape. Something takes its place, so that no pair comes about.
    return fn.replace(text, fn.lit("\\\\"), fn.lit("/")).rlike(_HALF)


def _wrong_members(members: Column, columns: StructType) -> Column:
    """What is wrong with an object's members (text by name); null when nothing is."""
    names = fn.map_keys(members)
    new = fn.get(fn.array_except(names, fn.array(*map(fn.lit, columns.names))), 0)
    # If `new` is null, the text is null.
    unknown = fn.concat(
        fn.lit("has a member '"), in_one_line(new), fn.lit("' that is no column; start again, or name it in --schema")
    )
    within = [
        _wrong_within(fn.element_at(members, field.name), field.dataType)
        for field in columns.fields
        if _holds_objects(field.dataType)
    ]
    return fn.coalesce(_doubled(names), unknown, *within)


def _doubled(names: Column) -> Column:
    more = fn.filter(names, lambda name: fn.size(fn.filter(names, lambda other: other == name)) > 1)
    said = fn.concat(fn.lit("has the member '"), in_one_line(fn.get(more, 0)), fn.lit("' twice"))
    return fn.when(fn.size(fn.array_distinct(names)) < fn.size(names), said)


def _holds_objects(kind: DataType) -> bool:
    return isinstance(kind, (StructType, MapType)) or (isinstance(kind, ArrayType) and _holds_objects(kind.elementType))


def _wrong_within(text: Column, kind: DataType) -> Column:
    """What is wrong within a value that holds objects; null when nothing is."""
    # The parsed value is the argument of a lambda, so that it is parsed only once.
    if isinstance(kind, StructType):
        columns = kind
        object_ = fn.array(fn.from_json(text, _MEMBERS))
        return fn.get(fn.transform(object_, lambda members: _wrong_members(members, columns)), 0)
    if isinstance(kind, MapType):
        values = kind.valueType
        object_ = fn.array(fn.from_json(text, _MEMBERS))
        return fn.get(fn.transform(object_, lambda members: _wrong_entries(members, values)), 0)
    assert isinstance(kind, ArrayType)
    return _first_wrong(fn.from_json(text, "array<string>"), kind.elementType)


def _wrong_entries(members: Column, kind: DataType) -> Column:
    doubled = _doubled(fn.map_keys(members))
    return fn.coalesce(doubled, _first_wrong(fn.map_values(members), kind)) if _holds_objects(kind) else doubled


def _first_wrong(values: Column, kind: DataType) -> Column:
    said = fn.transform(values, lambda value: _wrong_within(value, kind))
    return fn.get(fn.filter(said, lambda what: what.isNotNull()), 0)
