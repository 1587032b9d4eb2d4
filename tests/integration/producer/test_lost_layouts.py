"""The layout of a split stream is lost, damaged, or in conflict with an older version: what producers do then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from bridge.producer.parts import PART_MESSAGES, Part
from bridge.producer.pusher import Destination, Pushed, push_rows
from bridge.producer.rows import Row
from bridge.routing.errors import ConfigurationError, ServerUnavailable
from bridge.routing.keys import LaneKeys, layout_key
from bridge.routing.layouts import claim_layout, find_layout, restore_layout
from bridge.routing.partitions import Layout, partition_of
from bridge.routing.repartitioning import forget_layout, leave_layout, next_layout, repartition
from bridge.routing.return_codes import ReturnCode
from bridge.routing.subscribing import make_group
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import broker_environment
from tests.integration.producer.test_producers import EACH_WAY, STREAM, shop_of
from tests.integration.servers import run_command

P = 4
KEY = layout_key(STREAM)
#: What a key can hold that is no layout: a command that sets it.
DAMAGES = {
    "list": ("RPUSH", KEY, "x"),
    "json": ("SET", KEY, '{"partitions": 4'),
    "deep": ("SET", KEY, "[" * 100_000),
    "binary": ("SET", KEY, b"\xff\x00"),
}
EACH_DAMAGE = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
UNREADABLE = (
    r"the layout of stream ticket_stream cannot be read: .* in the key {ticket_stream}/layout; .*delete the key"
)


@pytest.fixture
def redis(server: EmbeddedServer) -> Iterator[Any]:
    with server.client(decode_responses=True) as client:
        yield client


@pytest.fixture
def shop(server: EmbeddedServer) -> Iterator[Any]:
    """Of an app that sets no partitions."""
    task = shop_of(server.url)
    yield task
    task.app.bridge.client.close()


def lose(redis: Any) -> None:
    """FLUSHALL while masters run: they make their groups again."""
    redis.flushall()
    for stream in Layout(P).streams(STREAM):
        redis.xgroup_create(stream, "concurrency_stream_group", "0", mkstream=True)


@EACH_WAY
@pytest.mark.parametrize("options", [{}, {"idempotency_key": "k"}], ids=["plain", "once"])
def test_a_producer_without_the_setting_does_not_use_the_unsplit_stream(
    redis: Any, shop: Any, push_many: Callable[..., list[str]], options: dict[str, str]
) -> None:
    lose(redis)
    with pytest.raises(ServerUnavailable, match=r"{ticket_stream}/layout is not there; .*; 0 of 2 messages are in"):
        push_many(shop, [("T1", 1), ("T2", 2)], **options)
    with pytest.raises(ServerUnavailable, match=r"is not there; .*; the message is not in"):
        shop.push("T1", 1)
    assert not redis.exists(STREAM, KEY)
    # A master stores it again.
    claim_layout(redis, STREAM, P)
    assert [id_.partition("@")[2] for id_ in push_many(shop, [("T42", 1)], **options)] == ["p1"]


@EACH_WAY
@pytest.mark.parametrize("options", [{}, {"idempotency_key": "k"}], ids=["plain", "once"])
@pytest.mark.parametrize("split", ["first", "again"])
def test_nor_when_somebody_added_a_message_to_the_unsplit_stream(
    redis: Any, shop: Any, push_many: Callable[..., list[str]], options: dict[str, str], split: str
) -> None:
    """Nobody reads that stream: the layout is lost all the same."""
    if split == "first":
        lose(redis)
    else:
        assert repartition(redis, STREAM, Layout(), next_layout(Layout(), P))[0] is ReturnCode.OK
        redis.delete(KEY)
    redis.xadd(STREAM, {"ticket_id": "T"})
    for push in (shop.push, lambda *message: push_many(shop, [message], **options)):
        with pytest.raises(ServerUnavailable, match=r"{ticket_stream}/layout is not there"):
            push("T1", 1)
    assert redis.xlen(STREAM) == 1
    assert not redis.exists(KEY)
    # A master stores it again.
    assert claim_layout(redis, STREAM, P).partitions == P
    assert "p1" in shop.push("T42", 1).partition("@")[2]


def test_a_stream_that_is_read_is_used_although_another_one_has_the_name_of_a_partition(redis: Any, shop: Any) -> None:
    make_group(redis, LaneKeys(STREAM, "concurrency_stream_group"), "0")
    redis.xadd(f"{STREAM}:p0", {"other": "x"})
    assert "@" not in shop.push("T1", 1)
    assert redis.xlen(STREAM) == 1


@EACH_WAY
def test_a_producer_that_knew_the_layout_stores_it_again(
    redis: Any, shop: Any, push_many: Callable[..., list[str]]
) -> None:
    claim_layout(redis, STREAM, P)
    push_many(shop, [("T42", 1)])
    text = redis.get(KEY)
    redis.flushall()
    assert push_many(shop, [("T42", 2)])[0].endswith("@p1")
    assert redis.get(KEY) == text
    redis.flushall()
    assert shop.push("T42", 3).endswith("@p1")
    assert redis.get(KEY) == text


@EACH_WAY
def test_a_layout_that_is_deleted_between_two_parts_is_stored_again(
    redis: Any, shop: Any, push_many: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_layout(redis, STREAM, P)
    made, firsts = Part.call, list[int]()

    def call(self: Part, *rest: Any) -> bytes:
        firsts.append(self.first)
        if firsts.count(self.first) == 1:
            redis.delete(KEY)
        return made(self, *rest)

    push_many(shop, [("T42", 0)])
    monkeypatch.setattr(Part, "call", call)
    count = 3 * PART_MESSAGES
    ids = push_many(shop, [(f"T{n % 9}", n) for n in range(count)])
    assert len(set(ids)) == count
    assert len(firsts) == 6
    assert not redis.exists(STREAM)
    assert sum(redis.xlen(stream) for stream in Layout(P).streams(STREAM)) == count + 1


@EACH_WAY
@EACH_DAMAGE
@pytest.mark.parametrize("partitions", [1, P])
def test_a_key_that_is_no_layout_is_named_in_one_line(
    server: EmbeddedServer, redis: Any, push_many: Callable[..., list[str]], damage: tuple[Any, ...], partitions: int
) -> None:
    redis.execute_command(*damage)
    task = shop_of(server.url, bridge_partitions=partitions)
    for options in ({}, {"idempotency_key": "k"}):
        with pytest.raises(ConfigurationError, match=UNREADABLE) as raised:
            push_many(task, [("T", 1)], **options)
        assert "\n" not in str(raised.value)
    with pytest.raises(ConfigurationError, match=UNREADABLE):
        task.push("T", 1)
    assert redis.keys("*") == [KEY]
    task.app.bridge.client.close()


@EACH_WAY
def test_a_layout_that_is_damaged_between_two_parts_says_which_messages_are_in(
    redis: Any, shop: Any, push_many: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_layout(redis, STREAM, P)
    push_many(shop, [("T42", 0)])
    made = Part.call

    def call(self: Part, *rest: Any) -> bytes:
        if self.first:
            redis.set(KEY, "x")
        return made(self, *rest)

    monkeypatch.setattr(Part, "call", call)
    with pytest.raises(ConfigurationError, match="; 500 of 1,000 messages are in, in order, and none after them"):
        push_many(shop, [("T", n) for n in range(2 * PART_MESSAGES)])


def test_a_file_goes_to_the_partitions_also_when_the_layout_is_lost_or_damaged(server: EmbeddedServer) -> None:
    with server.client() as redis:
        destination = Destination(STREAM, claim_layout(redis, STREAM, P))
        text = redis.get(KEY)

        def rows(then: Callable[[], Any]) -> Iterator[Row]:
            for n in range(40):
                if n == 10:
                    then()
                yield Row(n + 1, b"T%d" % (n % 5), "shop.apply_update", b"1")

        pushed = Pushed()
        push_rows(redis, destination, rows(lambda: redis.delete(KEY)), 5, pushed, lambda _: None)
        assert (pushed.rows, redis.get(KEY), redis.exists(STREAM)) == (40, text, 0)
        pushed = Pushed()
        with pytest.raises(ConfigurationError, match=UNREADABLE):
            push_rows(redis, destination, rows(lambda: redis.set(KEY, "x")), 5, pushed, lambda _: None)
        # None of the batch that came after it
        assert pushed.rows == 10
        assert sum(redis.xlen(stream) for stream in Layout(P).streams(STREAM)) == 50


@pytest.mark.parametrize("first", [1, P])
def test_no_row_of_a_file_goes_to_a_partition_that_has_been_left(server: EmbeddedServer, first: int) -> None:
    """The rows come from a pipe, and the next one a while after the one before: the layout has changed meanwhile, and
    the old partitions are gone.
    """
    with server.client() as redis:
        destination = Destination(STREAM, claim_layout(redis, STREAM, first))

        def rows() -> Iterator[Row]:
            for n in range(40):
                if n == 10:
                    known = find_layout(redis, STREAM, first)
                    redis.delete(*known.streams(STREAM))
                    assert repartition(redis, STREAM, known, next_layout(known, 3))[0] is ReturnCode.OK
                    known = find_layout(redis, STREAM, first)
                    assert leave_layout(redis, STREAM, known, [])[0] is ReturnCode.OK
                    forget_layout(redis, STREAM, find_layout(redis, STREAM, first))
                yield Row(n + 1, b"T%d" % (n % 5), "shop.apply_update", b"%d" % n)

        pushed = Pushed()
        push_rows(redis, destination, rows(), 5, pushed, lambda _: None)
        assert (pushed.rows, pushed.last_id.partition("@")[2][:3] if pushed.last_id else "") == (40, "g1p")
        assert not redis.exists(*Layout(first).streams(STREAM))
        found = [
            int(fields[b"payload"]) for stream in Layout(3, 1).streams(STREAM) for _, fields in redis.xrange(stream)
        ]
        assert sorted(found) == list(range(10, 40))
        redis.flushall()


def test_commands_say_what_is_lost_and_what_is_damaged(server: EmbeddedServer, redis: Any, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"ticket_id": "T1"}\n')
    env = {**broker_environment(server.url), "COUNTER_LEDGER": str(tmp_path)}

    def refused(*arguments: str) -> str:
        done = run_command(env, *arguments)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        return done.stderr

    lose(redis)
    for arguments in (("push", str(file), "--task", "counter.append"), ("stream", "info"), ("status",)):
        assert "{ticket_stream}/layout is not there" in refused(*arguments)
    assert not redis.exists(STREAM)
    redis.rpush(KEY, "x")
    for arguments in (("push", str(file), "--task", "counter.append"), ("stream", "info"), ("status",)):
        assert "cannot be read: no string in the key {ticket_stream}/layout" in refused(*arguments)


@EACH_WAY
def test_a_push_stores_no_layout_that_its_older_version_contradicts(
    server: EmbeddedServer, redis: Any, push_many: Callable[..., list[str]]
) -> None:
    redis.xadd("orders", {"ticket_id": "T"})
    claim_layout(redis, "sold", 3)
    for older, has in (("orders", "1 partition"), ("sold", "3 partitions")):
        task = shop_of(server.url, bridge_partitions=P, bridge_follows=[older])
        said = f"stream {older} has {has}, and ticket_stream, which follows it, has 4 partitions: .* set bridge_part"
        with pytest.raises(ConfigurationError, match=said):
            push_many(task, [("T", 1)])
        with pytest.raises(ConfigurationError, match=said):
            task.push("T", 1)
        task.app.bridge.client.close()
    assert sorted(redis.keys("*")) == sorted(["orders", layout_key("sold")])
    claim_layout(redis, "rented", P)
    task = shop_of(server.url, bridge_partitions=P, bridge_follows=["rented", "never"])
    assert push_many(task, [("T42", 1)])[0].endswith("@p1")
    task.app.bridge.client.close()


@pytest.mark.parametrize("partitions", [2, 3, 5, 8])
def test_a_process_that_is_set_otherwise_does_not_replace_a_lost_layout(
    server: EmbeddedServer, redis: Any, partitions: int
) -> None:
    lose(redis)
    task = shop_of(server.url, bridge_partitions=partitions)
    for push in (task.push, lambda *message: task.push_many([message])):
        with pytest.raises(ConfigurationError, match=r"its layout is lost: .* with bridge_partitions set as it was"):
            push("T42", 1)
    assert not redis.exists(KEY, STREAM)
    assert not any(redis.xlen(stream) for stream in Layout(P).streams(STREAM))
    claim_layout(redis, STREAM, P)
    assert task.push("T42", 1).endswith("@p1")
    task.app.bridge.client.close()


def test_a_lost_layout_of_partitions_that_no_master_has_led_is_stored_by_the_setting(redis: Any) -> None:
    redis.xadd(f"{STREAM}:p0", {"ticket_id": "T"})
    assert claim_layout(redis, STREAM, P).partitions == P


@pytest.mark.parametrize("setting", [1, P])
@pytest.mark.parametrize("commands", range(5))
def test_a_layout_that_is_stored_between_two_commands_of_a_reader_is_not_lost(
    server: EmbeddedServer, redis: Any, commands: int, setting: int
) -> None:
    """The first leader stores it and makes the partitions, after this many ``commands`` of the reader."""
    left = [None] * commands

    def lead() -> None:
        if left:
            left.pop()
        elif not redis.exists(KEY):
            claim_layout(redis, STREAM, P)
            redis.xadd(f"{STREAM}:p0", {"ticket_id": "T"})

    class Interrupted(Redis):
        def execute_command(self, *args: Any, **options: Any) -> Any:
            lead()
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    with Interrupted.from_url(server.url, decode_responses=True) as reader:
        assert find_layout(reader, STREAM, setting).partitions in (setting, P)
    left.clear()
    lead()
    assert find_layout(redis, STREAM, setting).partitions == P


def test_a_claim_beside_a_message_in_the_unsplit_stream(redis: Any) -> None:
    """Somebody added a message to the stream itself while the layout was lost."""
    lose(redis)
    redis.xadd(STREAM, {"ticket_id": "T"})
    assert find_layout(redis, STREAM, P) == Layout(P)
    assert claim_layout(redis, STREAM, P).partitions == P
    # A stream that a lane reads stays as it is.
    lose(redis)
    redis.delete(KEY)
    make_group(redis, LaneKeys(STREAM, "concurrency_stream_group"), "0")
    assert claim_layout(redis, STREAM, P) == Layout()


def test_a_lost_layout_is_stored_again_on_a_full_server(redis: Any) -> None:
    layout = claim_layout(redis, STREAM, P)
    redis.xadd(f"{STREAM}:p{partition_of('T', P)}", {"x": "x" * 100_000})
    redis.delete(KEY)
    redis.config_set("maxmemory", 1)
    try:
        assert restore_layout(redis, STREAM, layout) == layout
        redis.delete(KEY)
        assert claim_layout(redis, STREAM, P).partitions == P
    finally:
        redis.config_set("maxmemory", 0)


@pytest.mark.parametrize("rules", [("~other*",), ("~*", "-set"), ("~*", "-get", "-set")], ids=" ".join)
def test_a_user_who_may_not_read_or_store_the_layout_is_named_the_key(
    server: EmbeddedServer, redis: Any, rules: tuple[str, ...]
) -> None:
    said = "may not read or store the layout of stream ticket_stream in the key {ticket_stream}/layout"
    redis.execute_command("ACL", "SETUSER", "low", "reset", "on", ">pw", "+@all", *rules)
    with server.client(username="low", password="pw") as low:
        with pytest.raises(ConfigurationError, match=said):
            claim_layout(low, STREAM, P)
        if rules == ("~*", "-set"):
            assert find_layout(low, STREAM, P) == Layout(P)
        else:
            with pytest.raises(ConfigurationError, match=said):
                find_layout(low, STREAM, P)
    redis.execute_command("ACL", "DELUSER", "low")
    assert not redis.exists(KEY)
