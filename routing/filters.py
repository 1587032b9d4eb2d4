"""Filters of a subscription: which messages of the stream it wants.

A filter names fields of a message, or members of its payload, and the values that it wants of each::

    {"kind": ["created", "changed"], "region": "eu"}

A message passes when every name has one of its values. A field of the message comes before a member of the payload.
A field is text, so it equals the text of a value: ``{"size": 3}`` accepts the field ``size`` with ``3``. A member of
the payload is JSON, and must equal the value itself, or its text. A message without the name does not pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

#: The types of a wanted value.
_SCALARS = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Filter:
    """One filter. ``wanted``: (name, the values' JSON texts and plain texts) for each name."""

    wanted: tuple[tuple[bytes, str, frozenset[bytes]], ...]

    @classmethod
    def read(cls, given: object) -> Filter:
        """The filter that an app wrote as a dict. Raises ValueError, one line."""
        if isinstance(given, Filter):
            return given
        if not isinstance(given, Mapping) or not given:
            raise ValueError("filter must be a dict of at least one name with the values that it wants")
        return cls(tuple(_wanted(name, values) for name, values in given.items()))

    def in_one_order(self) -> dict[str, Any]:
        """The filter as JSON. Equal filters have one JSON: the order of a set differs between processes."""
        return {
            "wanted": sorted([raw.decode(), name, sorted(map(bytes.decode, texts))] for raw, name, texts in self.wanted)
        }

    def passes(self, fields: Sequence[bytes], payload: Any) -> bool:
        """Whether the subscription wants a message. ``fields``: its field names and values, alternating; ``payload``:
        its parsed payload, None when there is no field ``payload``.
        """
        for raw, name, texts in self.wanted:
            for i in range(0, len(fields), 2):
                if fields[i] == raw:
                    found = fields[i + 1]
                    break
            else:
                if not isinstance(payload, dict) or name not in payload:
                    return False
                value = payload[name]
                found = _text(value)
            if found not in texts:
                return False
        return True


def _wanted(name: object, values: object) -> tuple[bytes, str, frozenset[bytes]]:
    if not isinstance(name, str) or not name:
        raise ValueError(f"filter: {name!r} is not the name of a field")
    if name == "payload":
        raise ValueError("filter: name a member of the payload, not the field payload itself")
    found: list[Any] = list(values) if isinstance(values, list | tuple | set | frozenset) else [values]
    if not found:
        raise ValueError(f"filter: {name!r} has no values, so no message would pass")
    for value in found:
        if not isinstance(value, _SCALARS) or value != value:
            raise ValueError(
                f"filter: {value!r} of {name!r} cannot be compared; use text, numbers, true, false or null"
            )
    try:
        return name.encode(), name, frozenset(map(_text, found))
    except (UnicodeEncodeError, orjson.JSONEncodeError):
        raise ValueError(f"filter: a value of {name!r} cannot be written as JSON") from None


def _text(value: Any) -> bytes:
    """A JSON value as text. 3 and 3.0 are the same number. Whole numbers beyond 64 bits are compared as floats."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int | float) and not -(2**63) <= value < 2**64:
        # The parser of payloads makes floats of them, and orjson writes no larger whole number.
        try:
            return repr(float(value)).encode()
        except OverflowError:
            return b"inf" if value > 0 else b"-inf"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return orjson.dumps(value)
