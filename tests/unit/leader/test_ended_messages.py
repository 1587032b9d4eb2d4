"""Which messages ended after the floor, as the leader reads it from the history."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import orjson
import pytest

from bridge.leader.repair import group
from bridge.leader.repair.group import ENTRIES, LETTERS, ended_after
from bridge.leader.step.term import Term
from bridge.routing.history import What, row

FLOOR = "100-0"
HISTORY = "the history"

Entry = tuple[bytes, list[bytes]]


def entry(number: int, *rows: list[Any]) -> Entry:
    return b"%d-0" % (200 + number), [b"d", orjson.dumps(rows)]


class HistoryOf:
    """What the server answers to the two commands of a page."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = [(b"50-0", [b"d", b"[]"]), *entries]

    def call_many(self, commands: Sequence[tuple[Any, ...]]) -> list[list[Entry]]:
        return [self._range(*words) for words in commands]

    def _range(self, command: str, key: str, start: str, end: str, count: str, limit: int) -> list[Entry]:
        assert (command, key, end, count) == ("XRANGE", HISTORY, "+", "COUNT")
        after = start.startswith("(")
        names = [id_.decode() for id_, _ in self._entries]
        first = 0 if start == "-" else names.index(start.removeprefix("(")) + after
        return self._entries[first : first + limit]


def ended(*entries: Entry, dead: Sequence[str] = (), newest: int = 1000) -> tuple[set[str], list[str]]:
    """``dead``: the messages that have a letter. ``newest``: of the stream."""
    keys = SimpleNamespace(history=HISTORY, dead="the letters", stream="the stream")
    term = SimpleNamespace(keys=keys, wire=HistoryOf(entries), redis=None)

    def letters(_redis: Any, key: str, after: str, count: int) -> tuple[list[str], str, int]:
        assert key == keys.dead
        page = dead[int(after or 0) :][:count]
        return list(page), str(int(after or 0) + len(page)), len(page)

    with patch.object(group, "letters", letters), patch.object(group, "last_id", lambda *_: f"{newest}-0"):
        return ended_after(cast("Term", term), FLOOR)


def test_messages_after_the_floor_that_are_done_or_dead_have_ended() -> None:
    rows = [row("101-0", What.DONE), row("102-0", What.FAILED), row("103-0", What.DEAD), row("99-0", What.DONE)]
    assert ended(entry(1, *rows)) == ({"101-0", "103-0"}, [])


def test_a_replayed_message_has_not_ended_until_it_ends_again() -> None:
    rows = [row(f"{at}-0", what) for what in (What.DEAD, What.REPLAYED) for at in (98, 99, 101, 102)]
    assert ended(entry(1, *rows), entry(2, row("98-0", What.DONE), row("101-0", What.DONE))) == ({"101-0"}, ["99-0"])


@pytest.mark.parametrize("number", [1, LETTERS - 1, LETTERS, 2 * LETTERS + 1])
def test_a_message_with_a_letter_has_ended_also_without_a_row(number: int) -> None:
    dead = [f"{101 + n}-0" for n in range(number)]
    assert ended(dead=["a note", "", "99-0", *dead, "1001-0"]) == (set(dead), [])
    # Also one that was replayed before it died without a row
    rows = [row("98-0", What.DEAD), row("98-0", What.REPLAYED)]
    assert ended(entry(1, *rows)) == (set(), ["98-0"])
    assert ended(entry(1, *rows), dead=["98-0"]) == (set(), [])


def test_all_pages_are_read() -> None:
    pages = [entry(at, row(f"{101 + at}-0", What.DONE)) for at in range(2 * ENTRIES)]
    assert ended(*pages) == ({f"{101 + at}-0" for at in range(2 * ENTRIES)}, [])


@pytest.mark.parametrize("fields", [[b"x", b"[]"], [b"x", b"no JSON", b"y", b""]], ids=["array", "text"])
def test_an_entry_of_somebody_else_is_passed_over(fields: list[bytes]) -> None:
    done = [entry(at, row(f"{101 + at}-0", What.DONE)) for at in (1, 3)]
    assert ended(done[0], (b"202-0", fields), done[1]) == ({"102-0", "104-0"}, [])
