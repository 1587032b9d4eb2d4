from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import bridge.scans
from bridge.embedded import EmbeddedServer
from routing.states import State
from tests.commands import CommandLine, Lane, calls_of, command_line, letter


@pytest.fixture
def shell(server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with command_line(tmp_path, monkeypatch, server.url) as made:
        yield made


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


def test_in_flight_on_a_dead_consumer_says_who_moves_it(shell: CommandLine, lane: Lane) -> None:
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
    assert "one has room" in shell.json("ticket", "show", "A")["why"]
    lane.depose()
    assert "no master leads" in shell.json("ticket", "show", "A")["why"]


def test_an_unread_ticket_says_so(shell: CommandLine, lane: Lane) -> None:
    lane.join("w1@host")
    ids = lane.add("A", "B", "A")
    seen = shell.json("ticket", "show", "A")
    assert seen["state"] == State.UNREAD.value
    assert seen["unread"]["ids"] == [ids[0], ids[2]]
    assert "the master reads on" in seen["why"]


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


def test_only_the_newest_letters_are_shown_newest_first(shell: CommandLine, lane: Lane) -> None:
    ids = lane.add(*"AAAAA")
    lane.read()
    for id_ in ids:
        lane.bury(id_, *letter("A"))
    assert [one["message_id"] for one in shell.json("ticket", "show", "A")["dead"]] == ids[:1:-1]


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
    monkeypatch.setattr(bridge.scans, "LIMIT", 120)
    lane.add("A", *["B"] * 150, "A")
    lane.read()
    lane.add(*["C"] * 150, "A")
    seen = shell.json("ticket", "show", "A")
    assert seen["waiting"] == {"ids": seen["waiting"]["ids"], "count": 1, "looked_at": 120, "complete": False}
    assert seen["unread"] == {"ids": [], "count": 0, "looked_at": 120, "complete": False}
    assert "at least 1 message" in seen["why"]
    assert "looked at the first 120 of what waits" in shell("ticket", "show", "A").stdout
    assert "only the first 120 messages that wait" in shell.json("ticket", "show", "C")["why"], "so it may wait, too"
    nobody = shell.json("ticket", "show", "NOBODY")
    assert "only the first 120 messages that wait were looked at, there are more" in nobody["why"]
    assert "only the first 120 unread messages were looked at, there are more" in nobody["why"]


def test_a_search_that_ends_exactly_at_its_bound_is_complete(
    shell: CommandLine, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge.scans, "LIMIT", 120)
    lane.add(*["B"] * 119, "A")
    lane.read()
    found = shell.json("ticket", "show", "A")["waiting"]
    assert (found["count"], found["looked_at"], found["complete"]) == (1, 120, True)


def test_large_payloads_bound_a_search_by_their_bytes(
    shell: CommandLine, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge.scans, "LIMIT_BYTES", 100_000)
    monkeypatch.setattr(bridge.scans, "PAGE_BYTES", 20_000)
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


@pytest.mark.parametrize("ticket", ["", "x" * 513])
def test_what_cannot_be_a_ticket_is_refused(shell: CommandLine, ticket: str) -> None:
    result = shell("ticket", "show", ticket)
    assert result.exit_code == 1
    assert "1 to 512 bytes" in result.stderr


def test_a_found_message_is_counted_once_however_many_pages_there_are(shell: CommandLine, lane: Lane) -> None:
    lane.add(*["A", "B"] * 700)
    lane.read()
    found = shell.json("ticket", "show", "A")["waiting"]
    assert (found["count"], found["looked_at"], found["complete"]) == (700, 1400, True)
    assert len(found["ids"]) == bridge.scans.IDS_KEPT
