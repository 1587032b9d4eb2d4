"""How much of a message a dead letter holds. No I/O.

Its entry stays in the stream as long as the letter is there, and a replay takes it from there. So the letter is for
people to look at: of what is large it holds the beginning, and says how large the whole is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: Bytes of a payload, or of all fields of an entry, that a letter holds.
LETTER_BYTES = 64 * 1024
#: Fields and values of an entry that a letter holds: what Lua can put into one call is limited.
LETTER_WORDS = 5000


def payload_words(payload: bytes) -> list[Any]:
    """The words of a letter for the payload of a message that was given up."""
    if len(payload) <= LETTER_BYTES:
        return ["payload", payload]
    return ["payload", payload[:LETTER_BYTES], "payload_bytes", len(payload)]


def as_it_came(fields: Sequence[bytes]) -> list[Any]:
    """The words of a letter for the fields of an entry that could never be processed."""
    words: list[Any] = []
    left = LETTER_BYTES
    cut = 0
    for i in range(0, len(fields), 2):
        name, value = fields[i], fields[i + 1]
        if left <= 0 or len(words) >= LETTER_WORDS:
            cut += len(name) + len(value)
            continue
        size = len(name) + len(value)
        if size > left:
            cut += max(0, len(name) - left) + max(0, len(value) - left)
            name, value = name[:left], value[:left]
        left -= size
        words += [b"field:" + name, value]
    return [*words, "cut_bytes", cut] if cut else words
