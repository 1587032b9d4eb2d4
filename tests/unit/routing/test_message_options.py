"""The options of a message: when it is due, and what that does to its place."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.routing.ids import (
    LAST_SEQUENCE,
    can_be_id,
    first_id_from,
    id_in,
    id_key,
    id_of_member,
    id_text,
    late_place,
    member_of,
    place_after,
)
from bridge.routing.message_options import FURTHEST_MS, LATEST_MS, MessageOptions
from bridge.routing.messages import EntryParser, LeftOut, Message, Refusal, Refused

PARSER = EntryParser(default_task="shop.task", max_payload=1000, known_tasks=["shop.task"])


def parsed(*more: bytes, id_: str = "1000-0", payload: bool = True) -> Message | Refusal | LeftOut:
    return PARSER.parse(id_, [b"ticket_id", b"T", *([b"payload", b"{}"] if payload else []), *more])


def message(*more: bytes, id_: str = "1000-0", payload: bool = True) -> Message:
    found = parsed(*more, id_=id_, payload=payload)
    assert isinstance(found, Message), found
    return found


def test_a_message_without_options_has_none() -> None:
    assert message().options is None
    assert message(b"colour", b"due").options is None
    assert PARSER.parse("1-0", [b"ticket_id", b"T", b"amount", b"3"]).options is None  # type: ignore[union-attr]


def test_a_due_time_delays_and_says_the_place() -> None:
    found = message(b"due", b"5000")
    assert found.options == MessageOptions(due_ms=5000)
    assert id_key("5000-7") < found.place < id_key("5001-0")
    assert message(b"due", b"5000", id_="1000-1").place > found.place


def test_a_message_for_which_its_ticket_waits_keeps_the_place_of_its_id() -> None:
    found = message(b"due", b"5000", b"hold", b"1")
    assert found.options == MessageOptions(due_ms=5000, hold=True)
    assert found.place == id_key("1000-0")


@pytest.mark.parametrize("due", [b"0", b"999", b"1000"])
def test_a_due_time_that_is_over_when_the_message_is_added_is_no_delay(due: bytes) -> None:
    assert message(b"due", due).options is None
    assert message(b"due", due, b"hold", b"1").options is None


@pytest.mark.parametrize(
    "fields",
    [
        [b"due", b""],
        [b"due", b"-5"],
        [b"due", b"5e3"],
        [b"due", b"tomorrow"],
        [b"due", b"\xff"],
        [b"due", b"9" * 30],
        [b"due", b"%d" % (1000 + FURTHEST_MS + 1)],
        [b"due", b"5000", b"hold", b"yes"],
        [b"hold", b"1"],
    ],
)
@pytest.mark.parametrize("payload", [True, False])
def test_a_bad_due_time_is_refused(fields: list[bytes], payload: bool) -> None:
    found = parsed(*fields, payload=payload)
    assert isinstance(found, Refusal)
    assert found.reason is Refused.BAD_DUE
    assert found.detail


def test_the_furthest_due_time_is_accepted() -> None:
    assert message(b"due", b"%d" % (1000 + FURTHEST_MS)).options is not None


@given(st.integers(1, LAST_SEQUENCE), st.integers(1, FURTHEST_MS + 2))
@example(18446744073709551000, 700)
@example(LATEST_MS - 5, 5)
@example(LATEST_MS - 5, 6)
def test_whatever_id_a_producer_chose_all_times_are_numbers_that_can_be_kept(id_ms: int, later_ms: int) -> None:
    when = b"%d" % (id_ms + later_ms)
    for name, refused in ((b"due", Refused.BAD_DUE), (b"expires", Refused.BAD_OPTION)):
        found = parsed(name, when, id_=f"{id_ms}-0")
        if isinstance(found, Message):
            assert id_ms + later_ms <= LATEST_MS
            assert later_ms <= FURTHEST_MS
        else:
            assert isinstance(found, Refusal)
            assert found.reason is refused
            assert later_ms > FURTHEST_MS or id_ms + later_ms > LATEST_MS


@pytest.mark.parametrize("payload", [True, False])
def test_a_due_time_that_is_there_twice_is_refused(payload: bool) -> None:
    found = parsed(b"due", b"5000", b"due", b"6000", payload=payload)
    assert isinstance(found, Refusal)
    assert (found.reason, found.detail) == (Refused.TWICE, "due")


def test_due_and_hold_never_belong_to_a_payload() -> None:
    found = message(b"amount", b"3", b"due", b"5000", b"hold", b"1", b"priority", b"high", payload=False)
    assert found.payload == b'{"amount":"3","priority":"high"}'
    assert found.options == MessageOptions(due_ms=5000, hold=True)


def test_members_are_in_the_order_of_ids() -> None:
    ids = ["9-0", "10-0", "1000-9", "1000-10", "1000-18446744073709551615", "18446744073709551615-0"]
    members = [member_of(id_) for id_ in ids]
    assert members == sorted(members)
    assert [id_of_member(member) for member in members] == ids
    assert [id_in(member.encode()) for member in members] == ids


@given(st.binary(max_size=8) | st.from_regex(r"[a-u]?[0-9]{0,21}-?[a-u]?[0-9]{0,3}", fullmatch=True).map(str.encode))
@example(b"c007-a0")
@example(b"b1-a1")
def test_a_member_of_another_form_is_no_id(member: bytes) -> None:
    id_ = id_in(member)
    assert id_ is None or (can_be_id(id_) and member_of(id_).encode() == member and id_text(id_key(id_)) == id_)


def test_the_first_place_after_one_is_after_it_and_nothing_is_between() -> None:
    late = late_place(5000, "1000-3")
    assert late < place_after(late) <= late_place(5000, "1000-4")
    assert place_after(id_key("5-0")) == id_key("5-1")
    assert first_id_from(late) == id_key("5001-0")
    assert first_id_from(id_key("5-1")) == id_key("5-1")


# -- how it is handled ---------------------------------------------------------------------------------------------

RULES = (b"max_attempts", b"3", b"timeout", b"2500", b"expires", b"5000", b"priority", b"7")


def test_the_other_options_are_read_beside_a_payload() -> None:
    expected = MessageOptions(max_attempts=3, timeout_ms=2500, expires_ms=5000, priority=7)
    assert message(*RULES).options == expected
    assert message(*RULES).payload == b"{}"
    assert message(*RULES).place == id_key("1000-0")


@pytest.mark.parametrize("hold", [True, False])
def test_a_message_that_expires_before_it_is_due_is_due_when_it_expires(*, hold: bool) -> None:
    held = (b"hold", b"1") if hold else ()
    found = message(b"due", b"9000", b"expires", b"5000", *held)
    assert found.options == MessageOptions(due_ms=5000, hold=hold, expires_ms=5000)
    # One that has expired when it is added is not delayed at all.
    assert message(b"due", b"9000", b"expires", b"1000", *held).options == MessageOptions(expires_ms=1000)
    # Beside no payload it is the user's own.
    assert message(b"due", b"9000", b"expires", b"5000", payload=False).options == MessageOptions(due_ms=9000)


def test_without_a_payload_their_names_are_the_users_own() -> None:
    found = message(*RULES, payload=False)
    assert found.options is None
    assert found.payload == b'{"max_attempts":"3","timeout":"2500","expires":"5000","priority":"7"}'


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((b"max_attempts", value) for value in (b"0", b"1001", b"-1", b"", b"three")),
        *((b"timeout", value) for value in (b"0", b"1.5", b"9" * 13)),
        *((b"expires", value) for value in (b"soon", b"%d" % (1001 + FURTHEST_MS), b" 1")),
        *((b"priority", value) for value in (b"10", b"high", b"+1", b"\xff")),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_the_name_and_the_bounds(name: bytes, value: bytes) -> None:
    found = parsed(name, value)
    assert isinstance(found, Refusal)
    assert found.reason is Refused.BAD_OPTION
    assert found.detail.startswith(f"{name.decode()} is not a whole number from ")


def test_an_option_that_is_there_twice_is_refused() -> None:
    found = parsed(b"priority", b"1", b"priority", b"1")
    assert isinstance(found, Refusal)
    assert found.reason is Refused.TWICE


def test_a_message_with_a_rule_for_its_worker_travels_alone() -> None:
    assert all(one.alone for one in (MessageOptions(max_attempts=1), MessageOptions(timeout_ms=1)))
    assert MessageOptions(expires_ms=1).alone
    assert not MessageOptions(due_ms=5, hold=True, priority=9).alone


def test_a_message_expires_at_its_time() -> None:
    options = MessageOptions(expires_ms=5000)
    assert [options.has_expired(now) for now in (4999, 5000, 5001)] == [False, True, True]
    assert not MessageOptions(priority=1).has_expired(10**15)
