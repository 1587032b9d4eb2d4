"""Cases of a test that run on one of the two servers in ``make test``, and on the other one in ``make long``.

Many cases of one test call the same commands and scripts. So half of them on each server find what only one of the
servers does, and a second run of every case finds little more.
"""

from __future__ import annotations

from zlib import crc32

import pytest

#: The fixture whose parameter is the server.
SERVER = "server"
#: Parameters that make no case: the server, and how much a random test draws.
NO_CASES = {SERVER, "examples", "runs"}


def alternate(item: pytest.Item, servers: tuple[str, str]) -> None:
    """Marks the item as ``long`` on the server that its case does not use in ``make test``. Its name decides which."""
    callspec = getattr(item, "callspec", None)
    on = callspec.params.get(SERVER) if callspec is not None else None
    if on in servers:
        case = item.nodeid.replace(on, "")
        if servers[crc32(case.encode()) % 2] != on:
            item.add_marker("long")


def has_cases(item: pytest.Item) -> bool:
    """Whether the item's test has several cases on each server."""
    callspec = getattr(item, "callspec", None)
    return callspec is not None and not NO_CASES.issuperset(callspec.params)
