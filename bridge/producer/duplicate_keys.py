"""Finds a duplicate key in a JSON text. Parsers keep the last value, and drop the others silently."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import orjson


def duplicate_key(text: str, parsed: Any) -> str | None:
    """A key that an object in ``text`` has twice, or None. ``parsed``: ``text`` as a parser reads it.

    The search is far slower than parsing. So it is done only if ``text`` has more quotes than ``parsed`` would have as
    JSON: then a part of ``text`` was dropped.
    """
    if "\\u0022" not in text:  # an escaped quote would change the count
        try:
            if text.count('"') == orjson.dumps(parsed).count(b'"'):
                return None
        except (TypeError, orjson.JSONEncodeError):
            pass  # an integer of more than 64 bits, or half of a surrogate pair

    duplicates: list[str] = []

    def search(pairs: list[tuple[str, Any]]) -> None:
        if duplicates:
            return
        keys: set[str] = set()
        for key, _ in pairs:
            if key in keys:
                duplicates.append(key)
                return
            keys.add(key)

    # Text that is nested too deeply for this parser is refused later, with its payload.
    with suppress(RecursionError):
        json.loads(text, object_pairs_hook=search, parse_int=str, parse_float=str)
    return duplicates[0] if duplicates else None
