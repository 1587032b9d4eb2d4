"""Columns by exactly their names, and texts as the line of an error can show them."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from bridge.routing.errors import ConfigurationError
from bridge.spark.wire.options import nearest


def in_one_line(text: Column) -> Column:
    """A text from outside as an error can show it: line breaks and control characters are written as escapes."""
    for character, shown in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = fn.replace(text, fn.lit(character), fn.lit(shown))
    return fn.regexp_replace(text, r"[\p{Cc}\u2028\u2029]", "\ufffd")


def column(name: str) -> Column:
    """The column of exactly this name, which may contain dots and backticks."""
    return fn.col(f"`{name.replace('`', '``')}`")


def require_column(rows: DataFrame, parameter: str, name: str) -> str:
    """``name`` itself if the column exists; else ``ConfigurationError`` with the parameter and the nearest name."""
    if name not in rows.columns:
        raise ConfigurationError(f"{parameter}: there is no column {name!r}{nearest(name, rows.columns)}")
    return name
