from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

import bridge.inspect.scans
import bridge.inspect.ticket_search
from bridge.inspect.ticket_state import TicketState
from bridge.protocol.drain_orders import DrainOrder
from bridge.protocol.outcomes import Kind, Outcome, decode
from bridge.protocol.registration import read_registration
from bridge.routing import records
from bridge.routing.records import LostAttempt
from bridge.routing.states import State
from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, Lane, calls_of, letter
from tests.operators import fake_leader, park


@pytest.fixture
def lane(server: EmbeddedServer) -> Iterator[Lane]:
    made = Lane(server)
    made.make_group()
    made.lead()
    yield made
    made.redis.close()


def test_a_ticket_in_flight_names_consumer_messages_attempt_and_fence(shell: CommandLine, lane: Lane) -> None:
    incarnation = lane.join("w1@host")
    ids = lane.add("A", "A", "A", "B")
    lane.read()
    lane.add("A")
    fence = lane.dispatch("w1@host", "A", ids[:2], attempt=3)
    seen = shell.json("ticket", "show", "A")
    assert seen["state"] == State.IN_FLIGHT.value
    run = seen["in_flight"]
    assert (run["consumer"], run["incarnation"], run["message_ids"]) == ("w1@host", incarnation, ids[:2])
    assert (run["attempt"], run["fence"], run["consumer_alive"]) == (3, fence, True)
    assert 0 < run["lease_ms"] <= 60_000
    assert 0 <= run["since_ms"] < 60_000
    assert (seen["waiting"]["count"], seen["waiting"]["ids"]) == (1, [ids[2]])
    assert seen["unread"]["count"] == 1
    assert "2 messages in flight on w1@host" in seen["why"]
    assert "1 message waiting behind, 1 message not read yet" in seen["why"]
    assert "is running, or starts soon or as its rate_limit allows" in seen["why"]


def test_in_flight_on_a_dead_consumer_says_that_the_leader_moves_it(shell: CommandLine, lane: Lane) -> None:
    lane.join("w1@host")
    ids = lane.add("A")
    lane.read()
    lane.dispatch("w1@host", "A", ids)
    lane.end_lease("w1@host")
    seen = shell.json("ticket", "show", "A")
    assert seen["in_flight"]["consumer_alive"] is False
    assert "lease is over" in seen["why"]
    assert "no consumer is alive" in seen["why"]
    lane.join("w2@host")
    assert "to another consumer" in shell.json("ticket", "show", "A")["why"]
    lane.depose()
    assert "no master leads" in shell.json("ticket", "show", "A")["why"]


def test_a_retry_says_when_which_attempt_and_after_what(shell: CommandLine, lane: Lane) -> None:
    lane.join("w1@host")
    ids = lane.add("A", "A")
    lane.read()
    lane.hold_back("A", ids[0], 3, 60_000, "ValueError: no good")
    seen = shell.json("ticket", "show", "A")
    assert seen["state"] == State.AWAITING_RETRY.value
    retry = seen["retry"]
    assert (retry["message_id"], retry["attempt"], retry["max_attempts"]) == (ids[0], 3, 5)
    assert 30_000 < retry["due_in_ms"] <= 60_000
    assert retry["last_error"] == "ValueError: no good"
    assert "attempt 3 of 5 is due in" in seen["why"]
    assert "ValueError: no good" in seen["why"]
    assert seen["waiting"]["ids"] == [ids[1]]


def test_a_task_with_attempts_of_its_own_counts_up_to_them(shell: CommandLine, lane: Lane) -> None:
    ids = lane.add("A", task="shop.once")
    lane.read()
    lane.hold_back("A", ids[0], 2, 60_000, "x")
    assert shell.json("ticket", "show", "A")["retry"]["max_attempts"] == 1


def test_an_overdue_retry_says_what_is_missing(shell: CommandLine, lane: Lane) -> None:
    ids = lane.add("A")
    lane.read()
    lane.hold_back("A", ids[0], 2, -1000, "x")
    assert "no consumer is alive" in shell.json("ticket", "show", "A")["why"]
    lane.join("w1@host")
    assert "as soon as a consumer has room" in shell.json("ticket", "show", "A")["why"]


def test_a_waiting_ticket_says_what_it_waits_for(shell: CommandLine, lane: Lane) -> None:
    ids = lane.add("B", "A", "A")
    lane.read()
    seen = shell.json("ticket", "show", "A")
    assert seen["state"] == State.WAITING.value
    assert (seen["waiting"]["count"], seen["waiting"]["ids"]) == (2, ids[1:])
    assert "no consumer is alive" in seen["why"]
    lane.join("w1@host")
    assert "a consumer that takes work has room" in shell.json("ticket", "show", "A")["why"]
    lane.depose()
    assert "no master leads" in shell.json("ticket", "show", "A")["why"]


def test_a_ticket_whose_only_consumers_are_draining_says_so(shell: CommandLine, lane: Lane) -> None:
    lane.add("A")
    lane.read()

    def why() -> str:
        return str(shell.json("ticket", "show", "A")["why"])

    for name in ("w1@host", "w2@host"):
        lane.join(name)
        assert "draining" not in why()
        started = read_registration(lane.redis.hget(lane.keys.consumers, name)).started  # type: ignore[arg-type]
        lane.redis.hset(lane.keys.drains, name, DrainOrder(1, started).text())
        assert "is draining, until an operator resumes it" in why()
    # An order for an older process
    lane.redis.hset(lane.keys.drains, "w1@host", DrainOrder(1, 1.0).text())
    assert "draining" not in why()


def test_an_unread_ticket_says_so(shell: CommandLine, lane: Lane) -> None:
    lane.join("w1@host")
    ids = lane.add("A", "B", "A")
    seen = shell.json("ticket", "show", "A")
    assert seen["state"] == State.UNREAD.value
    assert seen["unread"]["ids"] == [ids[0], ids[2]]
    assert "the leader reads more" in seen["why"]


def test_a_stream_without_a_group_is_all_unread(shell: CommandLine, server: EmbeddedServer) -> None:
    lane = Lane(server)
    lane.add("A")
    seen = shell.json("ticket", "show", "A")
    lane.redis.close()
    assert seen["state"] == State.UNREAD.value
    assert "no master has ever led" in seen["why"]


def test_a_ticket_whose_last_message_died_is_dead_and_one_whose_last_succeeded_is_done(
    shell: CommandLine, lane: Lane
) -> None:
    ids = lane.add("A", "B", "B")
    lane.read()
    lane.bury(ids[0], *letter("A", error="ValueError: why"))
    lane.bury(ids[1], *letter("B"))
    lane.finish(ids[2])
    dead, done = shell.json("ticket", "show", "A"), shell.json("ticket", "show", "B")
    assert (dead["state"], done["state"]) == (State.DEAD.value, State.DONE.value)
    assert "ValueError: why" in dead["why"]
    assert [one["message_id"] for one in done["dead"]] == [ids[1]], "its letters are shown all the same"
    assert ids[2] in done["why"]


def test_a_ticket_whose_messages_have_left_the_stream_is_known_from_the_history(shell: CommandLine, lane: Lane) -> None:
    # Given tickets whose messages are done, and later rows of other tickets or without an end
    ids = lane.add("A", "B", 'quo"te\n', "A")
    lane.read()

    def row(id_: str, ticket: str, what: str) -> list[object]:
        return [id_, ticket, "shop.work", "w1@host", 1, 7, 1, 1, 0.1, what]

    for step in (
        [row(ids[0], "A", "done"), row(ids[3], "A", "done"), row(ids[1], "B", "failed")],
        [row(ids[2], 'quo"te\n', "done")],
        [row("9-9", "C", "done"), row(ids[3], "A", "stale")],
        [["no row of a history but for A", "A"]],
    ):
        lane.redis.xadd(lane.keys.history, {"d": orjson.dumps(step)})
    lane.finish(*ids)
    lane.redis.xdel(lane.keys.stream, *ids)
    # When they are shown, then the last message that ended is named
    for ticket, last in (("A", ids[3]), ('quo"te\n', ids[2])):
        seen = shell.json("ticket", "show", ticket)
        assert (seen["state"], seen["last_done"]) == (State.DONE.value, last)
        assert seen["last_what"] == "done"
    # And what became of one that was not handled is said
    for place, (what, said) in enumerate((("left out", "the filter and the tasks"), ("skipped", "bridge_max_lag"))):
        last = f"{9 + place}-1"
        lane.redis.xadd(lane.keys.history, {"d": orjson.dumps([row(last, "A", what)])})
        seen = shell.json("ticket", "show", "A")
        assert (seen["last_done"], seen["last_what"]) == (last, what)
        assert f"its last message {last} was {what}" in seen["why"]
        assert said in seen["why"]
    # And a ticket with failures only, or without rows, is unknown
    assert shell("ticket", "show", "B").exit_code == shell("ticket", "show", "NOBODY").exit_code == 1
    # And a ticket with a dead message, whose later messages are done, is done
    lane.bury(ids[0], *letter("A"))
    assert shell.json("ticket", "show", "A")["state"] == State.DONE.value


@pytest.mark.parametrize("what", ["dead", "refused"])
def test_a_ticket_whose_last_message_died_is_dead_when_its_letter_was_dropped(
    shell: CommandLine, lane: Lane, what: str
) -> None:
    [id_] = lane.add("A")
    lane.read()
    lane.redis.xadd(lane.keys.history, {"d": orjson.dumps([[id_, "A", "shop.work", "w1@host", 1, 7, 1, 1, 0.1, what]])})
    lane.finish(id_)
    seen = shell.json("ticket", "show", "A")
    assert (seen["state"], seen["last_what"]) == (State.DEAD.value, what)
    assert " is done" not in seen["why"]


def test_a_ticket_whose_last_message_died_is_dead_however_many_died_since(
    shell: CommandLine, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge.inspect.ticket_search, "LETTERS_LOOKED_AT", 2)
    earlier = lane.add("A", "B", "C", "D")
    lane.read()
    for id_, ticket in zip(lane.add("A", "B", "C", "D"), "ABCD", strict=True):
        lane.read()
        lane.bury(id_, *letter(ticket, error="ValueError: why"))
    lane.finish(*earlier)
    seen = shell.json("ticket", "show", "A")
    assert seen["state"] == State.DEAD.value
    assert "ValueError: why" in seen["why"]


def test_only_the_newest_letters_are_shown_newest_first(shell: CommandLine, lane: Lane) -> None:
    ids = lane.add(*"AAAAA")
    lane.read()
    for id_ in ids:
        lane.bury(id_, *letter("A"))
    assert [one["message_id"] for one in shell.json("ticket", "show", "A")["dead"]] == ids[:1:-1]


def test_a_long_error_is_shortened_on_each_line(shell: CommandLine, lane: Lane) -> None:
    [id_] = lane.add("A")
    lane.read()
    error = Outcome(id_, 1, Kind.FAILED, error="ValueError: " + "long\n" * 1_000_000)
    [kept] = decode(b"[" + error.encode() + b"]")
    assert len(kept.error) == 2048
    lane.bury(id_, *letter("A", error=kept.error))
    shown = shell("ticket", "show", "A").stdout
    assert shown.count("ValueError: long long") == 2
    assert max(map(len, shown.splitlines())) < 400
    assert len(shell.json("ticket", "show", "A")["why"]) < 400


def test_an_unknown_ticket_exits_1_and_every_known_one_0(shell: CommandLine, lane: Lane) -> None:
    lane.add("A")
    assert shell("ticket", "show", "A").exit_code == 0
    result = shell("ticket", "show", "NOBODY")
    assert result.exit_code == 1
    assert "nothing was found of it" in result.stdout
    assert shell("ticket", "show", "NOBODY", "--json").exit_code == 1


def test_a_search_that_stopped_early_says_how_far_it_looked(
    shell: CommandLine, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge.inspect.scans, "LIMIT", 120)
    lane.add("A", *["B"] * 150, "A")
    lane.read()
    lane.add(*["C"] * 150, "A")
    seen = shell.json("ticket", "show", "A")
    assert seen["waiting"] == {"ids": seen["waiting"]["ids"], "count": 1, "looked_at": 120, "complete": False}
    assert seen["unread"] == {"ids": [], "count": 0, "looked_at": 120, "complete": False}
    assert "at least 1 message" in seen["why"]
    assert "searched the first 120 of the waiting messages" in shell("ticket", "show", "A").stdout
    assert "only the first 120 messages that wait" in shell.json("ticket", "show", "C")["why"], "so it may wait, too"
    nobody = shell.json("ticket", "show", "NOBODY")
    assert "only the first 120 messages that wait were searched; there are more" in nobody["why"]
    assert "only the first 120 unread messages were searched; there are more" in nobody["why"]


def test_a_search_that_ends_exactly_at_its_bound_is_complete(
    shell: CommandLine, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge.inspect.scans, "LIMIT", 120)
    lane.add(*["B"] * 119, "A")
    lane.read()
    found = shell.json("ticket", "show", "A")["waiting"]
    assert (found["count"], found["looked_at"], found["complete"]) == (1, 120, True)


def test_large_payloads_bound_a_search_by_their_bytes(
    shell: CommandLine, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge.inspect.scans, "LIMIT_BYTES", 100_000)
    monkeypatch.setattr(bridge.inspect.scans, "PAGE_BYTES", 20_000)
    lane.add(*["B"] * 200, payload='"' + "x" * 2000 + '"')
    lane.read()
    found = shell.json("ticket", "show", "A")["waiting"]
    assert not found["complete"]
    assert found["looked_at"] < 100


def test_nothing_is_written_by_looking(shell: CommandLine, lane: Lane, server: EmbeddedServer) -> None:
    ids = lane.add("A", "B")
    lane.read(1)
    lane.bury(ids[0], *letter("A"))
    before = lane.redis.xinfo_consumers(lane.keys.stream, lane.keys.group)
    lane.redis.config_resetstat()
    for arguments in (["status"], ["ticket", "show", "A"], ["ticket", "show", "B"], ["dead", "list"]):
        assert shell(*arguments).exit_code == 0
    assert not {"cmdstat_xreadgroup", "cmdstat_eval", "cmdstat_evalsha", "cmdstat_set", "cmdstat_hset"} & set(
        calls_of(server)
    )
    after = lane.redis.xinfo_consumers(lane.keys.stream, lane.keys.group)
    assert [(c["name"], c["pending"]) for c in after] == [(c["name"], c["pending"]) for c in before]


@pytest.mark.parametrize(("ticket", "said"), [("", "it is empty"), ("x" * 513, "1 to 512 bytes")])
def test_an_invalid_ticket_id_is_refused(shell: CommandLine, ticket: str, said: str) -> None:
    result = shell("ticket", "show", ticket)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_found_message_is_counted_once_however_many_pages_there_are(shell: CommandLine, lane: Lane) -> None:
    lane.add(*["A", "B"] * 700)
    lane.read()
    found = shell.json("ticket", "show", "A")["waiting"]
    assert (found["count"], found["looked_at"], found["complete"]) == (700, 1400, True)
    assert len(found["ids"]) == bridge.inspect.scans.IDS_KEPT


# -- parked ----------------------------------------------------------------------------------------------------------


def test_a_parked_ticket_says_since_when_why_and_what_waits(shell: CommandLine, lane: Lane) -> None:
    lane.join("w1@host")
    ids = lane.add(*"AABA")
    lane.read(3)
    park(lane, "A", ids[:2], "the price list is wrong")
    seen = shell.json("ticket", "show", "A")
    assert seen["state"] == TicketState.PARKED.value
    assert seen["parked"]["reason"] == "the price list is wrong"
    assert 0 <= seen["parked"]["since_ms"] < 60_000
    assert (seen["waiting"]["count"], seen["waiting"]["ids"], seen["unread"]["count"]) == (2, ids[:2], 1)
    assert "the price list is wrong" in seen["why"]
    assert f"`bridge -A {shell.app} ticket release A`" in seen["why"]
    assert "2 messages waiting for it, 1 message not read yet" in seen["why"]
    assert "the price list is wrong" in shell("ticket", "show", "A").stdout
    assert shell.json("ticket", "show", "B")["waiting"]["count"] == 1, "it stands still alone"


def test_a_parked_ticket_counts_what_waits_under_the_masters_name_too(shell: CommandLine, lane: Lane) -> None:
    ids = lane.add(*"AAA")
    lane.read()
    park(lane, "A", ids[:1], "r")
    seen = shell.json("ticket", "show", "A")
    assert (seen["waiting"]["count"], seen["waiting"]["ids"]) == (3, ids)


def test_a_parked_ticket_with_more_messages_than_a_search_may_look_at_is_counted_whole(
    shell: CommandLine, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge.inspect.scans, "LIMIT", 20)
    ids = lane.add(*"A" * 50)
    lane.read()
    park(lane, "A", ids, "r")
    found = shell.json("ticket", "show", "A")["waiting"]
    assert (found["count"], found["complete"], found["ids"]) == (50, True, ids[: bridge.inspect.scans.IDS_KEPT])


def test_a_ticket_without_messages_can_be_parked(shell: CommandLine, lane: Lane) -> None:
    park(lane, "A", [], "r")
    seen = shell.json("ticket", "show", "A")
    assert (seen["state"], seen["waiting"]["count"]) == (TicketState.PARKED.value, 0)


def test_a_parked_message_that_was_begun_shows_its_attempt_and_the_suspicion(shell: CommandLine, lane: Lane) -> None:
    ids = lane.add(*"AA")
    lane.read()
    lost = LostAttempt(2, 77, "w9@host", "its worker ended")
    park(lane, "A", ids, "r", begun=True, losses=2, lost=lost)
    seen = shell.json("ticket", "show", "A")
    assert (seen["parked"]["message_id"], seen["parked"]["attempt"], seen["losses"]) == (ids[0], 3, 2)
    named = {"attempt": 2, "fence": 77, "consumer": "w9@host", "cause": "its worker ended", "first_fence": 77}
    assert seen["lost_attempt"] == named
    shown = shell("ticket", "show", "A").stdout
    assert "2 consumers ended while its oldest message may have been running" in shown
    assert "attempt 2 on w9@host, fence 77: its worker ended" in shown


def test_a_run_after_which_the_ticket_is_to_be_parked_says_so(shell: CommandLine, lane: Lane) -> None:
    lane.join("w1@host")
    ids = lane.add("A")
    lane.read()
    tail = records.tail("w1@host", lane.incarnations["w1@host"], 1, ids, 0, f"{records.PARK_AFTER}stop it")
    lane.redis.hset(lane.keys.tickets, "A", records.record(12, tail))
    seen = shell.json("ticket", "show", "A")
    assert (seen["state"], seen["in_flight"]["park_reason"]) == (TicketState.IN_FLIGHT.value, "stop it")
    assert "to be parked after it: stop it" in seen["why"]


def test_messages_put_back_before_the_begun_one_count_as_waiting(shell: CommandLine, lane: Lane) -> None:
    ids = lane.add(*"AAA")
    lane.read()
    lane.hold_back("A", ids[1], 2, 60_000, "x")
    found = shell.json("ticket", "show", "A")["waiting"]
    assert (found["count"], found["ids"]) == (2, [ids[0], ids[2]])


def test_parked_tickets_are_listed_with_reason_and_what_waits(shell: CommandLine, lane: Lane) -> None:
    lane.join("w1@host")
    ids = lane.add(*"ABCD")
    lane.read()
    lane.dispatch("w1@host", "B", ids[1:2])
    lane.hold_back("C", ids[2], 2, 60_000, "ValueError: no")
    park(lane, "A", ids[:1], "the price\x1b[2J list")
    park(lane, "Z", [], "later")
    listed = shell.json("ticket", "list", "--parked")
    assert [(one["ticket_id"], one["waiting"]) for one in listed["tickets"]] == [("A", 1), ("Z", 0)]
    assert listed["tickets"][0]["cause"] == "the price\x1b[2J list"
    shown = shell("ticket", "list", "--parked").stdout
    assert "\\x1b[2J" in shown
    assert "\x1b" not in shown
    every = {one["ticket_id"]: one["state"] for one in shell.json("ticket", "list")["tickets"]}
    assert every == {"A": "parked", "B": "in flight", "C": "awaiting retry", "Z": "parked"}
    assert shell.json("ticket", "list", "--limit", "3")["more"] is True


def test_a_list_without_tickets_is_an_answer(shell: CommandLine) -> None:
    result = shell("ticket", "list", "--parked")
    assert (result.exit_code, result.stdout) == (0, "no ticket is parked\n")
    assert shell.json("ticket", "list") == {"tickets": [], "more": False}


def test_parking_and_releasing_order_it_of_the_leader(shell: CommandLine, lane: Lane, server: EmbeddedServer) -> None:
    in_flight = 0

    def answer(order: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True, "messages": 3} if order["do"] == "release" else {"ok": True, "in_flight": in_flight}

    with fake_leader(server, lane, answer) as leader:
        assert shell("ticket", "park", "A b", "--reason", "wrong\nprices").stdout == "A b is parked\n"
        in_flight = 2
        assert "will be parked when 2 messages in flight are done" in shell("ticket", "park", "A").stdout
        assert shell("ticket", "release", "A").stdout == "A goes on, with 3 messages that waited\n"
    assert leader.orders == [
        {"do": "park", "ticket": "A b", "reason": "wrong prices"},
        {"do": "park", "ticket": "A", "reason": "parked by an operator"},
        {"do": "release", "ticket": "A"},
    ]


@pytest.mark.parametrize("verb", ["park", "release"])
def test_a_ticket_that_cannot_be_parked_is_an_error_of_one_line(
    shell: CommandLine, lane: Lane, server: EmbeddedServer, verb: str
) -> None:
    with fake_leader(server, lane, lambda _: {"error": "it cannot be"}):
        result = shell("ticket", verb, "A")
        assert (result.exit_code, result.stdout, result.stderr) == (1, "", "Error: it cannot be\n")
        assert "1 to 512 bytes" in shell("ticket", verb, "x" * 513).stderr


def test_what_a_ticket_keeps_is_shown_also_when_it_is_damaged(shell: CommandLine, lane: Lane) -> None:
    lane.redis.hset(lane.keys.state("A"), mapping={"total": "7", "names": '["ü"]'})
    seen = shell.json("ticket", "show", "A")
    assert (seen["kept_state"], seen["kept_state_error"]) == ({"total": 7, "names": ["ü"]}, "")
    shown = shell("ticket", "show", "A")
    assert shown.exit_code == 0
    assert 'keeps     {"total":7,"names":["ü"]}' in shown.stdout
    lane.redis.hset(lane.keys.state("B"), "total", "{")
    assert "keeps     the state cannot be read: the field total" in shell("ticket", "show", "B").stdout
    for at, depth in enumerate((400, 1200)):
        lane.redis.hset(lane.keys.state(f"E{at}"), "deep", "[" * depth + "1234567890123456789" + "]" * depth)
        assert "keeps     the state cannot be read: the field deep" in shell("ticket", "show", f"E{at}").stdout
        seen = shell.json("ticket", "show", f"E{at}")
        assert (seen["kept_state"], "the field deep of the state is" in seen["kept_state_error"]) == ({}, True)
    # No encoder of 64 bits writes it.
    lane.redis.hset(lane.keys.state("F"), "count", 1 << 70)
    assert shell.json("ticket", "show", "F")["kept_state"] == {"count": 1 << 70}
    assert f'keeps     {{"count":{1 << 70}}}' in shell("ticket", "show", "F").stdout
    lane.redis.rpush(lane.keys.state("D"), "x")
    assert (
        "the state cannot be read: the key of the state of ticket D is no hash" in shell("ticket", "show", "D").stdout
    )
    assert "keeps" not in shell("ticket", "show", "C").stdout
