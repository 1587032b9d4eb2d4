"""The options of a read from ``redisstate``, checked once, before Spark starts a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.routing.errors import ConfigurationError
from bridge.spark.wire.address import without_secrets
from bridge.spark.wire.options import DEFAULT_STREAM, DEFAULT_URL, Option, nearest, positive, text, url


@dataclass(frozen=True)
class StateOptions:
    """The options of one read. One attribute per option; ``OPTIONS`` has the names that users write."""

    #: Where the server is. Never printed: it may hold a password.
    url: str = field(default=DEFAULT_URL, repr=False)
    #: The stream of the tickets; of a split stream, the whole one.
    stream: str = DEFAULT_STREAM
    #: The subscription: the name of its consumer group. Empty: all that the stream has.
    group: str = ""
    #: How many tasks read. None: it follows from the number of keys.
    partitions: int | None = None
    #: Whether a damaged state fails the read; otherwise its row says what is wrong.
    fail_on_damage: bool = True

    @property
    def shown_url(self) -> str:
        """The server's address without user, password and query, fit for errors and logs."""
        return without_secrets(self.url)


def _damaged(name: str, value: str) -> bool:
    kinds = {"fail": True, "row": False}
    if value.strip().lower() not in kinds:
        raise ConfigurationError(f"option {name} must be fail or row, not {value!r}")
    return kinds[value.strip().lower()]


#: Option name as users write it → attribute of ``StateOptions`` and the function that checks its value.
OPTIONS: dict[str, Option] = {
    "url": ("url", url),
    "stream": ("stream", text),
    "group": ("group", text),
    "numPartitions": ("partitions", positive),
    "damaged": ("fail_on_damage", _damaged),
}
_BY_LOWER_NAME = {name.lower(): name for name in OPTIONS}


def parse_states(given: Mapping[str, str]) -> StateOptions:
    """The options of one read. Raises ``ConfigurationError`` with one line; the value of ``url`` is in no error."""
    values = {}
    for given_name, value in given.items():
        name = _BY_LOWER_NAME.get(given_name.lower())
        if name is None:
            raise ConfigurationError(f"option {given_name} is unknown{nearest(given_name, [*OPTIONS])}")
        attribute, check = OPTIONS[name]
        values[attribute] = check(name, str(value))
    return StateOptions(**values)
