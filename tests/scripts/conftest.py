"""A world on each server; after each test every key in it must have an owner or an end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bridge.link.connections import client
from bridge.routing.keys import layout_copy_key, layout_key
from bridge.stack.embedded import EmbeddedServer
from tests.alternating import alternate, has_cases
from tests.conftest import REDIS6, VALKEY
from tests.keycheck import check_keys
from tests.scripts.world import SPLIT, World

#: Keys that belong to the "user" of these tests.
USERS = "user:*"


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test without cases runs on both servers. Of one with cases, each runs on one of them in `make test`."""
    if has_cases(item):
        alternate(item, (VALKEY, REDIS6))


@pytest.fixture
def empty(server: EmbeddedServer) -> Iterator[World]:
    """A lane with nothing in it."""
    with client(server.url) as connected:
        world = World(connected)
        yield world
        check_keys(connected, *world.lane_keys(), allowed=[USERS, layout_key(SPLIT), layout_copy_key(SPLIT)])


@pytest.fixture
def fresh(empty: World) -> World:
    """A lane with a group and a leader."""
    return empty.begin()


@pytest.fixture
def world(empty: World) -> World:
    """A lane with everything in it."""
    return empty.populated()
