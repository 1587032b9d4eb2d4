"""A name that an object has twice is found, wherever it is and however it is written."""

from __future__ import annotations

import json
import time
from typing import Any

import orjson
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.producer.duplicate_keys import duplicate_key


class Pairs(list[tuple[str, Any]]):
    """An object as its members, which may have one name."""


TEXTS = st.sampled_from(["a", "b", "", '"', "\\", '\\"', "ä", "\n"]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=3
)
VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(TEXTS, inner), max_size=4).map(Pairs),
    max_leaves=12,
)


def written(value: Any, *, escaped: bool) -> str:
    if isinstance(value, Pairs):
        members = (f"{written(n, escaped=escaped)}: {written(v, escaped=escaped)}" for n, v in value)
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(one, escaped=escaped) for one in value) + "]"
    if escaped and isinstance(value, str):
        return '"' + "".join("\\u0022" if char == '"' else json.dumps(char)[1:-1] for char in value) + '"'
    return json.dumps(value, ensure_ascii=False)


def twice(value: Any) -> set[str]:
    if isinstance(value, Pairs):
        names = [name for name, _ in value]
        return {n for n in names if names.count(n) > 1}.union(*(twice(one) for _, one in value))
    return set().union(*map(twice, value)) if isinstance(value, list) else set()


@given(VALUES, st.booleans())
@settings(max_examples=60, deadline=None)
@example(Pairs([('"', 1), ('"', 2)]), True)
def test_a_name_is_named_if_and_only_if_an_object_has_it_twice(value: Any, escaped: bool) -> None:
    text = written(value, escaped=escaped)
    expected = twice(value)
    found = duplicate_key(text, orjson.loads(text))
    assert (found in expected) if expected else (found is None)


def test_the_time_grows_with_the_text_and_not_with_its_square() -> None:
    def seconds(members: int) -> float:
        text = "{" + ", ".join(f'"{n}": 0' for n in range(members)) + ', "0": 1}'
        found = orjson.loads(text)
        began = time.process_time()
        assert duplicate_key(text, found) == "0"
        return time.process_time() - began

    seconds(1000)
    # Four times as long a text: 4 or 16 times the time.
    assert min(seconds(20_000) for _ in range(3)) < 9 * min(seconds(5_000) for _ in range(3))
