"""Orders to the leader: sending, answers, and the errors without an answer."""

from __future__ import annotations

import itertools
import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

import bridge.operate.orders
from bridge.operate.orders import give, give_to_all
from bridge.protocol.orders import Park
from bridge.routing.errors import NothingToDo, OrderFailed
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import wait_until
from tests.commands import Lane
from tests.operators import fake_leader

ORDER = Park("A\n{x}: é", "r")
SENT = {"do": "park", "ticket": "A\n{x}: é", "reason": "r"}


@pytest.fixture
def lane(server: EmbeddedServer) -> Iterator[Lane]:
    made = Lane(server)
    made.make_group()
    made.lead()
    yield made
    made.redis.close()


def test_an_order_reaches_the_leader_as_it_is_and_its_answer_comes_back(server: EmbeddedServer, lane: Lane) -> None:
    with fake_leader(server, lane, lambda _: {"ok": True, "in_flight": 2}) as leader:
        assert give(lane.redis, lane.keys, ORDER) == {"ok": True, "in_flight": 2}
    assert leader.orders == [SENT]


def test_each_order_has_an_answer_of_its_own(server: EmbeddedServer, lane: Lane) -> None:
    got: dict[int, Any] = {}

    def order(n: int) -> None:
        with server.client(protocol=2) as client:
            got[n] = give(client, lane.keys, Park(str(n)))

    with fake_leader(server, lane, lambda order: {"ok": True, "n": int(order["ticket"])}):
        threads = [threading.Thread(target=order, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert {n: answer["n"] for n, answer in got.items()} == {n: n for n in range(8)}


def test_a_refusal_of_the_leader_is_the_error(server: EmbeddedServer, lane: Lane) -> None:
    with (
        fake_leader(server, lane, lambda _: {"error": "ticket A is not parked"}),
        pytest.raises(OrderFailed, match=r"^ticket A is not parked$"),
    ):
        give(lane.redis, lane.keys, ORDER)


def test_without_a_leader_nothing_is_ordered(lane: Lane) -> None:
    lane.depose()
    with pytest.raises(OrderFailed, match=r"no master leads the lane.*bridge run"):
        give(lane.redis, lane.keys, ORDER)
    assert lane.redis.xlen(lane.keys.outcomes) == 0


def test_a_change_of_master_is_waited_out(server: EmbeddedServer, lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge.operate.orders, "LEADER_S", 10.0)
    lane.depose()
    threading.Timer(0.4, lane.lead).start()
    with fake_leader(server, lane, lambda _: {"ok": True}):
        assert give(lane.redis, lane.keys, ORDER) == {"ok": True}


def test_an_order_that_no_leader_takes_is_withdrawn(lane: Lane) -> None:
    with pytest.raises(OrderFailed, match=r"no master answered within 0.2 s \(host:1:abc leads\).*was withdrawn"):
        give(lane.redis, lane.keys, ORDER, timeout_s=0.2)
    assert lane.redis.xlen(lane.keys.outcomes) == 0, "or the next leader carries it out, when nobody wants it any more"


def test_an_order_that_was_taken_and_never_answered_has_an_error_of_its_own(
    server: EmbeddedServer, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge.operate.orders, "LAST_S", 0.2)
    with (
        fake_leader(server, lane, lambda _: None),
        pytest.raises(OrderFailed, match="ended before it could answer"),
    ):
        give(lane.redis, lane.keys, ORDER, timeout_s=0.5)


def test_an_answer_in_the_last_moment_counts(server: EmbeddedServer, lane: Lane) -> None:
    def taken_and_answered_late() -> None:
        found: Any = wait_until(lambda: lane.redis.xrange(lane.keys.outcomes), description="the order")
        ((id_, fields),) = found
        lane.redis.xdel(lane.keys.outcomes, id_)
        time.sleep(1.5)
        lane.redis.rpush(lane.keys.reply(fields[b"i"].decode()), b'{"ok":true}')

    thread = threading.Thread(target=taken_and_answered_late)
    thread.start()
    with server.client(protocol=2) as client:
        assert give(client, lane.keys, ORDER, timeout_s=1) == {"ok": True}
    thread.join()


def test_a_server_that_is_away_for_a_while_is_waited_out(own_server: EmbeddedServer) -> None:
    lane = Lane(own_server)
    lane.make_group()
    lane.lead()
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(give(own_server.client(protocol=2), lane.keys, ORDER, 20)))
    thread.start()
    wait_until(lambda: lane.redis.xlen(lane.keys.outcomes) == 1, description="the order to be there")
    own_server.kill()
    own_server.start()
    with fake_leader(own_server, lane, lambda _: {"ok": True}):
        thread.join(20)
    assert got == [{"ok": True}]


def test_an_interrupted_order_is_withdrawn(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bridge.operate.orders, "_await", interrupted)
    with pytest.raises(OrderFailed, match="interrupted; the order was withdrawn"):
        give(lane.redis, lane.keys, ORDER)
    assert lane.redis.xlen(lane.keys.outcomes) == 0


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_order_that_is_interrupted_while_it_is_sent_is_withdrawn(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, moment: str, taken: bool
) -> None:
    send: Any = lane.redis.execute_command
    handled = signal.getsignal(signal.SIGINT)

    def interrupted(name: str, *arguments: Any, **options: Any) -> Any:
        if name != "XADD":
            return send(name, *arguments, **options)
        if moment == "before":
            signal.raise_signal(signal.SIGINT)
        entry = send(name, *arguments)
        if taken:
            lane.redis.xdel(lane.keys.outcomes, entry)
        signal.raise_signal(signal.SIGINT)
        return entry

    monkeypatch.setattr(lane.redis, "execute_command", interrupted)
    said = "the leader took the order and carries it out" if taken else "the order was withdrawn"
    with pytest.raises(OrderFailed, match=f"interrupted; {said}"):
        give(lane.redis, lane.keys, ORDER)
    assert lane.redis.xlen(lane.keys.outcomes) == 0
    assert signal.getsignal(signal.SIGINT) is handled


def test_an_order_waits_longer_than_the_clients_own_time_limit(
    server: EmbeddedServer, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No read may reach that limit: an answer at that moment would be lost with the connection.
    monkeypatch.setattr(bridge.operate.orders, "UNAVAILABLE", ())
    monkeypatch.setattr(bridge.operate.orders, "SLICE_S", 0.2)
    with server.client(protocol=2, socket_timeout=1.5) as client:

        def late(order: dict[str, Any]) -> dict[str, Any]:
            time.sleep(2.5)
            return {"ok": True}

        with fake_leader(server, lane, late):
            assert give(client, lane.keys, ORDER) == {"ok": True}


def test_an_order_is_json_under_an_id_of_its_own(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge.operate.orders, "LAST_S", 0.2)
    seen: list[Any] = []

    def look() -> None:
        found: Any = wait_until(lambda: lane.redis.xrange(lane.keys.outcomes), description="the order")
        seen.extend(found)

    thread = threading.Thread(target=look)
    thread.start()
    with pytest.raises(OrderFailed):
        give(lane.redis, lane.keys, ORDER, timeout_s=1.0)
    thread.join()
    fields = seen[0][1]
    assert list(fields) == [b"i", b"order"]
    assert len(fields[b"i"]) == 32
    assert json.loads(fields[b"order"]) == SENT


#: How a lane may answer an order, and what it then counts for.
DONE = {"ok": True, "in_flight": 1}
NOTHING = {"error": "ticket A is parked already", "nothing_to_do": True}
REFUSED = {"error": "it cannot be"}


def _answer(reply: dict[str, Any], _order: dict[str, Any]) -> dict[str, Any]:
    return reply


@pytest.mark.parametrize("replies", list(itertools.product((DONE, NOTHING, REFUSED), repeat=3)))
def test_an_order_for_several_lanes_passes_over_those_with_nothing_to_do_and_ends_at_a_refusal(
    server: EmbeddedServer, replies: tuple[dict[str, Any], ...]
) -> None:
    lanes = [Lane(server, stream) for stream in ("one", "two", "three")]
    until = next((n for n, reply in enumerate(replies) if reply is REFUSED), 3)
    done = [lane.keys.stream for lane, reply in zip(lanes, replies[:until], strict=False) if reply is DONE]
    with ExitStack() as stack:
        leaders = []
        for lane, reply in zip(lanes, replies, strict=True):
            stack.callback(lane.redis.close)
            lane.lead()
            leaders.append(stack.enter_context(fake_leader(server, lane, partial(_answer, reply))))
        orders = [(lane.keys, ORDER) for lane in lanes]
        if until < 3:
            before = f"; the order was carried out in {', '.join(done)}" if done else ""
            with pytest.raises(OrderFailed, match=f"^{lanes[until].keys.stream}: it cannot be{before}$"):
                give_to_all(lanes[0].redis, orders)
        elif DONE in replies:
            assert give_to_all(lanes[0].redis, orders) == [reply for reply in replies if reply is DONE]
        else:
            with pytest.raises(NothingToDo, match=r"^ticket A is parked already$"):
                give_to_all(lanes[0].redis, orders)
        assert [len(leader.orders) for leader in leaders] == [int(n <= until) for n in range(3)]


@pytest.mark.parametrize("led", list(itertools.product((False, True), repeat=3)))
def test_an_order_for_several_lanes_is_given_to_none_while_one_has_no_leader(
    server: EmbeddedServer, led: tuple[bool, ...]
) -> None:
    lanes = [Lane(server, stream) for stream in ("one", "two", "three")]
    with ExitStack() as stack:
        leaders = []
        for lane, is_led in zip(lanes, led, strict=True):
            stack.callback(lane.redis.close)
            if is_led:
                lane.lead()
            leaders.append(stack.enter_context(fake_leader(server, lane, partial(_answer, DONE))))
        orders = [(lane.keys, ORDER) for lane in lanes]
        if all(led):
            assert give_to_all(lanes[0].redis, orders) == [DONE] * 3
        else:
            first = lanes[led.index(False)].keys.stream
            with pytest.raises(OrderFailed, match=f"^{first}: no master leads the lane"):
                give_to_all(lanes[0].redis, orders)
        assert [len(leader.orders) for leader in leaders] == [int(all(led))] * 3
        assert all(not lane.redis.xlen(lane.keys.outcomes) for lane in lanes)
