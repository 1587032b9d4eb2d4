"""Partitions: which one a ticket belongs to, names of streams, ids."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from bridge.app.results import _MESSAGE_ID
from bridge.routing.errors import ConfigurationError, StreamRetired
from bridge.routing.layouts import difference, layout_of, text_of_layout
from bridge.routing.partitions import MOST, Layout, partition_of, stream_id, suffix_in, suffix_of, whole_stream
from bridge.routing.repartitioning import next_layout
from bridge.testing.nodes.process import ROOT

PAGE = ROOT / "docs" / "reference" / "messages.md"
#: A row of the table: the ticket, or one character of it, CRC-32, partitions of 4 and of 16.
ROW = re.compile(
    r"^\| `(?P<ticket>[^`]+)`(?P<times>, 512 times)? \| (?P<crc>\d+) \| (?P<of4>\d+) \| (?P<of16>\d+) \|$", re.MULTILINE
)


def vectors() -> list[tuple[str, int, int, int]]:
    """(ticket, CRC-32, partition of 4, partition of 16), from the page."""
    found = []
    for row in ROW.finditer(PAGE.read_text()):
        ticket = row["ticket"] * (512 if row["times"] else 1)
        found.append((ticket, int(row["crc"]), int(row["of4"]), int(row["of16"])))
    return found


def test_the_page_has_vectors_of_each_kind() -> None:
    tickets = [ticket for ticket, *_ in vectors()]
    assert any(ticket.isascii() and len(ticket) < 10 for ticket in tickets)
    assert any(not ticket.isascii() and max(ticket) < "\uffff" for ticket in tickets)
    assert any(max(ticket) > "\uffff" for ticket in tickets)
    assert any(len(ticket.encode()) == 512 for ticket in tickets)


@pytest.mark.parametrize("number", range(len(vectors())))
def test_a_ticket_is_in_the_partition_that_the_page_says(number: int) -> None:
    ticket, crc, of4, of16 = vectors()[number]
    assert partition_of(ticket, 1 << 32) == crc
    assert (partition_of(ticket, 4), partition_of(ticket.encode(), 16)) == (of4, of16)
    assert partition_of(ticket, 1) == 0


def test_tickets_are_spread_evenly() -> None:
    share = Counter(partition_of(f"T{n}", 16) for n in range(16_000))
    assert len(share) == 16
    assert all(850 < number < 1150 for number in share.values())


@pytest.mark.parametrize("layout", [Layout(), Layout(3), Layout(3, 2), Layout(1, 1)], ids=repr)
def test_the_whole_stream_is_known_by_a_partition_and_an_id(layout: Layout) -> None:
    for number, stream in enumerate(layout.streams("orders:p1")):
        assert whole_stream(stream, f"1700000000000-0{layout.suffix(number)}") == "orders:p1"


@pytest.mark.parametrize("layout", [Layout(), Layout(3), Layout(3, 2), Layout(1, 1)], ids=repr)
def test_the_suffix_of_ids_is_known_by_the_streams_name(layout: Layout) -> None:
    for number, stream in enumerate(layout.streams("orders:g1")):
        assert suffix_in(stream, "orders:g1", "other") == (layout.suffix(number) or "other")
    assert suffix_in("orders:v2", "orders", "other") == "other"


def test_names_of_streams_and_ids() -> None:
    assert Layout().streams("s") == ("s",)
    assert Layout().suffix(0) == ""
    assert Layout(3).streams("s") == ("s:p0", "s:p1", "s:p2")
    assert Layout(3, 2).streams("s") == ("s:g2:p0", "s:g2:p1", "s:g2:p2")
    # The only partition of a later generation has a stream of its own, since the first one's is still there.
    assert Layout(1, 1).streams("s") == ("s:g1:p0",)
    for layout, suffix in ((Layout(), ""), (Layout(16), "@p11"), (Layout(16, 7), "@g7p11")):
        id_ = f"1700000000000-3{layout.suffix(11)}"
        assert id_ == f"1700000000000-3{suffix}"
        assert (stream_id(id_), suffix_of(id_)) == ("1700000000000-3", suffix)
        assert _MESSAGE_ID.fullmatch(id_)
    assert not _MESSAGE_ID.fullmatch("1700000000000-3@")
    assert len(set(Layout(MOST).streams("s"))) == MOST


@pytest.mark.parametrize(
    "text",
    ["x", "[]", "4", '{"partitions":4}', '{"partitions":0,"generation":0,"since_ms":1}', "\\xff",
     '{"partitions":true,"generation":0,"since_ms":1}', '{"partitions":5000,"generation":0,"since_ms":1}',
     '{"retired_ms":1e999,"newest":"x","was":""}', '{"retired_ms":NaN,"newest":"x","was":""}'],
)  # fmt: skip
def test_a_layout_that_cannot_be_read_is_one_line(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"the layout of stream s cannot be read: .* in the key {s}/layout"):
        layout_of(text, "s")


@pytest.mark.parametrize("ms", ["1", "1e30", "-1e30", "9" * 30, "1.5"])
def test_a_retired_stream_is_named_in_one_line_whatever_the_time_of_the_note(ms: str) -> None:
    with pytest.raises(StreamRetired, match=r"^stream s was retired on .*: nobody handles its messages; push to x$"):
        layout_of(f'{{"retired_ms":{ms},"newest":"x","was":""}}', "s")


def test_a_layout_is_read_and_compared() -> None:
    text = '{"partitions":4,"generation":1,"since_ms":17,"new":1}'
    assert layout_of(text.encode(), "s") == Layout(4, 1, 17, text)
    assert layout_of(b"", "s") == Layout()
    assert difference(Layout(4), 4, "s") is None
    assert difference(Layout(4), 1, "s") == (
        "stream s has 4 partitions, and bridge_partitions is 1: the stream is used as it is; "
        "set bridge_partitions = 4, or change the stream with `bridge stream repartition`"
    )
    assert "has 1 partition," in (difference(Layout(), 4, "s") or "")


@pytest.mark.parametrize("counts", [(1, 4), (4, 1), (4, 8), (8, 4), (4, 6), (6, 4), (3, 3), (5, 7), (12, 18)])
def test_a_partition_follows_all_older_ones_with_tickets_of_its_own_and_no_other(counts: tuple[int, int]) -> None:
    before, after = counts
    layout = Layout(after, 1, older=Layout(before))
    together = {(partition_of(f"T{n}", before), partition_of(f"T{n}", after)) for n in range(5_000)}
    assert {(old, new) for new in range(after) for old in layout.older_of(new)} == together
    assert {(old, new) for old in range(before) for new in layout.newer_of(old)} == together
    # Partitions of different groups never have a ticket in common
    assert {(old % layout.classes, new % layout.classes) for old, new in together} == {
        (n, n) for n in range(layout.classes)
    }


def test_a_stored_layout_says_what_came_before() -> None:
    layout = next_layout(Layout(4, 2, 17, "text"), 6)
    assert (layout.partitions, layout.generation, layout.older) == (6, 3, Layout(4, 2, 17))
    assert layout_of(layout.text, "orders") == layout
    assert layout.shape == ((6, 3), (4, 2), None)
    left = replace(layout, older=None, leaving=layout.older)
    again = layout_of(text_of_layout(left), "orders")
    assert (again.older, again.leaving, again.shape) == (None, Layout(4, 2, 17), ((6, 3), None, (4, 2)))
    assert layout.all_streams("o") == {*layout.streams("o"), *Layout(4, 2).streams("o")}
