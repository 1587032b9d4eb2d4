"""When a message is due: which options are taken, and which are refused, in one line. Without a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.producer.options import (
    LONGEST_DELAY_MS,
    Past,
    checked_options,
    due_ms_of,
    eta_of_text,
    merged,
    must_not_be_past,
)
from bridge.producer.parts import parts_of
from bridge.routing.errors import OptionError, OptionTypeError, PayloadError

SOON = datetime.now(UTC) + timedelta(hours=1)
SOON_MS = -((datetime(1970, 1, 1, tzinfo=UTC) - SOON) // timedelta(milliseconds=1))


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({}, {}),
        ({"delay": None, "eta": None, "hold": False}, {}),
        ({"delay": 30}, {"due": b"+30000"}),
        ({"delay": 0}, {}),
        ({"delay": 0, "hold": True}, {}),
        ({"delay": 1.1}, {"due": b"+1100"}),
        ({"delay": 0.0001}, {"due": b"+1"}),
        ({"delay": timedelta(minutes=1)}, {"due": b"+60000"}),
        ({"delay": LONGEST_DELAY_MS // 1000}, {"due": b"+%d" % LONGEST_DELAY_MS}),
        ({"delay": 5, "hold": True}, {"due": b"+5000", "hold": b"1"}),
        ({"eta": SOON}, {"due": b"=%d" % SOON_MS}),
        ({"eta": SOON.astimezone(timezone(timedelta(hours=-7)))}, {"due": b"=%d" % SOON_MS}),
        ({"eta": SOON, "hold": True}, {"due": b"=%d" % SOON_MS, "hold": b"1"}),
        ({"max_attempts": None, "timeout": None, "expires": None, "priority": 0}, {}),
        ({"max_attempts": 3, "priority": 9}, {"max_attempts": b"3", "priority": b"9"}),
        ({"timeout": 2.5}, {"timeout": b"2500"}),
        ({"timeout": timedelta(seconds=1), "expires": 60}, {"timeout": b"1000", "expires": b"+60000"}),
        ({"expires": SOON}, {"expires": b"=%d" % SOON_MS}),
        ({"expires": 0}, {"expires": b"+0"}),
        ({"delay": 30, "expires": 31}, {"due": b"+30000", "expires": b"+31000"}),
        ({"delay": 30, "expires": SOON}, {"due": b"+30000", "expires": b"=%d" % SOON_MS}),
        ({"eta": SOON, "expires": 86_400}, {"due": b"=%d" % SOON_MS, "expires": b"+86400000"}),
    ],
    ids=range(22),
)
def test_options_become_fields(options: dict[str, Any], values: dict[str, bytes]) -> None:
    assert checked_options(options) == values


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"delay": -1}, ValueError, "delay must not be below 0, it is -1"),
        ({"delay": timedelta(seconds=-1)}, ValueError, "delay must not be below 0"),
        ({"delay": float("nan")}, ValueError, "not NaN"),
        ({"delay": float("inf")}, ValueError, "at most 100 years .3153600000 s., it is inf"),
        ({"delay": 10**5000}, ValueError, "at most 100 years .3153600000 s., it is a number of many thousand digits"),
        ({"delay": LONGEST_DELAY_MS // 1000 + 1}, ValueError, "at most 100 years"),
        ({"delay": "30"}, TypeError, "delay must be a number of seconds or a timedelta, not '30'"),
        ({"delay": True}, TypeError, "delay must be a number"),
        ({"delay": Decimal(3)}, TypeError, "delay must be a number"),
        ({"delay": SOON}, TypeError, "delay must be a number"),
        ({"eta": SOON.replace(tzinfo=None)}, ValueError, "has no time zone: give it one"),
        ({"eta": datetime.now(UTC) - timedelta(seconds=1)}, ValueError, "is past"),
        ({"eta": datetime(1, 1, 1, tzinfo=UTC)}, ValueError, "is past"),
        ({"eta": datetime(9999, 1, 1, tzinfo=UTC)}, ValueError, "more than 100 years away"),
        ({"eta": SOON.date()}, TypeError, "eta must be a datetime with a time zone"),
        ({"eta": 1_700_000_000}, TypeError, "eta must be a datetime with a time zone"),
        ({"eta": SOON, "delay": 1}, ValueError, "delay and eta both"),
        ({"hold": True}, ValueError, "hold=True needs delay or eta"),
        ({"hold": 1, "delay": 1}, TypeError, "hold must be True or False, not 1"),
        ({"max_attempts": 0}, ValueError, "max_attempts must be from 1 to 1000, it is 0"),
        ({"max_attempts": 2.0}, TypeError, "max_attempts must be a whole number, not 2.0"),
        ({"max_attempts": True}, TypeError, "max_attempts must be a whole number"),
        ({"timeout": 0}, ValueError, "timeout must be more than 0"),
        ({"timeout": 366 * 86_400 + 1}, ValueError, "at most 366 days"),
        ({"timeout": "5"}, TypeError, "timeout must be a number of seconds or a timedelta, not '5'"),
        ({"expires": -1}, ValueError, "expires must not be below 0"),
        ({"expires": "soon"}, TypeError, "a number of seconds, a timedelta or a datetime, not 'soon'"),
        ({"expires": SOON.replace(tzinfo=None)}, ValueError, "expires .* has no time zone"),
        ({"expires": datetime(1, 1, 1, tzinfo=UTC)}, ValueError, "expires .* is past"),
        ({"delay": 30, "expires": 30}, ValueError, "expires is not after the time when the message is due"),
        ({"eta": SOON, "expires": SOON}, ValueError, "expires is not after the time when the message is due"),
        ({"delay": 86_400, "expires": SOON}, ValueError, "expires is not after the time when the message is due"),
        ({"eta": SOON, "expires": 60}, ValueError, "expires is not after the time when the message is due"),
        ({"priority": 10}, ValueError, "priority must be from 0 to 9, it is 10"),
        ({"priority": -1}, ValueError, "priority must be from 0 to 9"),
        ({"priority": False}, TypeError, "priority must be a whole number, not False"),
        ({"priority": 10**5000}, ValueError, "a number of many thousand digits"),
    ],
    ids=range(37),
)
def test_options_that_cannot_be_are_one_line(options: dict[str, Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(PayloadError, match=said) as raised:
        checked_options(options)
    assert isinstance(raised.value, kind)
    assert "\n" not in str(raised.value)


def test_a_repeated_push_may_have_an_eta_that_is_past() -> None:
    past = {"eta": datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)}
    assert checked_options(past, Past.JUDGED) == {"due": b"=1000000000000"}
    assert checked_options(past, Past.ALLOWED) == {"due": b"1000000000000"}


def test_a_repeated_push_may_have_an_expiry_that_its_delay_has_passed() -> None:
    """Such a push was right the first time: the script of a push with a key judges it."""
    options = {"delay": 86_400, "expires": SOON}
    assert checked_options(options, Past.JUDGED) == {"due": b"+86400000", "expires": b"=%d" % SOON_MS}
    assert checked_options(options, Past.ALLOWED) == {"due": b"+86400000", "expires": b"%d" % SOON_MS}
    with pytest.raises(OptionError, match="expires is not after"):
        checked_options({"eta": SOON, "expires": 60}, Past.JUDGED)
    assert must_not_be_past(checked_options(options, Past.JUDGED)) == [SOON_MS, SOON_MS - 86_400_001]
    assert must_not_be_past({"due": b"+9000", "expires": b"=5"}) == [5, 1]
    assert must_not_be_past({"due": b"=7", "expires": b"=9", "priority": b"3"}) == [7, 9]


@given(ms=st.integers(0, 4 * 10**12), zone=st.integers(-14 * 60, 14 * 60), us=st.integers(0, 999))
def test_an_eta_becomes_the_millisecond_that_is_not_before_it(ms: int, zone: int, us: int) -> None:
    eta = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms, microseconds=us)
    [value] = checked_options({"eta": eta.astimezone(timezone(timedelta(minutes=zone)))}, Past.ALLOWED).values()
    assert int(value) == ms + (us > 0)


@given(delay=st.floats(0.001, LONGEST_DELAY_MS / 1000) | st.integers(1, LONGEST_DELAY_MS // 1000))
def test_a_delay_is_never_shortened_by_more_than_a_microsecond(delay: float) -> None:
    due_ms = due_ms_of(checked_options({"delay": delay}), 0)
    assert due_ms is not None
    assert -0.001 <= due_ms - delay * 1000 <= 1


def test_options_of_one_message_go_before_those_of_all() -> None:
    assert merged({"delay": 5, "eta": None, "hold": True}, {"eta": SOON}) == {"eta": SOON, "hold": True}
    assert merged({"delay": 5, "eta": None, "hold": True}, {"delay": None, "hold": False}) == {
        "delay": None,
        "hold": False,
    }
    with pytest.raises(OptionTypeError, match="must be a dict such as"):
        merged({}, [("delay", 5)])
    with pytest.raises(PayloadError, match="there is no option 'dealy' of a message; the options are delay, eta, hold"):
        merged({}, {"dealy": 5})


def test_a_part_has_the_fields_that_its_messages_need() -> None:
    rows: list[Any] = [("T", 1), ("T", 2, {"delay": 1}), ("T", 3, {"delay": 1, "hold": True}), ("T", 4, None)]
    [part], total = parts_of(rows, 1000)
    assert (part.fields, total) == (("due", "hold"), 4)
    values = part.packed.split(b"\r\n")[1::2]
    assert values == [b"T", b"1", b"", b"", b"T", b"2", b"+1000", b"", b"T", b"3", b"+1000", b"1", b"T", b"4", b"", b""]
    [part], _ = parts_of(rows[:1], 1000, {"delay": 2})
    assert part.packed.split(b"\r\n")[1::2] == [b"T", b"1", b"+2000"]
    # A part whose messages have none is as it would be without options.
    assert parts_of(rows[:1], 1000)[0] == parts_of([("T", 1, {})], 1000)[0]


@pytest.mark.parametrize("own", [{"delay": -1}, {"hold": True}, {"eta": SOON, "delay": 2}])
def test_one_bad_message_of_many_is_named(own: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"^message 1: .*; nothing was pushed$"):
        parts_of([("T", 1), ("T", 2, own)], 1000)


def test_an_eta_in_text_needs_the_form_of_iso_8601() -> None:
    assert eta_of_text("2030-01-31T12:00:00+01:00") == datetime(2030, 1, 31, 11, tzinfo=UTC)
    with pytest.raises(OptionError, match="eta must be a time such as"):
        eta_of_text("tomorrow")


LONGEST_TIMEOUT = 366 * 86_400


@given(
    st.floats(max_value=0)
    | st.floats(min_value=LONGEST_TIMEOUT, exclude_min=True)
    | st.integers(max_value=0)
    | st.integers(min_value=LONGEST_TIMEOUT + 1)
    | st.timedeltas(max_value=timedelta())
    | st.timedeltas(min_value=timedelta(days=366, microseconds=1))
)
def test_every_timeout_that_cannot_be_is_told_the_same_limits(timeout: Any) -> None:
    with pytest.raises(OptionError, match=r"^timeout must be more than 0 and at most 366 days, it is "):
        checked_options({"timeout": timeout})


def test_the_limits_of_a_timeout_are_possible() -> None:
    assert checked_options({"timeout": LONGEST_TIMEOUT}) == {"timeout": b"31622400000"}
    assert checked_options({"timeout": 0.001}) == {"timeout": b"1"}
