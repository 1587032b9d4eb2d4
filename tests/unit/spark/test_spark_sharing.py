"""How an epoch's entries and a read's tasks are shared among streams."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.spark.read.offsets import Offset, Offsets
from bridge.spark.read.ranges import Range
from bridge.spark.read.sharing import in_tasks, share_rows, share_tasks
from bridge.spark.read.streams import Source
from bridge.spark.wire.entry_ids import EntryId

COUNTS = st.lists(st.integers(0, 1000), min_size=1, max_size=20)


@given(COUNTS, st.integers(1, 5000))
def test_an_epoch_is_full_or_has_all_and_a_long_backlog_takes_nothing_from_a_short_one(
    waiting: list[int], most: int
) -> None:
    shares = share_rows(waiting, most)
    assert sum(shares) == min(most, sum(waiting))
    assert all(share <= count for share, count in zip(shares, waiting, strict=True))
    # A stream that has more than it gives, gives as many as any other, less one at most.
    limited = [share for share, count in zip(shares, waiting, strict=True) if share < count]
    assert all(share >= max(shares) - 1 for share in limited)
    assert share_rows(waiting, None) == waiting


@given(COUNTS, st.integers(1, 100))
def test_every_stream_with_entries_has_a_range_and_no_task_is_left_over(entries: list[int], tasks: int) -> None:
    ranges = share_tasks(entries, tasks)
    filled = sum(count > 0 for count in entries)
    assert sum(ranges) == max(filled, min(tasks, sum(entries)))
    assert all(0 < number <= count for number, count in zip(ranges, entries, strict=True) if count)
    # Another range would not have helped another stream more.
    largest = max((count / number for count, number in zip(entries, ranges, strict=True) if count), default=0)
    assert all(count / (number - 1) >= largest for count, number in zip(entries, ranges, strict=True) if number > 1)


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 10))
def test_every_range_is_in_one_task_and_tasks_are_about_equal(entries: list[int], tasks: int) -> None:
    source = Source("s", "s", "")
    ranges = [Range(source, EntryId(place, 0), EntryId(place, 9), rows) for place, rows in enumerate(entries)]
    found = in_tasks(ranges, tasks, entries)
    assert sorted(part.first for one in found for part in one.ranges) == [part.first for part in ranges]
    assert len(found) == min(tasks, len(ranges))
    loads = [sum(part.rows or 0 for part in one.ranges) for one in found]
    assert not loads or max(loads) - min(loads) <= max(entries)


def test_the_offsets_of_one_whole_stream_are_kept_as_they_always_were() -> None:
    one, other = Offset(EntryId(5, 1), 7, 3, 1), Offset(EntryId(9, 0), None)
    assert Offsets({"s": one}).to_json("s") == one.to_json()
    assert Offsets.of(one.to_json(), "s") == Offsets({"s": one})
    # One partition alone is not the whole stream
    for offsets in (Offsets({"s": one, "s:g1:p0": other}), Offsets({"s:p0": other})):
        assert Offsets.of(offsets.to_json("s"), "s") == offsets
    both = Offsets({"s": one, "s:p0": other})
    assert (both.rows, both.lost) == (3, 1)
