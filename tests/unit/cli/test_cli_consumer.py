from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.protocol.names import HEADER_REQUEST, WorkerRequest
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import holds_for, wait_until
from tests.commands import CommandLine, Lane
from tests.operators import fake_leader, order_drain


@pytest.fixture
def lane(server: EmbeddedServer) -> Iterator[Lane]:
    made = Lane(server)
    made.make_group()
    made.lead()
    yield made
    made.redis.close()


def says(lane: Lane, name: str, **facts: Any) -> None:
    """The consumer's registration says ``facts`` too."""
    registration = json.loads(lane.redis.hget(lane.keys.consumers, name) or b"{}")
    lane.redis.hset(lane.keys.consumers, name, json.dumps({**registration, **facts}))


def ask_of(lane: Lane, name: str, request: WorkerRequest) -> None:
    """Puts a request of the leader into the queue of ``name``."""
    lane.redis.lpush(lane.keys.queue(name), json.dumps({"body": "", "headers": {HEADER_REQUEST: request.value}}))


def in_flight(lane: Lane, name: str, *tickets: str) -> list[str]:
    ids = lane.add(*tickets)
    lane.read()
    for ticket, id_ in zip(tickets, ids, strict=True):
        lane.dispatch(name, ticket, [id_])
    return ids


# -- list ------------------------------------------------------------------------------------------------------------


def test_each_consumer_is_listed_with_the_state_that_it_is_in(shell: CommandLine, lane: Lane) -> None:
    for name in ("draining", "gone", "leaving", "open", "stalled"):
        lane.join(f"{name}@host")
    order_drain(lane, "draining@host")
    lane.end_lease("gone@host")
    says(lane, "leaving@host", leaving=True)
    ask_of(lane, "stalled@host", WorkerRequest.PROBE)
    ask_of(lane, "open@host", WorkerRequest.GIVE_BACK)
    found = {one["name"]: one["state"] for one in shell.json("consumer", "list")["consumers"]}
    assert found == {
        "draining@host": "draining",
        "gone@host": "lease over",
        "leaving@host": "leaving",
        "open@host": "open",
        "stalled@host": "stalled",
    }
    lines = shell("consumer", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(found)


def test_the_other_facts_of_a_consumer_are_listed(shell: CommandLine, lane: Lane) -> None:
    lane.join("w1@host", lease_ms=30_000)
    in_flight(lane, "w1@host", "A", "B")
    (one,) = shell.json("consumer", "list")["consumers"]
    assert (one["slots"], one["pool"], one["in_flight"], one["draining"]) == (2, "prefork", 2, False)
    assert 0 < one["lease_ms"] <= 30_000
    assert 0 <= one["up_ms"] < 60_000


def test_an_order_to_drain_ends_with_the_process_that_it_was_for(shell: CommandLine, lane: Lane) -> None:
    lane.join("w1@host")
    order_drain(lane, "w1@host")
    assert shell.json("consumer", "list")["consumers"][0]["state"] == "draining"
    says(lane, "w1@host", incarnation=lane.incarnations["w1@host"], started=99.0)
    assert shell.json("consumer", "list")["consumers"][0]["state"] == "open"


def test_messages_that_are_put_aside_for_a_parked_ticket_are_no_consumers(shell: CommandLine, lane: Lane) -> None:
    from tests.operators import park

    ids = lane.add("A")
    lane.read()
    park(lane, "A", ids, "r")
    assert shell.json("consumer", "list")["consumers"] == []
    advised = f"no consumers: start a worker with `celery -A {shell.app} worker -n w1@%h`"
    assert shell("consumer", "list").stdout == f"{advised}\n"


# -- names -----------------------------------------------------------------------------------------------------------


def test_a_name_may_lack_its_host_where_that_is_clear(shell: CommandLine, lane: Lane, server: EmbeddedServer) -> None:
    for name in ("w1@here", "w2@here", "w2@there"):
        lane.join(name)
    with fake_leader(server, lane, lambda _: {"ok": True, "in_flight": 0}) as leader:
        assert shell("consumer", "drain", "w1").exit_code == 0
        assert shell("consumer", "drain", "w2@there").exit_code == 0
        for name, said in (("w2", "any of w2@here, w2@there"), ("w3", "there are w1@here, w2@here, w2@there")):
            result = shell("consumer", "drain", name)
            assert result.exit_code == 1
            assert said in result.stderr
    assert leader.orders == [{"do": "drain", "consumer": "w1@here"}, {"do": "drain", "consumer": "w2@there"}]


def test_without_any_consumer_the_error_says_so(shell: CommandLine, lane: Lane) -> None:
    del lane
    result = shell("consumer", "resume", "w1\x1b[2J")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "none is registered" in result.stderr
    assert "\x1b" not in result.stderr


@pytest.mark.parametrize("arguments", [["drain", "w1"], ["resume", "w1"], ["transfer", "w1"]])
def test_without_a_leader_an_order_fails_with_one_line(shell: CommandLine, lane: Lane, arguments: list[str]) -> None:
    lane.join("w1@host")
    lane.depose()
    result = shell("consumer", *arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "no master leads" in result.stderr


# -- drain and resume ------------------------------------------------------------------------------------------------


def drains(lane: Lane) -> Any:
    """A leader that records the order to drain."""

    def answer(order: dict[str, Any]) -> dict[str, Any]:
        order_drain(lane, order["consumer"])
        pending: Any = lane.redis.xpending(lane.keys.stream, lane.keys.group)
        return {"ok": True, "in_flight": pending["pending"]}

    return answer


def test_draining_waits_until_nothing_is_in_flight(shell: CommandLine, lane: Lane, server: EmbeddedServer) -> None:
    lane.join("w1@host")
    ids = in_flight(lane, "w1@host", "A", "B")
    results: list[Any] = []
    with fake_leader(server, lane, drains(lane)) as leader:
        thread = threading.Thread(target=lambda: results.append(shell("consumer", "drain", "w1")))
        thread.start()
        wait_until(lambda: leader.orders, description="the order")
        lane.finish(ids[0])
        lane.redis.ping()
        assert not results, "one message is still in flight"
        lane.finish(ids[1])
        thread.join(20)
    assert results[0].exit_code == 0
    lines = results[0].stdout.splitlines()
    assert lines[0] == "w1@host takes nothing new; waiting for what it has in flight"
    assert lines[-1] == "w1@host is empty"


def test_draining_gives_up_waiting_and_says_what_is_left(
    shell: CommandLine, lane: Lane, server: EmbeddedServer
) -> None:
    lane.join("w1@host")
    in_flight(lane, "w1@host", "A", "B")
    with fake_leader(server, lane, drains(lane)):
        result = shell("consumer", "drain", "w1", "--timeout", "0.3")
    assert result.exit_code == 1
    assert "w1@host has 2 messages in flight after 300 ms; it goes on draining" in result.stderr
    assert f"`bridge -A {shell.app} consumer resume w1@host`" in result.stderr


def test_draining_without_waiting_returns_at_once(shell: CommandLine, lane: Lane, server: EmbeddedServer) -> None:
    lane.join("w1@host")
    in_flight(lane, "w1@host", "A", "B")
    with fake_leader(server, lane, drains(lane)):
        result = shell("consumer", "drain", "w1", "--no-wait")
    assert (result.exit_code, result.stdout) == (0, "w1@host takes nothing new; 2 messages in flight\n")


def test_draining_an_idle_consumer_is_done_at_once(shell: CommandLine, lane: Lane, server: EmbeddedServer) -> None:
    lane.join("w1@host")
    with fake_leader(server, lane, drains(lane)):
        result = shell("consumer", "drain", "w1")
    assert (result.exit_code, result.stdout) == (0, "w1@host takes nothing new; it is empty\n")


@pytest.mark.parametrize("how", ["resumed", "restarted"])
def test_a_drain_that_was_revoked_is_an_error(shell: CommandLine, lane: Lane, server: EmbeddedServer, how: str) -> None:
    lane.join("w1@host")
    in_flight(lane, "w1@host", "A")

    def answer(order: dict[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = drains(lane)(order)
        if how == "resumed":
            lane.redis.hdel(lane.keys.drains, "w1@host")
        else:
            says(lane, "w1@host", started=99.0)
        return reply

    with fake_leader(server, lane, answer):
        result = shell("consumer", "drain", "w1", "--timeout", "10")
    assert result.exit_code == 1
    assert "takes work again" in result.stderr


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_consumer_that_ends_while_it_is_drained_is_empty_when_its_messages_were_moved(
    shell: CommandLine, lane: Lane, server: EmbeddedServer, is_forgotten: bool
) -> None:
    life = lane.join("w1@host")
    ids = in_flight(lane, "w1@host", "A")
    results: list[Any] = []
    with fake_leader(server, lane, drains(lane)) as leader:
        thread = threading.Thread(target=lambda: results.append(shell("consumer", "drain", "w1", "--timeout", "10")))
        thread.start()
        wait_until(lambda: leader.orders, description="the order")
        with lane.redis.pipeline() as pipe:
            if is_forgotten:
                pipe.hdel(lane.keys.consumers, "w1@host")
            pipe.delete(lane.keys.lease(life))
            pipe.hdel(lane.keys.drains, "w1@host")
            pipe.execute()
        holds_for(lambda: not results, description="its message is still its own", duration_s=0.6)
        lane.redis.xclaim(lane.keys.stream, lane.keys.group, "w2@host", 0, [ids[0]], justid=True)
        thread.join(20)
    assert results[0].exit_code == 0
    assert results[0].stdout.endswith("w1@host is empty\n")


def test_resuming_orders_and_says_so(shell: CommandLine, lane: Lane, server: EmbeddedServer) -> None:
    lane.join("w1@host")
    with fake_leader(server, lane, lambda _: {"ok": True, "in_flight": 0}) as leader:
        result = shell("consumer", "resume", "w1")
    assert (result.exit_code, result.stdout) == (0, "w1@host takes work again\n")
    assert leader.orders == [{"do": "resume", "consumer": "w1@host"}]


# -- transfer --------------------------------------------------------------------------------------------------------


def test_a_transfer_says_what_moved_and_what_will(shell: CommandLine, lane: Lane, server: EmbeddedServer) -> None:
    for name in ("w1@host", "w2@host"):
        lane.join(name)
    with fake_leader(server, lane, lambda _: {"ok": True, "moved": 3, "running": 1}) as leader:
        result = shell("consumer", "transfer", "w1")
        assert result.stdout == "moved 3 tickets\n1 ticket more when their running messages are done\n"
        assert shell("consumer", "transfer", "w1", "--to", "w2", "--ticket", "A", "--ticket", "B").exit_code == 0
        assert shell("consumer", "transfer", "w1", "w2").exit_code == 0
    assert leader.orders == [
        {"do": "transfer", "consumer": "w1@host", "to": None, "tickets": None},
        {"do": "transfer", "consumer": "w1@host", "to": "w2@host", "tickets": ["A", "B"]},
        {"do": "transfer", "consumer": "w1@host", "to": "w2@host", "tickets": None},
    ]
    twice = shell("consumer", "transfer", "w1", "w2", "--to", "w3")
    assert (twice.exit_code, "name one consumer that gets them: w2, or --to w3" in twice.stderr) == (2, True)


def test_a_transfer_of_named_tickets_says_how_many_are_elsewhere(
    shell: CommandLine, lane: Lane, server: EmbeddedServer
) -> None:
    lane.join("w1@host")
    with fake_leader(server, lane, lambda _: {"ok": True, "moved": 1, "running": 1}):
        result = shell("consumer", "transfer", "w1", *(word for name in "ABCDA" for word in ("--ticket", name)))
    lines = result.stdout.splitlines()
    assert lines[0] == "moved 1 ticket"
    assert lines[-1] == "w1@host has no message of 2 tickets that you named"


def test_a_transfer_to_itself_is_wrong_usage(shell: CommandLine, lane: Lane) -> None:
    lane.join("w1@host")
    result = shell("consumer", "transfer", "w1", "--to", "w1@host")
    assert result.exit_code == 2
    assert "itself" in result.stderr


def test_an_invalid_ticket_id_is_not_transferred(shell: CommandLine, lane: Lane) -> None:
    lane.join("w1@host")
    result = shell("consumer", "transfer", "w1", "--ticket", "x" * 513)
    assert result.exit_code == 2
    assert "1 to 512 bytes" in result.stderr


def test_a_refusal_of_the_leader_is_one_line_without_control_characters(
    shell: CommandLine, lane: Lane, server: EmbeddedServer
) -> None:
    lane.join("w1@host")
    with fake_leader(server, lane, lambda _: {"error": "there is no consumer \x1b[2Jw1"}):
        result = shell("consumer", "transfer", "w1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: there is no consumer \\x1b[2Jw1\n"
