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
    assert b"".join(made.pack_command(*arguments)) == b"".join(Connection(host="nowhere").pack_command(*arguments))


def test_an_argument_that_cannot_be_packed_is_refused_before_it_is_sent() -> None:
    made = client("redis://nowhere").connection_pool.make_connection()
    with pytest.raises(DataError):
        made.pack_command("SET", "key", None)
