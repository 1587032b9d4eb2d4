"""The options of a read, and how it compares ids."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.routing.errors import ConfigurationError
from bridge.spark.read.options import READ_OPTIONS, ReadOptions, parse_read
from bridge.spark.read.reader import SCHEMA, schema_of
from bridge.spark.wire.entry_ids import LAST, ZERO, EntryId
from bridge.spark.write.options import OPTIONS

IDS = st.builds(EntryId, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))


def test_without_options_everything_of_the_usual_stream_is_read() -> None:
    options = parse_read({})
    assert options == ReadOptions()
    assert (options.stream, options.starting_id, options.ending_id) == ("ticket_stream", ZERO, LAST)
    assert options.fail_on_data_loss


def test_names_are_accepted_in_any_case_and_every_option_reaches_its_attribute() -> None:
    given_ones = {
        "URL": "redis://somewhere:1/2", "STREAM": "s", "fIeLdS": "a, b", "startingid": "5-1", "ENDINGID": "7",
        "maxrowspertrigger": "10", "NumPartitions": "3", "failondataloss": "FALSE", "TABLE": "Dead", "GROUP": "g",
    }  # fmt: skip
    assert parse_read(given_ones) == ReadOptions(
        url="redis://somewhere:1/2", stream="s", table="dead", group="g", fields=("a", "b"), starting_id=EntryId(5, 1),
        ending_id=EntryId(7, 2**64 - 1), max_rows=10, partitions=3, fail_on_data_loss=False,
    )  # fmt: skip
    assert {name.lower() for name in given_ones} == {name.lower() for name in READ_OPTIONS}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", ZERO),
        ("earliest", ZERO),
        ("Latest", None),
        (" 5 ", EntryId(5, 0)),
        ("18446744073709551615-0", (2**64 - 1, 0)),
    ],
)
def test_where_a_read_may_begin(value: str, expected: EntryId | None) -> None:
    assert parse_read({"startingId": value}).starting_id == expected


@pytest.mark.parametrize(("value", "expected"), [(" 5 ", (5, 2**64 - 1)), ("5-1", (5, 1)), ("latest", LAST)])
def test_a_read_that_ends_with_a_time_ends_with_its_last_entry_as_in_xrange(value: str, expected: EntryId) -> None:
    assert parse_read({"endingId": value}).ending_id == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingId": "yesterday"}, "option startingId must be earliest, latest or an id like .*, not 'yesterday'"),
        ({"startingId": "18446744073709551616"}, "option startingId must be"),
        ({"endingId": "earliest"}, "option endingId must be latest or an id"),
        ({"endingId": "(5-1"}, "option endingId must be"),
        ({"numPartitions": "0"}, "option numPartitions must be a whole number of at least 1, not '0'"),
        ({"maxRowsPerTrigger": "many"}, "option maxRowsPerTrigger must be a whole number"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss must be true or false, not 'maybe'"),
        ({"table": "letters"}, "option table must be messages, history or dead, not 'letters'"),
        ({"table": "history"}, "option group is missing: table=history is that of one consumer group"),
        ({"group": "g"}, "option group is for table=history and table=dead; messages belong to no group"),
        ({"startingOffsets": "earliest"}, "option startingOffsets is unknown; did you mean startingId?"),
        ({"chunkSize": "5"}, "option chunkSize is for writing; a read does not know it"),
    ],
)
def test_impossible_options_are_refused_in_one_line(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        parse_read(options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://:hunter2@h", "redis://:hunter/2@h"])
def test_no_error_and_no_representation_has_the_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_read({"url": url})
    assert "hunter" not in str(refused.value)
    assert "hunter" not in repr(parse_read({"url": "redis://:hunter2@h:1/0"}))


def test_the_columns_follow_their_option_only() -> None:
    others: dict[str, Any] = dict.fromkeys(OPTIONS, "5")
    del others["fields"]
    assert schema_of(others) == SCHEMA
    assert schema_of({**others, "Fields": "a,b"}).names == ["id", "a", "b", "enqueued_at"]
    assert schema_of({"fields": "a,fields,enqueued_at"}).names == ["id", "a", "fields", "enqueued_at"]


@given(IDS, IDS)
def test_ids_are_compared_as_numbers_and_have_neighbours(one: EntryId, other: EntryId) -> None:
    assert EntryId.of(str(one)) == one
    assert (one < other) == ((one.ms, one.seq) < (other.ms, other.seq))
    if one > ZERO:
        assert one.before().after() == one
        assert one.before() < one
    assert one.after() > one
    # There is none between.
    assert not one < other < one.after()


@pytest.mark.parametrize("text", ["", "-", "5-", "-5", "5-5-5", "a-1", "1_0", "٣-0", "5 -0", b"\xff"])
def test_an_invalid_id_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="no stream id"):
        EntryId.of(text)
