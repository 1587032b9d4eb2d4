"""Dead letters: what the leader writes, in the form that is read."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.protocol.dead_letters import LETTER_BYTES, Letter, given_up, read_letter, refused
from bridge.routing.batch import DeadLetter
from bridge.routing.message_options import MessageOptions
from bridge.routing.messages import EntryParser, Message, Refusal, Refused, unreadable


def read(letter: DeadLetter) -> Letter:
    arguments: list[Any] = [str(argument) if isinstance(argument, int) else argument for argument in letter.arguments()]
    return read_letter(b"9-0", [argument.encode() if isinstance(argument, str) else argument for argument in arguments])


def letter_of(payload: bytes) -> DeadLetter:
    message = Message("5-1", "T42", "shop.pay", payload)
    facts: dict[str, Any] = {"attempts": 3, "at_ms": 1700, "consumer": "w1@a", "fence": 2**53 + 1}
    return given_up(message, reason="gave up after 3 attempts", error="ValueError: no", traceback="…", **facts)


def test_the_letter_of_a_message_has_the_words_that_other_versions_read() -> None:
    assert letter_of(b'{"n":1}').arguments() == [
        *("message_id", "5-1", "reason", "gave up after 3 attempts", "error", "ValueError: no", "traceback", "…"),
        *("attempts", 3, "at_ms", 1700, "ticket_id", "T42", "task", "shop.pay", "payload", b'{"n":1}'),
        *("consumer", "w1@a", "fence", 2**53 + 1),
    ]


def test_all_that_was_written_of_a_message_is_read() -> None:
    assert read(letter_of(b'{"n":1}')) == Letter(
        id="9-0",
        message_id="5-1",
        reason="gave up after 3 attempts",
        error="ValueError: no",
        traceback="…",
        attempts=3,
        at_ms=1700,
        ticket_id="T42",
        task="shop.pay",
        payload=b'{"n":1}',
        consumer="w1@a",
        fence=2**53 + 1,
        fields=(),
    )


@pytest.mark.parametrize(("hold", "due_ms"), [(False, 1600), (True, 0)])
def test_the_letter_of_a_message_that_others_overtook_says_when_it_was_due(*, hold: bool, due_ms: int) -> None:
    message = Message("5-1", "T42", "shop.pay", b"1")
    message.options = MessageOptions(due_ms=1600, hold=hold)
    facts: dict[str, Any] = {"attempts": 3, "at_ms": 1700, "consumer": "w1@a", "fence": 7}
    assert read(given_up(message, reason="", error="", traceback="", **facts)).due_ms == due_ms


def test_a_large_payload_is_cut_and_its_size_is_there() -> None:
    arguments = letter_of(b"x" * (LETTER_BYTES + 1)).arguments()
    at = arguments.index("payload")
    assert arguments[at : at + 4] == ["payload", b"x" * LETTER_BYTES, "payload_bytes", LETTER_BYTES + 1]


def test_the_letter_of_a_refused_entry_has_its_fields_as_they_came() -> None:
    fields = [b"ticket_id", b"\xff", b"n", b"1"]
    letter = refused(Refusal("5-1", Refused.BAD_TICKET, "not UTF-8", fields), at_ms=1700)
    assert letter.arguments() == [
        *("message_id", "5-1", "reason", Refused.BAD_TICKET.value, "error", "not UTF-8", "traceback", ""),
        *("attempts", 0, "at_ms", 1700, b"field:ticket_id", b"\xff", b"field:n", b"1"),
    ]
    found = read(letter)
    assert (found.message_id, found.reason, found.attempts) == ("5-1", Refused.BAD_TICKET.value, 0)
    assert found.fields == ((b"ticket_id", b"\xff"), (b"n", b"1"))


def test_the_letter_of_an_entry_that_was_not_read_whole_says_how_much_it_lacks() -> None:
    parser = EntryParser(default_task=None, max_payload=1000, known_tasks=())
    beginnings = [b"ticket_id", b"T", b"a", b"x" * 1024]
    entry = (b"5-1", beginnings, 100_000, 3)
    for refusal in (parser.parse_entry(entry), unreadable(entry, "ValueError()")):
        assert isinstance(refusal, Refusal)
        arguments = refused(refusal, at_ms=1700).arguments()
        assert arguments[-2:] == ["cut_bytes", 100_000 - sum(map(len, beginnings))]
        assert read(refused(refusal, at_ms=1700)).fields == ((b"ticket_id", b"T"), (b"a", b"x" * 1024))
