"""Notes of tasks that no consumer can run: written as other versions read them, and read as they were written."""

from __future__ import annotations

import orjson
import pytest

from bridge.protocol.unserved import Note, UnservedTask, read_note, read_unserved

NOTE = Note(UnservedTask("shop.pay", 2, 7, 1700, True, None, 9000, "3 of 4 failed"), 1.5)
TEXT = (
    b'{"tickets":2,"messages":7,"since_ms":1700,"known":true,"queue":null,"dead_in_ms":9000,'
    b'"breaker":"3 of 4 failed","waited_s":1.5}'
)


def test_a_note_is_written_and_read_in_one_form() -> None:
    assert NOTE.text() == TEXT
    assert read_note(b"shop.pay", TEXT) == NOTE


def test_a_note_of_an_older_version_has_no_breaker() -> None:
    text = b'{"tickets":2,"messages":7,"since_ms":1700,"known":true,"queue":"q","dead_in_ms":null,"waited_s":0}'
    assert read_note(b"a", text) == Note(UnservedTask("a", 2, 7, 1700, True, "q", None), 0)


def test_a_member_of_a_later_version_is_left_out() -> None:
    assert read_note(b"shop.pay", TEXT.replace(b"{", b'{"more":[1],', 1)) == NOTE


@pytest.mark.parametrize("since_ms", [2.0**64, 1e300, -(2.0**64)])
def test_a_time_that_could_not_be_written_again_is_refused(since_ms: float) -> None:
    with pytest.raises(ValueError, match="no clock"):
        read_note(b"shop.pay", orjson.dumps({**orjson.loads(TEXT), "since_ms": since_ms}))


def test_all_notes_come_by_task() -> None:
    bad: list[tuple[str, bytes, bytes]] = []
    found = {b"b": TEXT, b"c": b"garbage", b"a": TEXT}
    assert [one.task for one in read_unserved("k", found, lambda *one: bad.append(one))] == ["a", "b"]
    assert bad == [("k", b"c", b"garbage")]
