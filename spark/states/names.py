"""Which keys of the server are states: where those of a subscription are kept, and what a key's name says. No I/O but
`homes_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast
from zlib import crc32

import redis

from bridge.routing.errors import InputError
from bridge.routing.keys import LaneKeys
from bridge.spark.read.options import ReadOptions
from bridge.spark.read.streams import sources_of
from bridge.spark.states.options import StateOptions
from bridge.spark.wire.address import RedisConnection, unavailable

_SPECIAL = b"\\*?["


@dataclass(frozen=True)
class Home:
    """The states of one subscription. Pickled into the tasks."""

    #: The consumer group, which is the subscription's name.
    subscription: str
    #: How the keys of its states begin; the rest is the ticket.
    prefix: bytes

    @property
    def pattern(self) -> bytes:
        """The pattern of SCAN that matches these keys, and no others."""
        return b"".join(b"\\%c" % byte if byte in _SPECIAL else b"%c" % byte for byte in self.prefix) + b"*"


def share_of(ticket: bytes, tasks: int) -> int:
    """Which of ``tasks`` tasks reads the state of a ticket."""
    return crc32(ticket) % tasks


def homes_of(connection: RedisConnection, options: StateOptions) -> list[Home]:
    """Where the states of each subscription are kept.

    A newer version of a stream has a key that names the oldest one, under whose name they are. Raises ``InputError``
    when no group is named and the stream has none, ``ServerUnavailable``, and what ``sources_of`` raises.
    """
    groups = [options.group] if options.group else _groups(connection, options)
    found = []
    try:
        for group in groups:
            keys = LaneKeys(options.stream, group)
            connection.send_command("GET", keys.state_home)
            home = cast("bytes | None", connection.read_response(disable_decoding=True))
            at = keys if home is None else LaneKeys(home.decode(), group)
            found.append(Home(group, at.state("").encode()))
    except (redis.RedisError, OSError) as error:
        raise unavailable(options.url, error) from None
    return found


def _groups(connection: RedisConnection, options: StateOptions) -> list[str]:
    """The groups of the stream, of all its partitions, by name."""
    groups: set[str] = set()
    for source in sources_of(connection, ReadOptions(url=options.url, stream=options.stream)):
        try:
            connection.send_command("XINFO", "GROUPS", source.key)
            rows = cast("Sequence[Sequence[bytes]]", connection.read_response(disable_decoding=True))
        except redis.exceptions.NoPermissionError as error:
            raise unavailable(options.url, error) from None
        except redis.ResponseError:
            continue  # this partition has no entry yet
        except (redis.RedisError, OSError) as error:
            raise unavailable(options.url, error) from None
        groups.update(row[row.index(b"name") + 1].decode() for row in rows)
    if not groups:
        raise InputError(
            f"stream {options.stream!r} at {options.shown_url} has no consumer group, so no subscription: name the "
            "right stream, or the subscription with the option group"
        )
    return sorted(groups)
