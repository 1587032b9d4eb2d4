"""Outcomes: written and read back as they were, whatever errors say."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.outcomes import ERROR_CHARS, TRACEBACK_CHARS, Kind, Outcome, decode

#: Any text an exception may have, lone surrogates included.
ANY_TEXT = st.text(alphabet=st.characters(), max_size=40) | st.sampled_from(["\ud800", "a\udfffb", "\0", '"],['])
FENCES = st.integers(1, 2**53 - 1)
TIMES = st.integers(0, 10**9).map(lambda us: us / 1000)


def through(*outcomes: Outcome) -> list[Outcome]:
    return decode(b"[" + b",".join(outcome.encode() for outcome in outcomes) + b"]")


def printable(text: str) -> str:
    return text.encode(errors="replace").decode()


@given(fence=FENCES, ms=TIMES, kind=st.sampled_from([Kind.DONE, Kind.RETURNED]))
def test_what_needs_no_words_survives_the_way(fence: int, ms: float, kind: Kind) -> None:
    outcome = Outcome("1700000000000-12", fence, kind, ms)
    assert through(outcome) == [outcome]


@given(
    fence=FENCES,
    kind=st.sampled_from([Kind.FAILED, Kind.DEAD]),
    error=ANY_TEXT,
    traceback=ANY_TEXT,
    delay_ms=st.none() | st.integers(0, 10**12),
)
@example(fence=2**53 - 1, kind=Kind.FAILED, error="\ud800", traceback="\udfff", delay_ms=0)
def test_a_failure_keeps_its_words_but_for_what_is_no_text(
    fence: int, kind: Kind, error: str, traceback: str, delay_ms: int | None
) -> None:
    outcome = Outcome("1-0", fence, kind, 1.5, 1_700_000_000_000_000, error, traceback, delay_ms)
    [back] = through(outcome)
    assert back == Outcome(
        "1-0", fence, kind, 1.5, 1_700_000_000_000_000, printable(error), printable(traceback), delay_ms
    )
    # And what was read can be written again
    assert through(back) == [back]


def test_a_failures_words_are_bounded_and_the_end_of_the_traceback_is_kept() -> None:
    [back] = through(Outcome("1-0", 1, Kind.FAILED, 0.0, 0, "é" * 10_000, "x" * 100_000 + "the cause"))
    assert len(back.error) == ERROR_CHARS
    assert len(back.traceback) == TRACEBACK_CHARS
    assert back.traceback.endswith("the cause")


def test_many_outcomes_keep_their_order_in_one_entry() -> None:
    outcomes = [Outcome(f"{i}-0", i + 1, kind, float(i)) for i, kind in enumerate([*Kind] * 50)]
    assert through(*outcomes) == outcomes


def test_the_kinds_have_words_of_their_own() -> None:
    assert len({kind.value for kind in Kind}) == len(Kind)


@pytest.mark.parametrize("ms", [0.0, 0.0004, 12.3456, 86_400_000.0])
def test_a_service_time_is_kept_to_the_microsecond(ms: float) -> None:
    [back] = through(Outcome("1-0", 1, Kind.DONE, ms))
    assert back.service_ms == pytest.approx(ms, abs=0.0006)


@pytest.mark.parametrize("data", [b"", b'[["1-0",1]]', b'[["1-0",1,"?",0]]', b"[1]"])
def test_what_is_no_outcome_is_an_error(data: bytes) -> None:
    with pytest.raises((ValueError, TypeError)):
        decode(data)
