"""Delayed pushes: what is in the stream, by the server's clock, for each way to push."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

import bridge.producer.push
from bridge.producer.parts import PART_MESSAGES
from bridge.routing.errors import OptionError, PayloadError, ServerUnavailable
from bridge.routing.keys import layout_key
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import wait_until
from tests.integration.producer.test_producers import EACH_WAY, STREAM, in_loop, shop_of

#: Ways to push one message.
ONE = pytest.mark.parametrize(
    "push",
    [
        lambda task, *args, **options: task.push(*args, **options),
        lambda task, *args, **options: in_loop(task, lambda: task.apush(*args, **options)),
        lambda task, *args, **options: task.push_many([args], **options)[0],
        lambda task, *args, **options: task.push_many([(*args, options)])[0],
        lambda task, *args, **options: task.push(*args, **options, idempotency_key="k"),
    ],
    ids=["push", "apush", "push_many", "own options", "with a key"],
)


@pytest.fixture(params=[1, 4], ids=["whole", "split"])
def shop(request: pytest.FixtureRequest, server: EmbeddedServer) -> Iterator[Any]:
    task = shop_of(server.url, bridge_partitions=request.param)
    yield task
    task.app.bridge.client.close()


@pytest.fixture
def redis(server: EmbeddedServer) -> Iterator[Any]:
    with server.client(decode_responses=True) as client:
        yield client


def entry(redis: Redis, id_: str) -> dict[str, str]:
    plain, _, partition = id_.partition("@")
    stream = f"{STREAM}:{partition}" if partition else STREAM
    found: Any = redis.xrange(stream, plain, plain)
    fields: dict[str, str] = found[0][1]
    return fields


def is_empty(redis: Redis) -> bool:
    return all(redis.type(key) != "stream" for key in redis.scan_iter())


def now_ms(redis: Redis) -> int:
    found: Any = redis.time()
    seconds, us = found
    return int(seconds) * 1000 + int(us) // 1000


def pushed_in_time(push: Callable[[datetime], Any]) -> tuple[datetime, Any]:
    """Pushes with an eta that is past soon afterwards. Returns both. A slow machine may need a later one."""
    for ms in (300, 3000):
        soon = datetime.now(UTC) + timedelta(milliseconds=ms)
        with suppress(PayloadError):
            return soon, push(soon)
    soon = datetime.now(UTC) + timedelta(seconds=30)
    return soon, push(soon)


@ONE
@pytest.mark.parametrize("hold", [False, True], ids=["overtake", "hold"])
def test_a_delay_counts_from_the_servers_time(redis: Any, shop: Any, push: Callable[..., str], hold: bool) -> None:
    before = now_ms(redis)
    id_ = push(shop, "T42", {"amount": 3}, delay=30, hold=hold)
    after = now_ms(redis)
    fields = entry(redis, id_)
    assert before + 30_000 <= int(fields.pop("due")) <= after + 30_000
    assert fields == {
        "ticket_id": "T42",
        "task": "shop.apply_update",
        "payload": '{"amount":3}',
        **({"hold": "1"} if hold else {}),
    }


@ONE
def test_an_eta_is_the_time_that_was_given(redis: Any, shop: Any, push: Callable[..., str]) -> None:
    eta = datetime(2090, 1, 31, 12, tzinfo=UTC)
    assert entry(redis, push(shop, "T42", None, eta=eta))["due"] == str(int(eta.timestamp()) * 1000)


@ONE
@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"delay": -1}, ValueError),
        ({"delay": float("nan")}, ValueError),
        ({"delay": 3153600001}, ValueError),
        ({"eta": datetime(2090, 1, 1)}, ValueError),  # noqa: DTZ001
        ({"eta": datetime.now(UTC) - timedelta(days=1)}, ValueError),
        ({"hold": True}, ValueError),
        ({"delay": "1"}, TypeError),
        ({"eta": "2090-01-01"}, TypeError),
    ],
    ids=["below 0", "nan", "far", "naive", "past", "only hold", "text", "text for a time"],
)
def test_a_message_that_cannot_be_due_is_not_pushed(
    redis: Any, shop: Any, push: Callable[..., str], options: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(PayloadError) as raised:
        push(shop, "T42", None, **options)
    assert isinstance(raised.value, kind)
    assert "\n" not in str(raised.value)
    assert is_empty(redis)


@EACH_WAY
@pytest.mark.parametrize("options", [{}, {"idempotency_key": "k"}], ids=["no key", "key"])
def test_each_message_of_many_may_have_its_own(
    redis: Any, shop: Any, push_many: Callable[..., list[str]], options: dict[str, str]
) -> None:
    count = 2 * PART_MESSAGES + 3
    own = [None, {"delay": None}, {"delay": 100}, {"hold": True}]
    before = now_ms(redis)
    ids = push_many(shop, [(f"T{n % 7}", n, own[n % 4]) for n in range(count)], delay=50, **options)
    found = [entry(redis, id_) for id_ in ids]
    assert [(one["ticket_id"], one["payload"]) for one in found] == [(f"T{n % 7}", str(n)) for n in range(count)]
    seconds = [round((int(one["due"]) - before) / 1000, -1) if "due" in one else None for one in found]
    assert seconds == [[50, None, 100, 50][n % 4] for n in range(count)]
    assert [one.get("hold") for one in found] == [[None, None, None, "1"][n % 4] for n in range(count)]


def test_a_key_stands_for_the_options_too(redis: Any, shop: Any) -> None:
    first = shop.push("T", 1, delay=30, idempotency_key="k")
    # Later, the same push has the same id, and the time of the first one.
    due = entry(redis, first)["due"]
    assert shop.push("T", 1, delay=30, idempotency_key="k") == first
    assert entry(redis, first)["due"] == due
    for other in ({}, {"delay": 31}, {"delay": 30, "hold": True}):
        with pytest.raises(PayloadError, match="other messages were pushed under the idempotency key 'k'"):
            shop.push("T", 1, idempotency_key="k", **other)


def test_a_push_with_a_key_may_be_tried_again_when_its_eta_is_past(redis: Any, shop: Any) -> None:
    past = datetime.now(UTC) - timedelta(seconds=5)
    with pytest.raises(ValueError, match="eta or expires is past by the server's clock, and no such push was made"):
        shop.push("T", 1, eta=past, idempotency_key="k")
    assert is_empty(redis)
    # Given a push whose eta is past some time later
    soon, first = pushed_in_time(lambda soon: shop.push("T", 1, eta=soon, idempotency_key="k"))
    wait_until(lambda: now_ms(redis) > soon.timestamp() * 1000 + 1, description="the eta")
    # When it is tried again, then it is found
    assert shop.push("T", 1, eta=soon, idempotency_key="k") == first
    with pytest.raises(ValueError, match="is past"):
        shop.push("T", 1, eta=soon)


def test_a_push_with_a_key_is_refused_when_it_expires_before_its_delay_is_over(redis: Any, shop: Any) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    rows: list[Any] = [("T", n) for n in range(501)] + [("T", 501, {"delay": 3601, "expires": soon})]
    for key in ("k", None):
        with pytest.raises(OptionError, match="expires"):
            shop.push_many(rows, idempotency_key=key)
        assert is_empty(redis)

    # One that was right the first time is found when it is repeated, however late that is.
    def pushed(soon: datetime) -> Any:
        return shop.push("T", 1, delay=3600, expires=soon + timedelta(hours=1), idempotency_key="k")

    soon, first = pushed_in_time(pushed)
    wait_until(lambda: now_ms(redis) > soon.timestamp() * 1000 + 1, description="the delay to be too long")
    assert pushed(soon) == first


@pytest.mark.parametrize("option", ["eta", "expires"])
@pytest.mark.parametrize("place", [0, 499, 500, 1200])
def test_a_push_of_several_parts_with_a_time_that_is_past_adds_nothing(
    place: int, option: str, redis: Any, shop: Any
) -> None:
    past = datetime.now(UTC) - timedelta(seconds=5)
    rows: list[Any] = [(f"T{n % 7}", n) for n in range(1201)]
    rows[place] = (*rows[place], {option: past})
    with pytest.raises(ValueError, match="is past by the server's clock, and no such push was made"):
        shop.push_many(rows, idempotency_key="k")
    assert is_empty(redis)
    # Options of a message go before those of the push: a time that no message has is none of the push's.
    own = [(ticket, n, {"delay": 1}) for ticket, n in rows[1:place]]
    assert len(shop.push_many(own, eta=past, idempotency_key="own")) == len(own)


def test_a_push_whose_eta_passes_on_the_way_is_made_whole(redis: Any, shop: Any) -> None:
    rows = [(f"T{n % 7}", n) for n in range(1201)]
    # Given a push that broke off after its first part
    parts: list[Any] = []
    answer = bridge.producer.push._answer

    def one_part(connection: Any, call: bytes) -> Any:
        if parts and parts[-1][0] == b"OK":
            raise RedisConnectionError("gone")
        parts.append(answer(connection, call))
        return parts[-1]

    def break_off(soon: datetime) -> None:
        parts.clear()
        with pytest.raises(ServerUnavailable):
            shop.push_many(rows, eta=soon, idempotency_key="k")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bridge.producer.push, "_answer", one_part)
        soon, _ = pushed_in_time(break_off)
    # When it is repeated after the eta
    wait_until(lambda: now_ms(redis) > soon.timestamp() * 1000 + 1, description="the eta")
    ids = shop.push_many(rows, eta=soon, idempotency_key="k")
    # Then all of it is in, once
    streams = [key for key in redis.scan_iter() if redis.type(key) == "stream"]
    assert len(set(ids)) == sum(map(redis.xlen, streams)) == len(rows)


def test_the_task_of_beats_takes_delays(redis: Any, shop: Any) -> None:
    task = shop.app.tasks["bridge.push"]

    def run(id_: str, **options: Any) -> dict[str, str]:
        task.push_request(id=id_)
        try:
            return entry(redis, task.run("shop.apply_update", "T", {"n": 1}, **options))
        finally:
            task.pop_request()

    before = now_ms(redis)
    assert int(run("a", delay=30, hold=True)["due"]) >= before + 30_000
    assert run("b", eta="2090-01-31T12:00:00+00:00")["due"] == str(
        int(datetime(2090, 1, 31, 12, tzinfo=UTC).timestamp()) * 1000
    )
    assert run("c", eta=datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC))["due"] == "1000000000000", "due at once"


@pytest.mark.parametrize("key", [None, "k"])
def test_a_user_that_may_not_ask_for_the_time_is_refused_whole(
    server: EmbeddedServer, redis: Any, key: str | None
) -> None:
    redis.execute_command("ACL", "SETUSER", "old", "on", "nopass", "~*", "&*", "+@all", "-time")
    task = shop_of(server.url.replace("redis://", "redis://old:x@"))
    with pytest.raises(PayloadError, match=r"this Redis user may not run TIME.*; the message is not in") as raised:
        task.push("T", 1, delay=5, idempotency_key=key)
    assert "\n" not in str(raised.value)
    assert is_empty(redis)
    # It can still push what is due at once.
    task.push("T", 1, idempotency_key=key)
    assert redis.xlen(STREAM) == 1
    task.app.bridge.client.close()


def test_a_delayed_push_takes_one_round_trip(redis: Any, shop: Any) -> None:
    shop.push("T", 0, delay=1)
    redis.config_resetstat()
    shop.push("T", 1, delay=1)
    stats: Any = redis.info("commandstats")
    assert {name: stats[f"cmdstat_{name}"]["calls"] for name in ("evalsha", "xadd", "time")} == {
        "evalsha": 1,
        "xadd": 1,
        "time": 1,
    }
    assert redis.exists(layout_key(STREAM)) == (shop.app.bridge.settings.partitions > 1)
