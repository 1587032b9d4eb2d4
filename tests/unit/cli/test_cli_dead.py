from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import bridge.cli.commands.dead
from bridge.cli.refusals import NOT_BEGUN
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import wait_until
from tests.commands import CommandLine, Lane, command_line, letter
from tests.operators import fake_leader


@pytest.fixture
def shell(valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with command_line(tmp_path, monkeypatch, valkey.url) as made:
        yield made


@pytest.fixture
def lane(valkey: EmbeddedServer) -> Iterator[Lane]:
    made = Lane(valkey)
    made.make_group()
    made.lead()
    yield made
    made.redis.close()


def buried(lane: Lane, *tickets: str, newest_first: bool = False, **fields: object) -> list[str]:
    ids = lane.add(*tickets)
    lane.read()
    past_the_millisecond(lane)
    for ticket, id_ in list(zip(tickets, ids, strict=True))[:: -1 if newest_first else 1]:
        lane.bury(id_, *letter(ticket, **fields))  # type: ignore[arg-type]
    past_the_millisecond(lane)
    return ids


def past_the_millisecond(lane: Lane) -> None:
    """Waits for the next millisecond, so that no letter has the id of another letter's message."""
    began = server_ms(lane)
    wait_until(lambda: server_ms(lane) > began, description="the next millisecond", interval_s=0.0005)


def server_ms(lane: Lane) -> int:
    seconds, micros = lane.redis.time()
    return seconds * 1000 + micros // 1000


def test_letters_are_listed_newest_first(shell: CommandLine, lane: Lane) -> None:
    ids = buried(lane, "A", "B", "C")
    listed = shell.json("dead", "list")
    assert [one["message_id"] for one in listed["letters"]] == ids[::-1]
    assert (listed["total"], listed["more"]) == (3, False)
    shown = shell("dead", "list").stdout.splitlines()
    assert [line.split()[0] for line in shown] == ["message", *ids[::-1]]


def test_a_limit_says_that_there_are_more(shell: CommandLine, lane: Lane) -> None:
    buried(lane, *"ABCDE")
    listed = shell.json("dead", "list", "--limit", "2")
    assert [one["ticket_id"] for one in listed["letters"]] == ["E", "D"]
    assert (listed["total"], listed["more"]) == (5, True)
    assert "there are more" in shell("dead", "list", "--limit", "4").stdout
    assert "there are more" not in shell("dead", "list", "--limit", "5").stdout


def test_letters_are_chosen_by_ticket_task_and_text(shell: CommandLine, lane: Lane) -> None:
    buried(lane, "A", "B")
    buried(lane, "A", task="shop.once")
    buried(lane, "C", reason="asked not to come again", error="Reject: Bad Colour")

    def tickets(*options: str) -> list[str]:
        return [one["ticket_id"] for one in shell.json("dead", "list", *options)["letters"]]

    assert tickets("--ticket", "A") == ["A", "A"]
    assert tickets("--task", "shop.once") == ["A"]
    assert tickets("--ticket", "B", "--task", "shop.once") == []
    assert tickets("--reason", "NOT TO COME") == ["C"]
    assert tickets("--reason", "bad colour") == ["C"], "the error is looked at, too"
    assert "none of the 4 dead letters matches" in shell("dead", "list", "--ticket", "X").stdout


def test_more_letters_than_a_page_are_all_found(shell: CommandLine, lane: Lane) -> None:
    ids = buried(lane, *(f"T{n}" for n in range(250)))
    listed = shell.json("dead", "list", "--limit", "1000")
    assert [one["message_id"] for one in listed["letters"]] == ids[::-1]
    assert shell.json("dead", "show", ids[0])["ticket_id"] == "T0"


def test_no_letters_is_an_answer(shell: CommandLine) -> None:
    result = shell("dead", "list")
    assert (result.exit_code, result.stdout) == (0, "no dead letters\n")


def test_a_letter_is_shown_whole(shell: CommandLine, lane: Lane) -> None:
    (id_,) = buried(lane, "A", payload='{"n":12345678901234567890123,"s":"é"}')
    shown = shell("dead", "show", id_).stdout
    for text in ("A", "shop.update", "gave up after 5 attempts", "Traceback …\nValueError: no", "w1@host", "12"):
        assert text in shown
    assert '{"n":12345678901234567890123,"s":"é"}' in shown
    document = shell.json("dead", "show", id_)
    assert document["payload"] == {"n": 12345678901234567890123, "s": "é"}, "numbers are not rounded"
    assert (document["attempts"], document["fence"], document["consumer"]) == (5, 12, "w1@host")
    assert document["traceback"] == "Traceback …\nValueError: no"


def test_a_letter_is_found_by_its_own_id_too(shell: CommandLine, lane: Lane) -> None:
    buried(lane, "A")
    own = shell.json("dead", "list")["letters"][0]["letter_id"]
    assert shell.json("dead", "show", own)["ticket_id"] == "A"


def test_an_entry_that_is_no_utf8_is_shown_and_lost_nowhere(shell: CommandLine, lane: Lane) -> None:
    (id_,) = lane.add("A")
    lane.read()
    fields = ["reason", "a field is not UTF-8", "error", "", "traceback", "", "attempts", 0, "at_ms", 1]
    lane.bury(id_, *fields, b"field:ticket_id", b"\xff\xfe", b"field:p\xe9", b"\x00\x1b[2J", b"field:p\xe9", b"twice")
    shown = shell("dead", "show", id_).stdout
    assert "\\xff\\xfe" in shown
    assert "\x1b" not in shown
    fields = shell.json("dead", "show", id_)["fields"]
    assert fields == [
        ["ticket_id", {"base64": "//4="}],
        [{"base64": "cOk="}, "\x00\x1b[2J"],
        [{"base64": "cOk="}, "twice"],
    ]
    assert shell.json("dead", "list")["letters"][0]["ticket_id"] == "\\xff\\xfe"


def test_an_error_cannot_steer_the_terminal(shell: CommandLine, lane: Lane) -> None:
    (id_,) = buried(lane, "A\x1b]0;x\x07", error="no\x1b[2J\nline", traceback="Traceback\n\x9b31mx", payload='"\x7f"')
    for arguments in (["dead", "list"], ["dead", "show", id_]):
        shown = shell(*arguments).stdout
        assert not {"\x1b", "\x07", "\x9b", "\x7f"} & set(shown)
    assert json.loads(shell("dead", "show", id_, "--json").stdout)["error"] == "no\x1b[2J\nline"


def test_a_message_without_a_letter_exits_1(shell: CommandLine) -> None:
    result = shell("dead", "show", "1-1")
    assert result.exit_code == 1
    assert "no dead letter of message 1-1" in result.stderr


# -- replay and drop -------------------------------------------------------------------------------------------------


def replays(lane: Lane, **refused: str) -> Any:
    """A leader that replays letters, except those of the messages in ``refused``."""

    def answer(order: dict[str, Any]) -> dict[str, Any]:
        back, not_back = [], []
        for letter_id in order["letters"]:
            ((_, fields),) = cast("Any", lane.redis.xrange(lane.keys.dead, letter_id, letter_id))
            why = refused.get(fields[b"ticket_id"].decode())
            if why is None:
                lane.redis.xdel(lane.keys.dead, letter_id)
                back.append(letter_id)
            else:
                not_back.append([letter_id, why])
        return {"ok": True, "replayed": back, "refused": not_back}

    return answer


def letters_of(lane: Lane) -> list[tuple[str, str]]:
    """(letter id, ticket) of all dead letters."""
    found = cast("Any", lane.redis.xrange(lane.keys.dead))
    return [(id_.decode(), fields[b"ticket_id"].decode()) for id_, fields in found]


def unprocessable(lane: Lane, ticket: str, task: str = "shop.later") -> str:
    (id_,) = lane.add(ticket, task=task)
    lane.read()
    past_the_millisecond(lane)
    fields = ["reason", "unknown task", "error", task, "traceback", "", "attempts", 0, "at_ms", 1]
    lane.bury(id_, *fields, "field:ticket_id", ticket, "field:task", task, "field:payload", "{}")
    past_the_millisecond(lane)
    return id_


def test_a_message_is_replayed_by_its_id_or_by_its_letters(
    shell: CommandLine, lane: Lane, valkey: EmbeddedServer
) -> None:
    ids = buried(lane, "A", "B", "C")
    own = {ticket: letter_id for letter_id, ticket in letters_of(lane)}
    with fake_leader(valkey, lane, replays(lane)) as leader:
        result = shell("dead", "replay", ids[2], own["A"])
    assert (result.exit_code, result.stdout) == (0, "replayed 2 dead letters\n")
    assert leader.orders == [{"do": "replay", "letters": [own["A"], own["C"]]}], "in the order of their messages"
    assert [ticket for _, ticket in letters_of(lane)] == ["B"]


def test_a_refusal_of_the_leader_is_shown_with_its_reason(
    shell: CommandLine, lane: Lane, valkey: EmbeddedServer
) -> None:
    ids = buried(lane, "A", "B")
    with fake_leader(valkey, lane, replays(lane, B="it runs")):
        result = shell("dead", "replay", "--all", "--yes")
        assert result.exit_code == 1
        assert result.stdout == f"not replayed: {ids[1]}: it runs\nreplayed 1 dead letter\n"
        assert result.stderr == "Error: 1 of 2 dead letters was not replayed\n"
        alone = shell("dead", "replay", ids[1])
        assert (alone.exit_code, alone.stdout) == (1, "")
        assert alone.stderr == f"Error: {ids[1]} was not replayed: it runs\n"
        machine = shell("dead", "replay", ids[1], "--json")
        assert (machine.exit_code, machine.stderr) == (1, alone.stderr)
        document = json.loads(machine.stdout)
    assert (document["replayed"], document["refused"], document["letters"][0]["why"]) == (0, 1, "it runs")


def test_a_replay_that_must_fail_is_not_ordered(shell: CommandLine, lane: Lane, valkey: EmbeddedServer) -> None:
    broken = unprocessable(lane, "A")
    (gone,) = buried(lane, "B")
    lane.redis.xdel(lane.keys.stream, gone)
    planned = shell("dead", "replay", "--all", "--dry-run")
    assert (planned.exit_code, planned.stderr) == (1, "Error: 2 of 2 dead letters would be refused\n")
    assert f"not replayed: {gone}: its entry has left the stream" in planned.stdout
    with fake_leader(valkey, lane, replays(lane)) as leader:
        result = shell("dead", "replay", "--all", "--yes")
    assert result.exit_code == 1
    assert f"not replayed: {broken}: it still cannot be processed (unknown task, shop.later)" in result.stdout
    assert f"not replayed: {gone}: its entry has left the stream" in result.stdout
    assert "replayed 0 dead letters" in result.stdout
    assert result.stderr == "Error: no dead letter was replayed\n"
    assert leader.orders == []
    assert len(letters_of_any(lane)) == 2


def test_a_refused_message_is_replayed_once_it_can_be_processed(
    shell: CommandLine, lane: Lane, valkey: EmbeddedServer
) -> None:
    id_ = unprocessable(lane, "A", task="shop.once")
    with fake_leader(valkey, lane, lambda order: {"ok": True, "replayed": order["letters"], "refused": []}):
        assert shell("dead", "replay", id_).stdout == "replayed 1 dead letter\n"


def letters_of_any(lane: Lane) -> list[Any]:
    return cast("list[Any]", lane.redis.xrange(lane.keys.dead))


def test_only_the_newest_of_a_messages_letters_is_replayed(
    shell: CommandLine, lane: Lane, valkey: EmbeddedServer
) -> None:
    (id_,) = buried(lane, "A")
    lane.bury(id_, *letter("A"))
    with fake_leader(valkey, lane, replays(lane)) as leader:
        result = shell("dead", "replay", id_)
    assert result.exit_code == 1
    assert "newer letter" in result.stdout
    assert result.stderr == "Error: 1 of 2 dead letters was not replayed\n"
    assert len(leader.orders[0]["letters"]) == 1


@pytest.mark.parametrize("verb", ["replay", "drop"])
def test_a_selection_is_by_ticket_task_and_text(
    shell: CommandLine, lane: Lane, valkey: EmbeddedServer, verb: str
) -> None:
    buried(lane, "A", "B")
    buried(lane, "A", task="shop.once")
    buried(lane, "C", error="Reject: Bad Colour")
    with fake_leader(valkey, lane, replays(lane)):
        assert shell("dead", verb, "--reason", "bad colour", "--yes").exit_code == 0
        assert [ticket for _, ticket in letters_of(lane)] == ["A", "B", "A"]
        assert shell("dead", verb, "--all", "--ticket", "A", "--task", "shop.once", "--yes").exit_code == 0
        assert [ticket for _, ticket in letters_of(lane)] == ["A", "B"]
        assert shell("dead", verb, "--ticket", "nobody", "--yes").stdout.endswith("0 dead letters\n")


@pytest.mark.parametrize("verb", ["replay", "drop"])
def test_a_dry_run_shows_what_would_be_done_and_does_nothing(shell: CommandLine, lane: Lane, verb: str) -> None:
    ids = buried(lane, "A", "B")
    lane.depose()
    shown = shell("dead", verb, "--all", "--dry-run")
    assert shown.exit_code == 0
    assert all(id_ in shown.stdout for id_ in ids)
    assert f"would {verb} 2 dead letters" in shown.stdout
    document = shell.json("dead", verb, ids[0], "--dry-run")
    assert (document["dry_run"], [one["message_id"] for one in document["letters"]]) == (True, [ids[0]])
    assert len(letters_of(lane)) == 2
    assert lane.redis.xlen(lane.keys.outcomes) == 0


@pytest.mark.parametrize("verb", ["replay", "drop"])
def test_a_selection_without_yes_is_refused_without_a_terminal(shell: CommandLine, lane: Lane, verb: str) -> None:
    buried(lane, "A", "B")
    result = shell("dead", verb, "--ticket", "A")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"this would {verb} 1 dead letter: add --yes, or look first with --dry-run" in result.stderr
    assert len(letters_of(lane)) == 2


@pytest.mark.parametrize(("said", "left"), [("y\n", 0), ("n\n", 1)])
def test_at_a_terminal_a_selection_is_asked_for(
    shell: CommandLine, lane: Lane, monkeypatch: pytest.MonkeyPatch, said: str, left: int
) -> None:
    buried(lane, "A")
    monkeypatch.setattr(bridge.cli.commands.dead, "at_a_terminal", lambda: True)
    result = shell("dead", "drop", "--all", stdin=said)
    assert result.exit_code == 0
    assert "drop 1 dead letter?" in result.stderr
    assert len(letters_of(lane)) == left


@pytest.mark.parametrize("verb", ["replay", "drop"])
@pytest.mark.parametrize("fields", [[], ["5-1", "--all"], ["5-1", "--ticket", "A"]])
def test_a_selection_that_says_nothing_or_two_things_is_wrong_usage(
    shell: CommandLine, verb: str, fields: list[str]
) -> None:
    result = shell("dead", verb, *fields)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--all" in result.stderr


@pytest.mark.parametrize("verb", ["replay", "drop"])
def test_an_id_that_no_letter_has_stops_all_before_anything_is_done(shell: CommandLine, lane: Lane, verb: str) -> None:
    (id_,) = buried(lane, "A")
    result = shell("dead", verb, id_, "5-1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no dead letter of message 5-1" in result.stderr
    assert len(letters_of(lane)) == 1


def test_an_id_of_a_letter_and_of_another_ones_message_is_refused(shell: CommandLine, lane: Lane) -> None:
    buried(lane, "A")
    own = letters_of(lane)[0][0]
    lane.redis.xadd(lane.keys.dead, {"message_id": own, "reason": "r", "ticket_id": "B"})
    result = shell("dead", "drop", own)
    assert result.exit_code == 1
    assert "name each by its other id" in result.stderr
    assert len(letters_of(lane)) == 2


def test_many_letters_go_in_orders_of_a_hundred_each_ticket_in_its_order(
    shell: CommandLine, lane: Lane, valkey: EmbeddedServer
) -> None:
    tickets = [f"T{n % 3}" for n in range(250)]
    ids = buried(lane, *tickets, newest_first=True)
    with fake_leader(valkey, lane, replays(lane)) as leader:
        # Named in any order; each message has its place by its id.
        document = shell.json("dead", "replay", *ids[::-1])
    assert (document["replayed"], document["refused"]) == (250, 0)
    assert [len(order["letters"]) for order in leader.orders] == [100, 100, 50]
    of_letter = {one["letter_id"]: one for one in document["letters"]}
    sent: dict[str, list[str]] = {}
    for order in leader.orders:
        for letter_id in order["letters"]:
            sent.setdefault(of_letter[letter_id]["ticket_id"], []).append(of_letter[letter_id]["message_id"])
    assert sent == {f"T{n}": ids[n::3] for n in range(3)}
    split = [{of_letter[letter_id]["ticket_id"] for letter_id in order["letters"]} for order in leader.orders]
    assert split == [{"T0", "T1"}, {"T1", "T2"}, {"T2"}], "few tickets are split between two orders"


def test_a_replay_that_breaks_off_says_how_many_it_had_replayed(
    shell: CommandLine, lane: Lane, valkey: EmbeddedServer
) -> None:
    buried(lane, *["A"] * 150)
    replay = replays(lane)
    with fake_leader(
        valkey, lane, lambda order: replay(order) if len(order["letters"]) == 100 else {"error": "no more today"}
    ):
        result = shell("dead", "replay", "--all", "--yes")
        buried(lane, *["B"] * 100)
        document = shell("dead", "replay", "--all", "--yes", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: no more today (100 of 150 were replayed before)\n"
    found = json.loads(document.stdout)
    assert (document.exit_code, found["replayed"], found["refused"]) == (1, 100, 50)
    assert {one["why"] for one in found["letters"] if not one["replayed"]} == {"no more today"}


def test_of_a_replay_that_breaks_off_each_letter_says_whether_it_was_ordered(
    shell: CommandLine, lane: Lane, valkey: EmbeddedServer
) -> None:
    buried(lane, *["A"] * 230)
    replay = replays(lane)
    orders = itertools.count()
    with fake_leader(valkey, lane, lambda order: {"error": "no more today"} if next(orders) else replay(order)):
        document = shell("dead", "replay", "--all", "--yes", "--json")
    found = json.loads(document.stdout)
    assert (document.exit_code, found["replayed"], found["refused"]) == (1, 100, 130)
    assert Counter(one["why"] for one in found["letters"]) == {None: 100, "no more today": 100, NOT_BEGUN: 30}


def test_letters_of_any_kind_are_dropped_for_good(shell: CommandLine, lane: Lane) -> None:
    unprocessable(lane, "A")
    ids = buried(lane, "B", "B")
    lane.depose()
    assert shell("dead", "drop", ids[0]).stdout == "dropped 1 dead letter\n"
    assert shell("dead", "drop", "--all", "--yes").stdout == "dropped 2 dead letters\n"
    assert lane.redis.xlen(lane.keys.dead) == 0
    assert shell("dead", "drop", ids[0]).exit_code == 1


def test_a_letter_that_was_deleted_before_the_drop_is_reported(
    shell: CommandLine, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    (id_,) = buried(lane, "A")

    def gone_meanwhile() -> bool:
        lane.redis.delete(lane.keys.dead)
        return True

    monkeypatch.setattr(bridge.cli.commands.dead, "at_a_terminal", gone_meanwhile)
    result = shell("dead", "drop", "--all", stdin="y\n")
    assert result.exit_code == 1
    # Before click 8.2, its runner puts the answer there.
    assert result.stdout.strip() in ("", "y")
    assert result.stderr.endswith(f"Error: {id_} was not dropped: it no longer exists\n")


def test_a_list_says_where_the_letters_of_an_older_version_are(
    lane: Lane, valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buried(lane, "A", "B")
    settings = {"bridge_stream": "v2", "bridge_follows": ["ticket_stream"]}
    with command_line(tmp_path, monkeypatch, valkey.url, **settings) as shell:
        older = f"2 dead letters of an older version: `bridge -A {shell.app} dead list --stream ticket_stream`\n"
        assert shell("dead", "list").stdout == f"no dead letters\n{older}"
        assert "older version" not in shell("dead", "list", "--stream", "ticket_stream").stdout
