from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.connection import AbstractConnection

import bridge.inspect.holding
import bridge.inspect.status
from bridge.link.key_types import TYPES
from bridge.protocol.names import HEADER_REQUEST, WorkerRequest
from bridge.routing.ids import LAST_ID, member_of
from bridge.routing.layouts import claim_layout
from bridge.routing.records import HELD
from bridge.routing.transitions import read
from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import free_port
from tests.commands import MASTER, CommandLine, Lane, calls_of, command_line, letter
from tests.operators import order_drain, park


@pytest.fixture
def lane(server: EmbeddedServer) -> Iterator[Lane]:
    made = Lane(server)
    yield made
    made.redis.close()


def test_every_message_is_counted_in_the_state_that_it_is_in(shell: CommandLine, lane: Lane) -> None:
    lane.make_group()
    lane.join("w1@host")
    ids = lane.add("A", "A", "A", "B", "C", "D", "E")
    lane.read()
    lane.add("F", "F")
    lane.dispatch("w1@host", "A", ids[:2])
    lane.hold_back("B", ids[3], 2, 60_000, "ValueError: no")
    lane.finish(ids[4])
    lane.bury(ids[5], *letter("D"))
    seen = shell.json("status")
    assert seen["in_flight"] == 2
    assert seen["waiting"] == 2, "the third of A, and E"
    assert seen["awaiting_retry"] == 1
    assert seen["dead"] == 1
    assert (seen["unread"], seen["unread_why"]) == (2, "")
    assert seen["parked"] == 0
    assert seen["length"] == 9
    assert seen["counters"] == {"done": 1, "dead": 1, "failed": 1, "retried": 1}
    assert seen["leader"]["term"] == 1
    assert seen["leader"]["holder"] == "host:1:abc"
    assert 0 < seen["leader"]["lease_ms"] <= 60_000
    assert 0 <= seen["oldest_undone_ms"] < 60_000
    assert seen["problems"] == []


def test_a_message_for_which_its_ticket_waits_is_counted_as_delayed_alone(shell: CommandLine, lane: Lane) -> None:
    lane.make_group()
    ids = lane.add("A", "A", "B", "C", "C", "C")
    lane.read()
    # A waits for its first message, C for its second one, when the first has had its retry.
    lane.hold_back("A", ids[0], 1, 60_000, HELD)
    lane.hold_back("C", ids[3], 2, 60_000, f'ValueError: "{HELD}"')
    due_ms = int(ids[0].partition("-")[0]) + 60_000
    lane.redis.zadd(lane.keys.holding, {member_of(ids[0]): due_ms, member_of(ids[4]): due_ms})
    seen = shell.json("status")
    counted = {name: seen[name] for name in ("waiting", "awaiting_retry", "delayed", "holding")}
    assert counted == {"waiting": 3, "awaiting_retry": 1, "delayed": 2, "holding": 2}
    assert shell.json("subscription", "list")["subscriptions"][0].items() >= {**counted, "undone": 6}.items()


def far(lane: Lane, ids: list[str], after_ms: int = 3_600_000) -> None:
    """Messages that were read hold their tickets for so long."""
    now_ms = int(time.time() * 1000)
    lane.redis.zadd(lane.keys.holding, dict.fromkeys(map(member_of, ids), now_ms + after_ms))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("due", [True, False])
@pytest.mark.parametrize("parked", [True, False])
def test_messages_that_hold_their_tickets_are_counted_where_they_are(
    shell: CommandLine, lane: Lane, parked: bool, due: bool, first: bool
) -> None:
    """P has 5 messages of which 2 hold it; A has 4, of which the first or the last 2 do."""
    lane.make_group()
    aside = lane.add(*"PPPPP")
    ids = lane.add(*"AAAA")
    lane.read()
    if parked:
        park(lane, "P", aside, "r")
    far(lane, aside[1:3])
    held = ids[:2] if first else ids[2:]
    far(lane, held, -60_000 if due else 3_600_000)
    if first:
        lane.hold_back("A", ids[0], 1, -60_000 if due else 3_600_000, HELD)
    seen = shell.json("status")
    [row] = shell.json("subscription", "list")["subscriptions"]
    holding = (0 if due else 2) + (0 if parked else 2)
    counted = {
        "waiting": 9 - holding - (5 if parked else 0),
        "awaiting_retry": 0,
        "delayed": holding,
        "holding": holding,
    }
    assert {name: seen[name] for name in counted} == counted
    assert {name: row[name] for name in counted} == counted
    assert seen["parked_messages"] == row["parked"] == (5 if parked else 0)
    assert row["undone"] == 9
    if holding:
        assert seen["next_due_in_ms"] > 3_000_000
    else:
        assert seen["next_due_in_ms"] is None
    assert seen["oldest_undone_ms"] is not None


def test_tickets_that_wait_for_a_delayed_message_are_not_retrying_however_many_there_are(
    shell: CommandLine, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge.inspect.holding, "PAGE", 10)
    lane.make_group()
    ids = lane.add(*(f"T{n}" for n in range(200)))
    lane.read()
    for n, id_ in enumerate(ids):
        lane.hold_back(f"T{n}", id_, 1, 3_600_000, HELD)
    far(lane, ids)
    seen = shell.json("status")
    assert (seen["waiting"], seen["awaiting_retry"], seen["holding"]) == (0, 0, 200)
    assert seen["oldest_undone_ms"] is None
    # One that waits is found behind all of them.
    [waiting] = lane.add("X")
    lane.read()
    age_ms = time.time() * 1000 - int(waiting.partition("-")[0])
    seen = shell.json("status")
    assert (seen["waiting"], seen["awaiting_retry"], seen["holding"]) == (1, 0, 200)
    assert age_ms - 1 <= seen["oldest_undone_ms"] < age_ms + 60_000


def test_a_delayed_message_that_is_due_is_undone_since_then(shell: CommandLine, lane: Lane) -> None:
    lane.make_group()
    [id_] = lane.add("A")
    lane.read()
    lane.redis.xclaim(lane.keys.stream, lane.keys.group, lane.keys.delayed_consumer(MASTER), 0, list[Any]([id_]))
    lane.redis.zadd(lane.keys.delayed, {member_of(id_): int(time.time() * 1000) - 60_000})
    assert 60_000 <= shell.json("status")["oldest_undone_ms"] < 120_000


def test_the_number_of_redis_calls_does_not_grow_with_the_backlog(
    shell: CommandLine, lane: Lane, server: EmbeddedServer
) -> None:
    lane.make_group()
    lane.join("w1@host")
    ids = lane.add(*(f"T{n}" for n in range(10)))
    lane.read()
    lane.dispatch("w1@host", "T0", ids[:1])
    lane.add("T11")

    def calls() -> dict[str, int]:
        lane.redis.config_resetstat()
        assert shell("status", "--json").exit_code == 0
        counted = calls_of(server)
        # The connection's own set-up, and the question itself.
        return {
            n: c for n, c in counted.items() if not n.startswith(("cmdstat_client", "cmdstat_info", "cmdstat_config"))
        }

    few = calls()
    for start in range(0, 3000, 500):
        lane.add(*(f"T{n % 700}" for n in range(start, start + 500)))
    lane.read(2000)
    many = calls()
    assert many == few
    # Three of them read the layout of the stream, whether it is lost, and its copy; another one its groups, of which
    # the app may not name each, and a fifth one its retired versions. Five are about delayed messages. The type of each
    # key is asked for once, and the values of four strings.
    assert sum(many.values()) <= 41 + len(TYPES)


def test_round_trips_do_not_grow_with_the_number_of_parked_tickets(
    shell: CommandLine, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips: list[int] = []
    send: Any = AbstractConnection.send_packed_command

    def sent(*arguments: Any, **named: Any) -> None:
        trips.append(1)
        send(*arguments, **named)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", sent)

    def counted() -> tuple[int, int]:
        before = len(trips)
        seen = shell.json("status")
        return len(trips) - before, seen["holding"]

    # Given a message that holds its ticket, which makes a look at those of parked tickets necessary
    lane.make_group()
    held = lane.add("H")
    aside = [(f"P{n}", *lane.add(*[f"P{n}"] * 2)) for n in range(150)]
    lane.read(1000)
    far(lane, held)
    few, holding = counted()
    assert holding == 1
    for ticket, *ids in aside:
        park(lane, ticket, ids, "r")
        far(lane, ids[1:])
    # When many tickets with such messages are parked
    many, holding = counted()
    assert holding == 1
    assert many <= few + 8


def test_unread_messages_are_counted_although_what_is_done_leaves_the_stream(
    shell: CommandLine, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pending entry keeps its place, and later ones are done and deleted. Then the server does not know the lag."""
    lane.make_group()
    ids = lane.add(*(f"T{n}" for n in range(30)))
    leading = lane.lead()
    if not shell.json("status")["server"].startswith("Redis 6"):
        # The server counts them, however many they are.
        monkeypatch.setattr(bridge.inspect.status, "COUNTED", 1)
    read_to = "0-0"
    left = 30
    while left:
        [*_, (last, _)] = entries = read(lane.redis, leading, 3, read_to).entries
        read_to = last.decode()
        left -= len(entries)
        done = ids[max(1, 30 - left - 3) : 30 - left]
        lane.redis.xack(lane.keys.stream, lane.keys.group, *done)
        lane.redis.xdel(lane.keys.stream, *done)
        seen = shell.json("status")
        assert (seen["unread"], seen["unread_why"]) == (left, "")
    lane.add("A", "B")
    assert shell.json("status")["unread"] == 2


def test_an_unknown_number_of_unread_messages_is_shown_as_an_upper_bound(
    shell: CommandLine, lane: Lane, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane.make_group()
    ids = lane.add(*(f"T{n}" for n in range(20)))
    lane.read(10)
    # Deleted by hand, ahead of the group: after this the server does not know the lag.
    lane.redis.xdel(lane.keys.stream, ids[15])
    seen = shell.json("status")
    assert (seen["unread"], seen["unread_why"]) == (9, ""), "few are counted"
    monkeypatch.setattr(bridge.inspect.status, "COUNTED", 5)
    seen = shell.json("status")
    assert seen["unread"] == 9
    assert seen["unread_why"]
    assert "at most 9" in shell("status").stdout
    lane.read()
    assert shell.json("status")["unread"] == 0


def test_a_lane_without_any_leader_so_far_has_a_status(shell: CommandLine, lane: Lane) -> None:
    result = shell("status")
    assert result.exit_code == 0
    assert "no master leads" in result.stdout
    assert "no consumer is alive" in result.stdout
    assert "the consumer group does not exist yet" in result.stdout
    lane.add("A", "A")
    assert shell.json("status")["unread"] == 2, "the first master will read from the beginning"


def test_a_lane_that_was_read_up_to_the_largest_id_is_looked_at_as_any(shell: CommandLine, lane: Lane) -> None:
    lane.make_group()
    lane.redis.execute_command("XADD", lane.keys.stream, LAST_ID, "ticket_id", "A", "payload", "{}")
    lane.read()
    seen = shell.json("status")
    assert (seen["unread"], seen["waiting"]) == (0, 1)
    shown = shell.json("ticket", "show", "A")
    assert (shown["state"], shown["waiting"]["ids"], shown["unread"]["count"]) == ("waiting", [LAST_ID], 0)
    assert shell("consumer", "list").exit_code == 0


def test_a_consumer_that_is_gone_is_shown_with_its_messages(shell: CommandLine, lane: Lane) -> None:
    lane.make_group()
    lane.join("w1@host")
    lane.join("w2@host")
    ids = lane.add("A", "B")
    lane.read()
    lane.dispatch("w1@host", "A", ids[:1])
    lane.dispatch("w2@host", "B", ids[1:])
    lane.end_lease("w1@host")
    lane.redis.hdel(lane.keys.consumers, "w2@host")
    seen = shell.json("status")
    first, second = seen["consumers"]
    assert (first["name"], first["alive"], first["registered"], first["in_flight"]) == ("w1@host", False, True, 1)
    assert (second["name"], second["alive"], second["registered"], second["in_flight"]) == ("w2@host", False, False, 1)
    assert any("gone with messages in flight: w1@host, w2@host" in problem for problem in seen["problems"])


def test_the_facts_that_a_consumer_registered_are_shown(shell: CommandLine, lane: Lane) -> None:
    lane.make_group()
    incarnation = lane.join("w1@host", lease_ms=30_000)
    ids = lane.add("A", "A")
    lane.read()
    lane.dispatch("w1@host", "A", ids)
    lane.redis.set(lane.keys.held(incarnation), '{"n":1,"fences":[1,2,3]}', px=60_000)
    (one,) = shell.json("status")["consumers"]
    assert one["alive"] is True
    assert (one["slots"], one["pool"], one["pid"], one["in_flight"]) == (2, "prefork", 7, 2)
    assert (one["tickets"], one["queued"]) == (3, 1)
    assert 20_000 < one["lease_ms"] <= 30_000


def test_dead_letters_alone_do_not_fail_a_health_check(shell: CommandLine, lane: Lane) -> None:
    lane.make_group()
    ids = lane.add("A")
    lane.read()
    lane.bury(ids[0], *letter("A"))
    assert shell("status").exit_code == 0


def test_names_that_are_markup_or_steer_a_terminal_are_shown_as_they_are(shell: CommandLine, lane: Lane) -> None:
    lane.make_group()
    lane.join("[red]w1[/red]\x1b[2J@host")
    shown = shell("status").stdout
    assert "[red]w1[/red]" in shown
    assert "\x1b" not in shown


def test_an_unreachable_server_fails_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with command_line(tmp_path, monkeypatch, f"redis://:secret@127.0.0.1:{free_port()}/0") as shell:
        result = shell("status", "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "cannot reach Redis" in result.stderr
    assert "secret" not in result.stderr


def test_parked_tickets_and_what_waits_for_them_are_counted_apart(shell: CommandLine, lane: Lane) -> None:
    lane.make_group()
    lane.lead()
    lane.join("w1@host")
    ids = lane.add(*"AABC")
    lane.read()
    lane.dispatch("w1@host", "B", ids[2:3])
    park(lane, "A", ids[:2], "r")
    park(lane, "Z", [], "r")
    seen = shell.json("status")
    assert (seen["parked"], seen["parked_messages"], seen["parked_complete"]) == (2, 2, True)
    assert (seen["waiting"], seen["in_flight"]) == (1, 1)
    assert [one["name"] for one in seen["consumers"]] == ["w1@host"]
    assert any("2 tickets parked, with 2 messages waiting" in problem for problem in seen["problems"])
    assert f"waiting; `bridge -A {shell.app} ticket list --parked`)" in shell("status").stdout


def test_more_records_than_are_looked_at_make_the_number_of_parked_tickets_a_lower_bound(
    shell: CommandLine, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge.inspect.status, "RECORDS", 10)
    lane.make_group()
    ids = lane.add(*(f"T{n}" for n in range(700)))
    lane.read()
    for n in range(700):
        park(lane, f"T{n}", ids[n : n + 1] if n < 200 else [], "r")
    seen = shell.json("status")
    assert seen["parked_complete"] is False
    assert 200 <= seen["parked"] <= 700
    assert "at least" in shell("status").stdout


def test_consumers_that_take_nothing_new_are_a_problem_with_a_remedy(shell: CommandLine, lane: Lane) -> None:
    lane.make_group()
    lane.lead()
    lane.join("w1@host")
    order_drain(lane, "w1@host")
    seen = shell.json("status")
    assert [(one["state"], one["alive"]) for one in seen["consumers"]] == [("draining", True)]
    assert any(f"`bridge -A {shell.app} consumer resume w1@host`" in problem for problem in seen["problems"])
    lane.join("w2@host")
    assert shell.json("status")["problems"] == []
    lane.redis.lpush(lane.keys.queue("w2@host"), json.dumps({"headers": {HEADER_REQUEST: WorkerRequest.PROBE.value}}))
    assert any("taking nothing from the queue: w2@host" in problem for problem in shell.json("status")["problems"])


@pytest.mark.parametrize(("ahead_ms", "said"), [(3_600_000, ["1 h ahead", "59 min"]), (30_000, []), (-30_000, [])])
def test_ids_ahead_of_the_clock_are_a_problem(shell: CommandLine, lane: Lane, ahead_ms: int, said: list[str]) -> None:
    lane.make_group()
    lane.lead()
    lane.join("w1@host")
    seconds, _ = lane.redis.time()
    lane.redis.xadd(lane.keys.stream, {"ticket_id": "A"}, id=f"{seconds * 1000 + ahead_ms}-0")
    problems = [one for one in shell.json("status")["problems"] if "server's clock" in one]
    assert len(problems) == bool(said)
    assert all(any(words in problem for words in said) for problem in problems)


def test_a_consumer_without_slots_is_a_problem(shell: CommandLine, lane: Lane) -> None:
    lane.make_group()
    lane.lead()
    lane.join("w1@host")
    found: Any = lane.redis.hget(lane.keys.consumers, "w1@host")
    lane.redis.hset(lane.keys.consumers, "w1@host", json.dumps({**json.loads(found), "slots": 0}))
    [problem] = shell.json("status")["problems"]
    assert problem.startswith("alive, without a pool process that takes messages: w1@host;")


def test_counters_of_what_should_not_happen_are_shown_if_above_zero(shell: CommandLine, lane: Lane) -> None:
    lane.make_group()
    lane.redis.hset(lane.keys.counts, mapping={"done": 5, "lost": 2, "stale": 1, "tampered": 0, "suspect": 3})
    lines = [line.split() for line in shell("status").stdout.splitlines()]
    assert ["trouble", "lost", "2,", "suspect", "3,", "stale", "1"] in lines
    assert ["so", "far", "done", "5"] in lines
    lane.redis.hset(lane.keys.counts, mapping={"lost": 0, "stale": 0, "suspect": 0})
    assert "trouble" not in shell("status").stdout


@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_another_number_of_partitions_than_the_apps_is_a_problem(
    shell: CommandLine, lane: Lane, partitions: int
) -> None:
    claim_layout(lane.redis, lane.keys.stream, partitions)
    found = [one for one in shell.json("status")["problems"] if "bridge_partitions" in one]
    has = f"stream {lane.keys.stream} has {partitions} partitions"
    said = f"{has}, and bridge_partitions is 1: the stream is used as it is"
    change = f"`bridge -A {shell.app} stream repartition 1`"
    way = f"set bridge_partitions = {partitions}, or change the stream with {change}"
    assert found == [f"{said}; {way}"] * (partitions > 1)
