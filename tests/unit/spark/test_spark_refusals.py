"""Which rows a batch refuses, and that the refusal names the ticket."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.routing.errors import PayloadError
from bridge.spark.write.refusals import SequenceCheck, check_dates, check_payloads, check_tickets


@pytest.mark.parametrize(
    ("tickets", "said"),
    [
        (pa.array(["A", None]), r"no ticket \(null\), the first is row 1"),
        (pa.array(["A", "B", ""]), "empty ticket, the first is row 2"),
        (pa.array(["x" * 513]), "a ticket has 513 bytes, at most 512"),
        (pa.array(["ü" * 257]), "a ticket has 514 bytes, at most 512"),
        (pa.array([b"\xff"]), "not valid UTF-8"),
        (pa.array([b"\xff"]).view(pa.string()), "not valid UTF-8"),
    ],
)
def test_a_ticket_that_cannot_be_one_is_refused(tickets: pa.Array, said: str) -> None:
    with pytest.raises(PayloadError, match=said) as refused:
        check_tickets(tickets)
    assert "\n" not in str(refused.value)


def test_a_ticket_of_512_bytes_is_allowed() -> None:
    check_tickets(pa.array(["ü" * 256, "x" * 512, "1"]))


def test_a_batch_without_rows_is_allowed() -> None:
    check_tickets(pa.array([], pa.string()))
    SequenceCheck("seq").check(pa.array([], pa.string()), pa.array([], pa.int64()))


def payloads(**columns: list[str | None]) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(values, pa.string()) for name, values in columns.items()})


@pytest.mark.parametrize("days", [-719_163, 2_932_897, 13_000_000])
def test_a_date_that_no_text_says_is_refused(days: int) -> None:
    tickets = pa.array(["A", "B"])
    fine = pa.array([None, 2_932_896], pa.int32()).cast(pa.date32())
    check_dates(pa.record_batch({"ticket_id": tickets, "day": fine}), tickets, ["ticket_id", "day"])
    odd = pa.array([-719_162, days], pa.int32()).cast(pa.date32())
    with pytest.raises(PayloadError, match="day of ticket 'B' is not a date of the years 1 to 9999"):
        check_dates(pa.record_batch({"ticket_id": tickets, "day": odd}), tickets, ["ticket_id", "day"])


def test_a_payload_at_the_limit_is_allowed_and_one_over_it_is_refused() -> None:
    tickets = pa.array(["A", "B"])
    check_payloads(payloads(payload=["12345", "ü123"]), tickets, ["payload"], 5)
    with pytest.raises(PayloadError, match="the payload of ticket 'B' has 6 bytes; maxPayload allows 5"):
        check_payloads(payloads(payload=["12345", "ü1234"]), tickets, ["payload"], 5)


def test_fields_that_are_the_payload_count_together_with_their_names() -> None:
    batch = payloads(a=["123", None], bc=["45", "6"], task=["a long name of a task", None])
    check_payloads(batch, pa.array(["A", "B"]), ["task", "a", "bc"], 8)
    with pytest.raises(PayloadError, match="ticket 'A' has 8 bytes"):
        check_payloads(batch, pa.array(["A", "B"]), ["task", "a", "bc"], 7)
    with pytest.raises(PayloadError, match="ticket 'B' has 9 bytes"):
        check_payloads(payloads(a=["1", None], bc=["2", "3456789"]), pa.array(["A", "B"]), ["a", "bc"], 8)


def test_other_fields_count_only_where_there_is_no_payload() -> None:
    batch = payloads(payload=["1", None], x=["123456789", "12345"])
    check_payloads(batch, pa.array(["A", "B"]), ["payload", "x"], 6)
    with pytest.raises(PayloadError, match="ticket 'B' has 6 bytes"):
        check_payloads(batch, pa.array(["A", "B"]), ["payload", "x"], 5)


Row = tuple[str, int | None]


def guard(*batches: list[Row]) -> None:
    watcher = SequenceCheck("seq")
    for rows in batches:
        tickets = pa.array([ticket for ticket, _ in rows], pa.string())
        watcher.check(tickets, pa.array([number for _, number in rows], pa.int64()))


def test_tickets_may_interleave_and_leave_gaps() -> None:
    guard([("A", 1), ("B", 7), ("A", 3), ("B", 8)], [("B", 9), ("C", 1), ("A", 4)])


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ([[("A", 1), ("B", 9), ("A", 1)]], "seq does not rise within ticket 'A': 1 comes after 1"),
        ([[("B", 5), ("A", 2), ("B", 4)]], "ticket 'B': 4 comes after 5"),
        ([[("A", 5)], [("B", 1)], [("A", 5)]], "ticket 'A': 5 comes after 5"),
        ([[("A", 1)], [("C", 1), ("A", None)]], "ticket 'A' has a row whose seq is not a whole number"),
    ],
)
def test_a_sequence_that_does_not_rise_is_refused(batches: list[list[Row]], said: str) -> None:
    with pytest.raises(PayloadError) as refused:
        guard(*batches)
    assert said in str(refused.value)


@given(st.lists(st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 5)), max_size=6), max_size=4))
def test_the_guard_refuses_exactly_what_a_loop_over_rows_would(batches: list[list[Row]]) -> None:
    last: dict[str, int] = {}
    rises = True
    for ticket, number in (row for batch in batches for row in batch):
        assert number is not None
        rises = rises and number > last.get(ticket, -1)
        last[ticket] = number
    if rises:
        guard(*batches)
    else:
        with pytest.raises(PayloadError):
            guard(*batches)
