"""Values of a lane's hashes that may be of another form, as somebody writes them by hand or damages them."""

from __future__ import annotations

import orjson
from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=5), some, max_size=3),
    max_leaves=4,
)


def like(text: bytes) -> st.SearchStrategy[bytes]:
    """Values in the place of ``text``: of any form, or it with one field changed, or taken away."""
    fields = orjson.loads(text)
    name = st.sampled_from(sorted(fields))
    changed = st.builds(lambda name, value: orjson.dumps({**fields, name: value}), name, JSON)
    lacking = name.map(lambda name: orjson.dumps({key: fields[key] for key in fields if key != name}))
    return st.binary(max_size=9) | JSON.map(orjson.dumps) | changed | lacking | st.just(b"1e999")
