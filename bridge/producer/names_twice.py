"""Finds an object that has a name twice in a JSON text. Parsers keep the last value, and drop the others silently."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import orjson


def name_twice(text: str, found: Any) -> str | None:
    """A name that an object in ``text`` has twice, or None. ``found``: the parsed text.

    Parsers silently keep the last value. The search is far slower than parsing. So it is done only if ``text`` has more
    quotes than ``found`` would have as JSON: then a part of ``text`` was dropped.
    """
    if "\\u0022" not in text:  # an escaped quote would change the count
        try:
            if text.count('"') == orjson.dumps(found).count(b'"'):
                return None
        except (TypeError, orjson.JSONEncodeError):
            pass  # an integer of more than 64 bits, or half of a surrogate pair

    doubled: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        if doubled:
            return
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                doubled.append(name)
                return
            names.add(name)

    # Text that is nested too deeply for this parser is refused later, with its payload.
    with suppress(RecursionError):
        json.loads(text, object_pairs_hook=look, parse_int=str, parse_float=str)
    return doubled[0] if doubled else None
