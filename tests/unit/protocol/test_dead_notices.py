"""How many letters a notice describes, by their bytes."""

from __future__ import annotations

from dataclasses import replace

import orjson
from hypothesis import given
from hypothesis import strategies as st

from bridge.protocol.dead_letters import Letter, read_letter
from bridge.protocol.dead_notices import described

LETTER = read_letter(b"7-0", [b"message_id", b"5-0", b"ticket_id", b"T", b"reason", b"it failed"])
letters = st.lists(
    st.builds(
        lambda error, payload, fields: replace(
            LETTER, error="e" * error, payload=b"p" * payload, fields=((b"f", b"v" * fields),) * bool(fields)
        ),
        *(st.integers(0, 600), st.integers(0, 2000), st.integers(0, 200)),
    ),
    max_size=20,
)


@given(letters, st.integers(0, 20_000), st.booleans())
def test_a_notice_describes_the_first_letters_that_fit_and_then_their_payloads(
    given_letters: list[Letter], room: int, with_payload: bool
) -> None:
    found = described(given_letters, "@p1", with_payload=with_payload, room=room)
    assert [one["error"] for one in found] == [one.error[:500] for one in given_letters[: len(found)]]
    assert len(orjson.dumps(found)) <= room + len("[]")
    # Payloads only when they are asked for, of the first letters, and only when all letters had room
    payloads = ["payload" in one for one in found]
    assert payloads == sorted(payloads, reverse=True)
    assert with_payload or not any(payloads)
    assert len(found) == len(given_letters) or not any(payloads)
    # Nothing that fits is left out
    large = 2 * sum(len(orjson.dumps(one.document())) for one in given_letters) + 100
    if room > large:
        assert len(found) == len(given_letters)
        assert all(payloads) or not with_payload
