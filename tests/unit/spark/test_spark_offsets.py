"""Offsets: missing entries are counted exactly, wherever entries were deleted. Tested against lists."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from bridge.spark.read.offsets import Offset, is_another_stream, missing_after, present_after
from bridge.spark.read.stream_info import StreamInfo
from bridge.spark.wire.entry_ids import ZERO, EntryId


@dataclass
class Model:
    """A stream whose ids are 1-0, 2-0, …, as a server keeps it."""

    there: list[int] = field(default_factory=list)
    added: int = 0
    deleted: int = 0

    def add(self, count: int) -> None:
        self.there += range(self.added + 1, self.added + count + 1)
        self.added += count

    def delete(self, number: int) -> None:
        if number in self.there:
            self.there.remove(number)
            self.deleted = max(self.deleted, number)

    def trim(self, keep_from: int) -> None:
        self.there = [number for number in self.there if number >= keep_from]

    @property
    def info(self) -> StreamInfo:
        first, last = (EntryId(self.there[at], 0) if self.there else None for at in (0, -1))
        return StreamInfo(len(self.there), first, last, EntryId(self.added, 0), self.added, EntryId(self.deleted, 0))


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 4)),
        st.tuples(st.just("delete"), st.integers(1, 30)),
        st.tuples(st.just("trim"), st.integers(1, 30)),
        st.tuples(st.just("read"), st.integers(1, 5)),
    ),
    max_size=40,
)


@given(ACTIONS)
def test_the_number_without_counting_equals_the_counted_one(actions: list[tuple[str, int]]) -> None:
    model, at = Model(), Offset(ZERO, 0)
    unread_and_gone, reported = set[int](), 0
    for action, number in actions:
        before = set(model.there)
        match action:
            case "add":
                model.add(number)
            case "delete":
                model.delete(number)
            case "trim":
                model.trim(number)
            case _:
                # An epoch, planned as the reader plans it, of so many entries
                behind = [entry for entry in model.there if entry > at.id.ms]
                present = present_after(model.info, at.id, at.position)
                assert present in (None, len(behind))
                missing = missing_after(model.info, at, len(behind))
                assert missing >= 0
                reported += missing
                rows = min(number, len(behind))
                end = behind[rows - 1] if rows and rows < len(behind) else model.added
                at = Offset(EntryId(end, 0), model.added - (len(behind) - rows), at.rows + rows, reported)
                assert not is_another_stream(model.info, at)
                continue
        unread_and_gone |= {entry for entry in before - set(model.there) if entry > at.id.ms}
    behind = [entry for entry in model.there if entry > at.id.ms]
    assert reported + missing_after(model.info, at, len(behind)) == len(unread_and_gone)


def test_only_entries_deleted_singly_behind_the_offset_have_to_be_counted() -> None:
    model = Model()
    model.add(10)
    read_five = Offset(EntryId(5, 0), 5)
    assert present_after(model.info, read_five.id, read_five.position) == 5
    model.delete(2)
    assert present_after(model.info, read_five.id, read_five.position) == 5
    model.delete(8)
    assert present_after(model.info, read_five.id, read_five.position) is None
    model.trim(7)
    assert present_after(model.info, read_five.id, read_five.position) == 3
    # A server before 7.0 has no counter to compare with
    assert present_after(StreamInfo(3, EntryId(7, 0), EntryId(10, 0), EntryId(10, 0), None, ZERO), ZERO, None) is None


def test_a_stream_that_was_made_again_is_another_stream() -> None:
    at = Offset(EntryId(50, 0), 50, rows=10)
    shorter = StreamInfo(3, EntryId(60, 0), EntryId(62, 0), EntryId(62, 0), 3, ZERO)
    older_server = StreamInfo(3, EntryId(7, 0), EntryId(9, 0), EntryId(9, 0), None, ZERO)
    assert is_another_stream(shorter, at)
    assert is_another_stream(older_server, at)
    # A query may wait for ids that are still to come
    assert not is_another_stream(older_server, Offset(EntryId(50, 0), None))


def test_an_offset_survives_its_checkpoint() -> None:
    for offset in (Offset(EntryId(2**64 - 1, 7), None), Offset(ZERO, 5, 3, 2)):
        assert Offset.of(json.loads(json.dumps(offset.to_json()))) == offset
