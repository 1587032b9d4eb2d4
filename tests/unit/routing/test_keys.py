"""Keys: no two are equal, with any names of streams, groups and consumers, and all share one hash tag."""

from __future__ import annotations

from functools import cached_property
from inspect import getdoc, getmembers

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.routing.keys import LaneKeys

FIXED = sorted(
    name for name, member in getmembers(LaneKeys) if isinstance(member, cached_property) and name != "prefix"
)
NAMED = ("lease", "held", "queue", "given", "acknowledged", "state", "reply")
#: Names that try to look like another key.
HOSTILE = ["g", "a:b", "leader", "g:leader", "lease:x", "}", "{x}", "%3A", ":", "é", "a/b", "queue:w1@a", "\n", "*"]
NAMES = st.one_of(st.sampled_from(HOSTILE), st.text(alphabet="ab:{}%/@.", min_size=1, max_size=8))
GROUPS = NAMES
#: The application chooses the stream's name. The settings refuse braces in it, since they would make another hash tag.
STREAMS = st.one_of(
    st.sampled_from(["s", "ticket_stream", "a:b", "s:g", "shop:tickets", "s g", "s\n", "%7Bs%7D", "é", "*", "s" * 512]),
    st.text(min_size=1, max_size=8).filter(lambda name: not set("{}") & set(name)),
)


def every_key(keys: LaneKeys, consumers: list[str]) -> dict[tuple[str, ...], str]:
    """Every key of a lane, by kind."""
    found: dict[tuple[str, ...], str] = {(kind,): getattr(keys, kind) for kind in FIXED}
    for kind in NAMED:
        found |= {(kind, name): getattr(keys, kind)(name) for name in consumers}
    return found


def owner(kind: str) -> str:
    """Who owns the keys of a kind."""
    if kind in ("lease", "held", "queue", "given", "acknowledged", "state", "state_home"):
        return "consumer"
    return "operator" if kind == "dead" else "leader"


def hash_tag(key: str) -> str:
    """The part of a key that a cluster hashes, by Redis's rule."""
    start = key.find("{")
    end = key.find("}", start + 1)
    return key[start + 1 : end] if start >= 0 and end > start + 1 else key


@given(
    lanes=st.sets(st.tuples(STREAMS, GROUPS), min_size=1, max_size=4),
    consumers=st.lists(NAMES, unique=True, max_size=4),
)
@example(lanes={("s", "g"), ("s", "g:lease")}, consumers=["x", "leader"])
@example(lanes={("s", "g"), ("s", "g%3Alease")}, consumers=["x"])
@example(lanes={("s", "a:b"), ("s", "a%3Ab")}, consumers=["c"])
@example(lanes={("s", "a/b"), ("s", "a%2Fb")}, consumers=["c"])
def test_no_two_lanes_or_kinds_share_a_key(lanes: set[tuple[str, str]], consumers: list[str]) -> None:
    # Given lanes and consumers with names that look like each other's keys
    found: dict[str, tuple[object, ...]] = {}
    for stream, group in lanes:
        for what, key in every_key(LaneKeys(stream, group), consumers).items():
            # Then each key belongs to one lane and has one meaning
            assert key not in found, f"{key!r} is {found[key]} and {(stream, group, *what)}"
            found[key] = (stream, group, *what)
    assert not {stream for stream, _ in lanes} & found.keys()


@given(stream=STREAMS, group=GROUPS, consumers=st.lists(NAMES, max_size=4))
def test_all_keys_of_a_lane_are_in_the_slot_of_its_stream(stream: str, group: str, consumers: list[str]) -> None:
    assert {hash_tag(key) for key in every_key(LaneKeys(stream, group), consumers).values()} == {hash_tag(stream)}


@given(group=GROUPS, consumers=st.lists(NAMES, max_size=4))
def test_every_key_has_an_owner_in_its_own_lane_and_none_elsewhere(group: str, consumers: list[str]) -> None:
    keys = LaneKeys("s", group)
    others = [LaneKeys("s", f"{group}x"), LaneKeys("t", group)]
    for what, key in every_key(keys, consumers).items():
        assert keys.owner_of(key) == owner(what[0])
        assert [other.owner_of(key) for other in others] == [None, None]
    assert keys.owner_of("s") == "producers"


@pytest.mark.parametrize(
    "key", ["", "x", "{s}", "{s}:g", "{s}:g:", "{s}:g:new", "{s}:g:lease", "{s}:g:leaderx", "{s}:h:leader"]
)
def test_an_undocumented_key_has_no_owner(key: str) -> None:
    assert LaneKeys("s", "g").owner_of(key) is None


@pytest.mark.parametrize("kind", [*FIXED, *NAMED])
def test_each_key_says_its_type_and_its_lifetime(kind: str) -> None:
    described = getdoc(getattr(LaneKeys, kind)) or ""
    assert described.startswith(("String", "Integer", "Hash", "Sorted set", "Stream", "List")), described
    assert len(described) > 40
