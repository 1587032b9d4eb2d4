"""The options of the ``redisstream`` data source, checked once, before Spark starts a task.

Spark hands options over as strings under lower-cased names. Here they become one frozen object; a name that is not
known is refused with the nearest one that is, since a misspelt option that is silently ignored loses order or data
much later, where nobody looks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from routing.errors import ConfigurationError
from spark.address import check_url, without_secrets

DEFAULT_URL = "redis://localhost:6379/0"
DEFAULT_STREAM = "ticket_stream"
#: Longest ticket in bytes of UTF-8: the contract of the stream, not an option.
MAX_TICKET_BYTES = 512


@dataclass(frozen=True)
class WriteOptions:
    """What a write needs to know. One attribute per option; ``OPTIONS`` holds the names that users write."""

    #: Where the server is. Never printed: it may hold a password.
    url: str = field(default=DEFAULT_URL, repr=False)
    #: The stream to append to.
    stream: str = DEFAULT_STREAM
    #: The column that becomes the field ``ticket_id``.
    key_column: str = "ticket_id"
    #: A whole-number column that rises within each ticket; when named, rows that break this are refused.
    seq_column: str | None = None
    #: The columns that become fields of the same name, after ``ticket_id``. Empty: all but key and sequence.
    fields: tuple[str, ...] = ()
    #: Columns that the writer sorts a whole partition by. Empty: rows are sent as Spark hands them over.
    order_by: tuple[str, ...] = ()
    #: Rows per send.
    chunk_size: int = 1000
    #: Sends that may be unanswered at once.
    window: int = 8
    #: Largest payload in bytes; what is over it is refused, as the bridge would refuse it.
    max_payload: int = 1024 * 1024

    @property
    def shown_url(self) -> str:
        """The server's address without user, password and query, fit for errors and logs."""
        return without_secrets(self.url)


def _text(name: str, value: str) -> str:
    if not value.strip():
        raise ConfigurationError(f"option {name} is empty")
    return value.strip()


def _url(name: str, value: str) -> str:
    return check_url(_text(name, value), called=f"option {name}")


def _columns(name: str, value: str) -> tuple[str, ...]:
    columns = tuple(part.strip() for part in value.split(","))
    if not all(columns):
        raise ConfigurationError(f"option {name} must be column names separated by commas, not {value!r}")
    doubled = sorted({column for column in columns if columns.count(column) > 1})
    if doubled:
        raise ConfigurationError(f"option {name} names column {doubled[0]!r} twice")
    return columns


def _positive(name: str, value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigurationError(f"option {name} must be a whole number of at least 1, not {value!r}")
    return number


#: Option name as users write it → attribute of ``WriteOptions`` and the function that checks its value.
OPTIONS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "url": ("url", _url),
    "stream": ("stream", _text),
    "keyColumn": ("key_column", _text),
    "seqColumn": ("seq_column", _text),
    "fields": ("fields", _columns),
    "orderBy": ("order_by", _columns),
    "chunkSize": ("chunk_size", _positive),
    "window": ("window", _positive),
    "maxPayload": ("max_payload", _positive),
}

_BY_LOWER_NAME = {name.lower(): name for name in OPTIONS}


def nearest(name: str, known: list[str]) -> str:
    """``'; did you mean X?'`` for the known name closest to ``name``, else the list of what is known."""
    lower = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.lower(), list(lower), n=1)
    if close:
        return f"; did you mean {lower[close[0]]}?"
    return f"; known are {', '.join(known)}" if known else "; there is none at all"


def parse(given: Mapping[str, str]) -> WriteOptions:
    """The options of one write.

    Raises ``ConfigurationError`` with one line for an unknown name or an impossible value. The value of ``url`` is in
    no error.
    """
    options = WriteOptions()
    for given_name, value in given.items():
        name = _BY_LOWER_NAME.get(given_name.lower())
        if name is None:
            raise ConfigurationError(f"option {given_name} is unknown{nearest(given_name, list(OPTIONS))}")
        attribute, check = OPTIONS[name]
        options = replace(options, **{attribute: check(name, str(value))})
    return options
