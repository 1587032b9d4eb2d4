"""Who leads the older versions of a stream, where another program has written into a leader key."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.master import older_led as module
from bridge.master.older_led import OlderLed

FOREIGN = st.sampled_from([b"", b"x", b"somebody 7", b"\xff"])


class Redis:
    """A server with a few leader keys."""

    def __init__(self, keys: dict[str, bytes]) -> None:
        self._keys = keys
        self._found: list[list[bytes | None]] = []

    def pipeline(self, **_: Any) -> Any:
        self._found = []
        return nullcontext(self)

    def mget(self, keys: list[str]) -> None:
        self._found.append([self._keys.get(key) for key in keys])

    def execute(self) -> list[list[bytes | None]]:
        return self._found


class Lane:
    """A lane of this master, in which it stands by."""

    def __init__(self, name: str, *older: Lane) -> None:
        self.keys = SimpleNamespace(leader=f"{name}:leader", stream=name)
        self.older = older
        self.leading = False
        self.title = name


@given(first=FOREIGN, newest=st.none() | FOREIGN)
def test_a_foreign_value_is_skipped_and_the_other_lanes_are_looked_at(first: bytes, newest: bytes | None) -> None:
    now = [0.0]
    lines: list[str] = []
    lanes: Any = [Lane("v3", Lane("v1"), Lane("v2")), Lane("w2", Lane("w1"))]
    found = {"v1:leader": first, "v2:leader": b"7 there:1:abc", "w1:leader": b"8 there:1:abc"}
    if newest is not None:
        found["v3:leader"] = newest
    redis: Any = Redis(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
        patch.setattr(module.logger, "warning", lambda text, *args: lines.append(text % args))
        led = OlderLed(redis, lanes)
        for _ in range(5):
            now[0] += module.OLDER_LEADERS_S
            led.look()
    assert any("v2" in line for line in lines) is (newest is None)
    assert any("w1" in line for line in lines)
