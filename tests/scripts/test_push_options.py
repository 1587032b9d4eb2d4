"""Options in the scripts of a producer: delays by the server's clock, values that are left out, times that are past."""

from __future__ import annotations

import pytest
from redis import Redis

from bridge.link.connections import client
from bridge.routing.errors import OptionError
from bridge.routing.partitions import Layout
from bridge.routing.producing import places_of
from tests.script_calls import push_many, push_once
from tests.scripts.world import World, entries_of

pytestmark = pytest.mark.scripts

STREAM = "ticket_stream"
PLACES = places_of(STREAM, Layout(), [0])
FIELDS = ("due", "hold", "priority")
#: One with all of them, one with none, one whose time is past.
VALUES = [b"A", b"1", b"+5000", b"1", b"7", b"B", b"2", b"", b"", b"", b"C", b"3", b"1000", b"", b"3"]
DIGEST = "ab12"


def server_ms(connected: Redis) -> int:
    seconds, microseconds = connected.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def check(world: World, before_ms: int) -> None:
    """The entries are those of `VALUES`, and the delay was added to the server's time."""
    first, second, third = (fields for _, fields in entries_of(world.client, STREAM))
    due_ms = int(first.pop("due"))
    assert before_ms + 5000 <= due_ms <= server_ms(world.client) + 5000
    assert first == {"ticket_id": "A", "task": "shop.update", "hold": "1", "priority": "7", "payload": "1"}
    assert second == {"ticket_id": "B", "task": "shop.update", "payload": "2"}
    assert third == {"ticket_id": "C", "task": "shop.update", "due": "1000", "priority": "3", "payload": "3"}


def once(world: World, values: list[bytes], earliest_ms: int = 0) -> list[str]:
    return push_once(world.client, PLACES, "shop.update", values, "the key", 0, DIGEST, FIELDS, earliest_ms)


def many(world: World, values: list[bytes]) -> list[str]:
    return push_many(world.client, PLACES, "shop.update", values, FIELDS)


def test_each_message_has_its_own_options(empty: World) -> None:
    before_ms = server_ms(empty.client)
    ids = many(empty, VALUES)
    assert ids == [id_ for id_, _ in entries_of(empty.client, STREAM)]
    check(empty, before_ms)


def test_each_message_of_a_push_with_a_key_has_its_own_options(empty: World) -> None:
    before_ms = server_ms(empty.client)
    ids = once(empty, VALUES)
    assert ids == [id_ for id_, _ in entries_of(empty.client, STREAM)]
    check(empty, before_ms)


def test_without_a_key_a_time_may_have_passed_on_the_way(empty: World) -> None:
    push_many(empty.client, PLACES, "shop.update", [b"A", b"1", b"=1000"], ["due"])
    [(_, fields)] = entries_of(empty.client, STREAM)
    assert fields["due"] == "1000"


def test_with_a_key_a_time_that_is_past_refuses_all_messages(empty: World) -> None:
    before = empty.snapshot()
    with pytest.raises(OptionError, match="eta or expires is past by the server's clock"):
        once(empty, [b"A", b"1", b"+5000", b"", b"", b"B", b"2", b"=1000", b"", b""], 1000)
    assert empty.snapshot() == before


def test_a_push_that_has_begun_goes_on_when_a_time_has_passed(empty: World) -> None:
    now_ms = server_ms(empty.client)
    first = [b"A", b"1", b"=%d" % (now_ms + 3_600_000), b"", b""]
    push_once(empty.client, PLACES, "shop.update", first, "the key", 0, DIGEST, FIELDS, now_ms + 3_600_000)
    # When the rest is pushed, or pushed again, later
    rest = [b"B", b"2", b"=1000", b"", b""]
    ids = push_once(empty.client, PLACES, "shop.update", rest, "the key", 1, DIGEST, FIELDS, 1000)
    assert entries_of(empty.client, STREAM)[-1][0] == ids[0]


def test_a_push_that_was_made_is_repeated_when_its_time_is_past(empty: World) -> None:
    ids = once(empty, [b"A", b"1", b"=%d" % (server_ms(empty.client) + 3_600_000), b"", b""])
    before = empty.snapshot()
    # What has passed meanwhile does not matter: nothing is added, and the first one's id comes back.
    assert once(empty, [b"A", b"1", b"=1000", b"", b""]) == ids
    assert empty.snapshot() == before


@pytest.mark.parametrize("with_key", [False, True])
def test_a_user_who_may_not_run_time_adds_no_delayed_message(empty: World, *, with_key: bool) -> None:
    empty.client.acl_setuser("plain", enabled=True, passwords=["+secret"], commands=["+@all", "-time"], keys=["*"])
    host = empty.client.connection_pool.connection_kwargs
    url = f"redis://plain:secret@{host['host']}:{host['port']}/0"
    try:
        with client(url) as connected:
            before = empty.snapshot()
            world = World(connected)
            with pytest.raises(OptionError, match="may not run TIME"):
                (once if with_key else many)(world, VALUES)
            assert empty.snapshot() == before
    finally:
        empty.client.acl_deluser("plain")
