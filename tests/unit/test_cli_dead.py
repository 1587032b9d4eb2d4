from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.embedded import EmbeddedServer
from tests.commands import CommandLine, Lane, command_line, letter


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


def buried(lane: Lane, *tickets: str, **words: object) -> list[str]:
    ids = lane.add(*tickets)
    lane.read()
    for ticket, id_ in zip(tickets, ids, strict=True):
        lane.bury(id_, *letter(ticket, **words))  # type: ignore[arg-type]
    return ids


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
    assert "none of the 4 dead letters is like that" in shell("dead", "list", "--ticket", "X").stdout


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
    words = ["reason", "a field is not UTF-8", "error", "", "traceback", "", "attempts", 0, "at_ms", 1]
    lane.bury(id_, *words, b"field:ticket_id", b"\xff\xfe", b"field:p\xe9", b"\x00\x1b[2J", b"field:p\xe9", b"twice")
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
