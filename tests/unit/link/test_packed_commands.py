"""How commands are packed: as redis-py packs them, whatever their arguments."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Connection
from redis.exceptions import DataError

from bridge.routing.connection import client


@pytest.mark.parametrize(
    "arguments",
    [
        ("EVALSHA", "a1", 2, "key", b"other", "", b"\xff\r\n", "ü", 1.5, -7),
        ("SCRIPT LOAD", "return 1"),
        (b"XINFO GROUPS", "stream"),
        ("SET", "key", bytearray(b"value")),
        ("SET", "key", memoryview(b"value")),
    ],
)
def test_commands_are_packed_as_redis_py_packs_them(arguments: Any) -> None:
    made = client("redis://nowhere").connection_pool.make_connection()
    assert packed(made, arguments) == packed(Connection(host="nowhere"), arguments)


def packed(connection: Any, arguments: Any) -> bytes | None:
    """What it sends; None: it refuses that, as redis-py refuses a bytearray before version 7."""
    try:
        return b"".join(connection.pack_command(*arguments))
    except DataError:
        return None


def test_an_argument_that_cannot_be_packed_is_refused_before_it_is_sent() -> None:
    made = client("redis://nowhere").connection_pool.make_connection()
    with pytest.raises(DataError):
        made.pack_command("SET", "key", None)
