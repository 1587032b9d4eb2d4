"""What the options of a write and of a read have in common: their names, the checks of values, and the errors.

Spark hands options over as strings under lower-cased names. An unknown name is refused, and the error names the nearest
known one: a misspelt option that is ignored could lose order or data much later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from bridge.routing.errors import ConfigurationError
from bridge.routing.text import printable
from bridge.spark.wire.address import check_url

DEFAULT_URL = "redis://localhost:6379/0"
DEFAULT_STREAM = "ticket_stream"

#: The attribute that holds an option, and the function that checks its value: it gets the option's name for errors.
Option = tuple[str, Callable[[str, str], Any]]

#: What only a write knows. ``bridge.spark.write.options`` says what they mean.
WRITE_ONLY = (
    "keyColumn",
    "seqColumn",
    "orderBy",
    "chunkSize",
    "window",
    "maxPayload",
    "idempotence",
    "runId",
    "guardKey",
    "guardTtl",
    "highWater",
    "maxWait",
)
#: What only a read knows. ``bridge.spark.read.options`` says what they mean.
READ_ONLY = ("table", "group", "startingId", "endingId", "maxRowsPerTrigger", "numPartitions", "failOnDataLoss")
#: Options that Spark itself adds to those of a sink. They are ignored.
_SPARKS = ("checkpointlocation", "queryname")


def text(name: str, value: str) -> str:
    """A value that is not empty."""
    if not value.strip():
        raise ConfigurationError(f"option {name} is empty")
    return value.strip()


def column(name: str, value: str) -> str:
    """The name of a column, exactly: it may begin or end with spaces."""
    text(name, value)
    return value


def url(name: str, value: str) -> str:
    """The address of a server. No error quotes it."""
    return check_url(text(name, value), called=f"option {name}")


def columns(name: str, value: str) -> tuple[str, ...]:
    """Names of columns, separated by commas, each once."""
    found = tuple(part.strip() for part in value.split(","))
    if not all(found):
        raise ConfigurationError(f"option {name} must be column names separated by commas, not {value!r}")
    doubled = sorted({column for column in found if found.count(column) > 1})
    if doubled:
        raise ConfigurationError(f"option {name} names column {doubled[0]!r} twice")
    return found


def positive(name: str, value: str) -> int:
    """A whole number of at least 1."""
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigurationError(f"option {name} must be a whole number of at least 1, not {value!r}")
    return number


#: The options that a write and a read both have.
SHARED: dict[str, Option] = {"url": ("url", url), "stream": ("stream", text), "fields": ("fields", columns)}
_ALL = (*SHARED, *WRITE_ONLY, *READ_ONLY)
_BY_LOWER_NAME = {name.lower(): name for name in _ALL}


def nearest(name: str, known: list[str]) -> str:
    """``'; did you mean X?'`` for the known name closest to ``name``, else the list of what is known; on one line."""
    lower = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.lower(), list(lower), n=1)
    if close:
        return f"; did you mean {printable(lower[close[0]])}?"
    return f"; known are {', '.join(map(printable, known))}" if known else "; there is none"


def refuse_table(given: Mapping[str, str]) -> None:
    """Raises ``ConfigurationError`` for a table of Spark (``INSERT INTO``, ``CREATE TABLE … USING``).

    Its options do not arrive: without this, its rows would go to the local server. Where Spark asks for the columns of
    a new table, it adds properties of its own, such as ``provider``.
    """
    names = {name.lower() for name in given}.difference(_SPARKS)
    if not names or "provider" in names:
        raise ConfigurationError(
            "Spark hands over none of a table's options: name url and stream where the table is used, by .option(…) or "
            "INSERT INTO t WITH (url = '…', stream = '…'), or use save() and load()"
        )


def check_names(given: Mapping[str, str]) -> None:
    """Raises ``ConfigurationError`` for a name that neither a write nor a read knows."""
    for name in given:
        if name.lower() not in (*_BY_LOWER_NAME, *_SPARKS):
            raise ConfigurationError(f"option {name} is unknown{nearest(name, [*_ALL])}")


def checked_values(given: Mapping[str, str], known: Mapping[str, Option], *, foreign: str) -> dict[str, Any]:
    """Attribute → checked value, for the options of one direction.

    ``known`` are the options of that direction; ``foreign`` is what an error says of an option of the other one. Raises
    ``ConfigurationError`` with one line for an unknown name, a foreign one, and an impossible value.
    """
    check_names(given)
    values = {}
    for given_name, value in given.items():
        if given_name.lower() in _SPARKS:
            continue
        name = _BY_LOWER_NAME[given_name.lower()]
        if name not in known:
            raise ConfigurationError(f"option {name} {foreign}")
        attribute, check = known[name]
        values[attribute] = check(name, str(value))
    return values
