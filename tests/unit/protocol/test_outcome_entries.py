"""Entries of the outcome stream: their kinds, and what is refused."""

from __future__ import annotations

import pytest

from bridge.protocol.outcome_entries import (
    EntryKind,
    GivenUp,
    Notice,
    notice_fields,
    outcomes_in,
    read_given_up,
    read_notice,
)
from bridge.protocol.outcomes import NotUnderstood

NOTICES = [kind for kind in EntryKind if kind is not EntryKind.OUTCOMES]


def as_read(*fields: str | bytes) -> list[bytes]:
    return [field.encode() if isinstance(field, str) else field for field in fields]


def test_the_kinds_have_the_names_that_other_versions_write() -> None:
    assert [kind.value for kind in EntryKind] == ["o", "joined", "leaving", "gone", "died", "order"]
    assert notice_fields(EntryKind.JOINED, "life1", "w1@a") == ("i", "life1", "joined", "w1@a")


@pytest.mark.parametrize("kind", NOTICES, ids=lambda kind: kind.value)
def test_a_notice_is_read_as_it_was_written(kind: EntryKind) -> None:
    fields = as_read(*notice_fields(kind, "life1", "w1@a"))
    assert outcomes_in(fields) is None
    assert read_notice("1-0", fields) == Notice("1-0", kind, "life1", b"w1@a", [])


def test_outcomes_are_found_whatever_comes_after_them() -> None:
    assert outcomes_in(as_read("i", "life1", "o", "[]")) == b"[]"
    assert outcomes_in(as_read("i", b"\xff", "o", "[]", "more", "x")) == b"[]"


@pytest.mark.parametrize("fields", [(), ("i", "life1"), ("x", "life1", "o", "[]")], ids=len)
def test_an_entry_of_no_known_form_is_refused(fields: tuple[str, ...]) -> None:
    with pytest.raises(NotUnderstood, match="no known form") as caught:
        outcomes_in(as_read(*fields))
    assert not caught.value.newer


def test_an_unknown_kind_may_be_of_a_newer_version_and_a_name_that_is_no_text_is_not() -> None:
    with pytest.raises(NotUnderstood, match="of the kind 'later'") as caught:
        read_notice("1-0", as_read("i", "life1", "later", "x"))
    assert caught.value.newer
    with pytest.raises(NotUnderstood, match="not UTF-8") as caught:
        read_notice("1-0", as_read("i", b"\xff", "gone", "w1@a"))
    assert not caught.value.newer


def died(*more: str) -> Notice:
    return read_notice("1-0", as_read("i", "life1", "died", "w1@a", *more))


def test_a_death_notice_says_what_ran_and_whether_it_was_asked_to_end() -> None:
    assert read_given_up(died("ran", "[]")) == GivenUp(frozenset(), asked=False)
    assert read_given_up(died("ran", "[7,9007199254740993]")) == GivenUp(frozenset({7, 2**53 + 1}), asked=False)
    assert read_given_up(died("ran", "[7]", "asked", "1")) == GivenUp(frozenset({7}), asked=True)
    assert read_given_up(died("ran", "[7]", "beside", "12")) == GivenUp(frozenset({7}), beside=12)


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("asked", "1"),
        ("ran", "{"),
        ("ran", "7"),
        ("ran", '[[1],"x"]'),
        ("ran", "[7]", "beside", "x"),
        ("ran", "[7]", "beside", "-1"),
        ("ran", "[7]", "beside", "9" * 5000),
    ],
    ids=range(8),
)
def test_a_death_notice_without_what_ran_is_refused(more: tuple[str, ...]) -> None:
    with pytest.raises(NotUnderstood, match="what ran"):
        read_given_up(died(*more))
