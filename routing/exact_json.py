"""Reads JSON with whole numbers of any size as they are, and refuses what JSON does not have.

For what the fast parser would round. Standard library only: Spark's executors read states with it.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

#: The deepest nesting of a payload, and of a value of a state.
MAX_DEPTH = 200
TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"


def exact(text: bytes) -> Any:
    """The value of the JSON ``text``. Raises ValueError, in one line."""
    try:
        found = json.loads(text.decode(), parse_constant=_refuse, parse_float=_finite)
        if b"\\u" in text:
            # The parser of the standard library takes half of a surrogate pair.
            json.dumps(found, ensure_ascii=False).encode()
        is_deep = text.count(b"[") + text.count(b"{") > MAX_DEPTH and is_nested(found)
    except RecursionError:
        is_deep = True
    except UnicodeEncodeError:
        raise ValueError("it has half of a surrogate pair") from None
    if is_deep:
        raise ValueError(TOO_DEEP)
    return found


def is_nested(parsed: Any) -> bool:
    """Whether a parsed value is nested more than `MAX_DEPTH` levels deep."""
    level = [parsed]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"it has {name}")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("it has a number beyond the range of a double")
    return number
