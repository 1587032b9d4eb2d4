"""Outcomes are read as they were written, with any error text."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.protocol.outcome_limits import ERROR_CHARS
from bridge.protocol.outcomes import TRACEBACK_CHARS, Kind, Outcome, decode, read

#: Any text an exception may have, lone surrogates included.
ANY_TEXT = st.text(alphabet=st.characters(), max_size=40) | st.sampled_from(["\ud800", "a\udfffb", "\0", '"],['])
FENCES = st.integers(1, 2**53 - 1)
TIMES = st.integers(0, 10**9).map(lambda us: us / 1000)


def through(*outcomes: Outcome) -> list[Outcome]:
    return decode(b"[" + b",".join(outcome.encode() for outcome in outcomes) + b"]")


def printable(text: str) -> str:
    return text.encode(errors="replace").decode()


@given(fence=FENCES, ms=TIMES, kind=st.sampled_from([Kind.DONE, Kind.RETURNED]))
def test_an_outcome_without_error_is_read_as_it_was_written(fence: int, ms: float, kind: Kind) -> None:
    outcome = Outcome("1700000000000-12", fence, kind, ms)
    assert through(outcome) == [outcome]


@given(
    fence=FENCES,
    kind=st.sampled_from([Kind.FAILED, Kind.DEAD, Kind.NACKED, Kind.DROPPED]),
    error=ANY_TEXT,
    traceback=ANY_TEXT,
    delay_ms=st.none() | st.integers(0, 10**12),
)
@example(fence=2**53 - 1, kind=Kind.FAILED, error="\ud800", traceback="\udfff", delay_ms=0)
def test_a_failure_keeps_its_message_without_invalid_text(
    fence: int, kind: Kind, error: str, traceback: str, delay_ms: int | None
) -> None:
    outcome = Outcome("1-0", fence, kind, 1.5, 1_700_000_000_000_000, error, traceback, delay_ms)
    [back] = through(outcome)
    assert back == Outcome(
        "1-0", fence, kind, 1.5, 1_700_000_000_000_000, printable(error), printable(traceback), delay_ms
    )
    # And the parsed outcome can be written again
    assert through(back) == [back]


def test_a_leader_of_an_older_version_takes_a_dropped_message_as_done() -> None:
    row = orjson.loads(Outcome("1-0", 7, Kind.DROPPED, 1.5, 3, "the ticket is closed").encode())
    assert row[2] == "S"
    # It ignores the members behind the eighth.
    assert through_rows([row[:8]]) == [Outcome("1-0", 7, Kind.DONE, 1.5, 3, "the ticket is closed")]


@pytest.mark.parametrize("exact", ["?", 1, None, ["X"]])
def test_an_exact_kind_that_is_not_known_leaves_a_message_done(exact: Any) -> None:
    [back] = through_rows([["1-0", 7, "S", 0.5, 3, "", "", None, exact]])
    assert back.kind is Kind.DONE


def through_rows(rows: list[Any]) -> list[Outcome]:
    return decode(orjson.dumps(rows))


def test_a_failures_message_is_bounded_and_the_end_of_the_traceback_is_kept() -> None:
    [back] = through(Outcome("1-0", 1, Kind.FAILED, 0.0, 0, "é" * 10_000, "x" * 100_000 + "the cause"))
    assert len(back.error) == ERROR_CHARS
    assert len(back.traceback) == TRACEBACK_CHARS
    assert back.traceback.endswith("the cause")


def test_many_outcomes_keep_their_order_in_one_entry() -> None:
    outcomes = [Outcome(f"{i}-0", i + 1, kind, float(i)) for i, kind in enumerate([*Kind] * 50)]
    assert through(*outcomes) == outcomes


def test_each_kind_has_a_text_of_its_own() -> None:
    assert len({kind.value for kind in Kind}) == len(Kind)


@pytest.mark.parametrize("ms", [0.0, 0.0004, 12.3456, 86_400_000.0])
def test_a_service_time_is_kept_to_the_microsecond(ms: float) -> None:
    [back] = through(Outcome("1-0", 1, Kind.DONE, ms))
    assert back.service_ms == pytest.approx(ms, abs=0.0006)


@pytest.mark.parametrize("data", [b"", b'[["1-0",1]]', b'[["1-0",1,"?",0]]', b"[1]"])
def test_an_invalid_outcome_is_an_error(data: bytes) -> None:
    with pytest.raises((ValueError, TypeError)):
        decode(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
plausible = st.tuples(
    st.sampled_from(["1-0", "18446744073709551615-0", "x", "", "1-0 ", "٣-0"]) | json_values,
    st.sampled_from([0, 1, -1, 2**60, 1.5, True]) | json_values,
    st.sampled_from([*(kind.value for kind in Kind), "?", "X", ""]) | json_values,
    st.sampled_from([0, 1.5, -1, 1e300]) | json_values,
    st.sampled_from([0, 1, 2**63]) | json_values,
    json_values,
    json_values,
    json_values,
    json_values,
)


@given(rows=st.lists(plausible.map(list) | plausible.map(lambda row: list(row[:5])) | json_values) | json_values)
def test_any_entry_is_read_or_skipped(rows: Any) -> None:
    found, problems = read(orjson.dumps(rows))
    assert len(found) + len(problems) == (len(rows) if isinstance(rows, list) else 1)
    for outcome in found:
        assert Outcome(*_parts(outcome)) == outcome
        # Its uses: the history, the record of a ticket, a time for the retry.
        orjson.dumps([outcome.message_id, outcome.fence, outcome.started_us, outcome.service_ms, outcome.delay_ms])
        assert all(part.isdecimal() and part.isascii() for part in outcome.message_id.split("-"))
        assert int(1e3 + (outcome.delay_ms or 0)) >= 1000


def _parts(outcome: Outcome) -> list[Any]:
    return [getattr(outcome, name) for name in Outcome.__slots__]


@given(data=st.binary())
def test_no_text_at_all_is_an_exception(data: bytes) -> None:
    read(data)


@pytest.mark.parametrize(
    ("data", "newer"),
    [
        (b'[["1-0",1,"?",0,0]]', True),
        (b'[["1-0",1,"S",0,0,"","",null,"of a newer version"]]', None),
        (b'[["1-0",1,"S",0]]', False),
        (b'[["one",1,"S",0,0]]', False),
        (b'[["1-0",1.5,"S",0,0]]', False),
        (b'[["1-0",1,"F",0,0,5,"",null]]', False),
        (b'[["1-0",1,"F",0,0,"","",-1]]', False),
        (b'{"a":1}', False),
    ],
)
def test_outcomes_of_a_newer_version_differ_from_invalid_ones(data: bytes, newer: bool | None) -> None:
    found, problems = read(data)
    assert [problem.newer for problem in problems] == ([] if newer is None else [newer])
    assert len(found) == (newer is None)


def test_an_unreadable_outcome_does_not_affect_the_others() -> None:
    data = b'[["1-0",1,"S",0,0],5,["2-0",2,"S",0,0],["3-0",3,"?",0,0]]'
    found, problems = read(data)
    assert [outcome.message_id for outcome in found] == ["1-0", "2-0"]
    assert len(problems) == 2
