"""The keys that writes from Spark leave beside a stream are in its slot, and none is a key of a lane."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.routing.keys import LaneKeys, push_guard, push_prefix, push_tickets, push_waiting
from tests.unit.routing.test_keys import GROUPS, STREAMS, every_key, hash_tag


@given(stream=STREAMS, runs=st.sets(st.text(max_size=12), min_size=1, max_size=5))
def test_they_are_in_the_slot_of_their_stream_and_differ(stream: str, runs: set[str]) -> None:
    prefix = push_prefix(stream)
    keys = [push_guard(prefix, run) for run in runs]
    keys += [push_tickets(prefix, 0), push_tickets(prefix, 1), push_waiting(stream)]
    assert {hash_tag(key) for key in keys} == {hash_tag(stream)}
    assert len({*keys, stream}) == len(keys) + 1


def test_a_stream_with_a_hash_tag_of_its_own_keeps_it() -> None:
    assert hash_tag(push_waiting("{shop}:events")) == "shop"


@given(stream=STREAMS, group=GROUPS, name=st.text(max_size=8))
def test_none_is_a_key_of_a_lane(stream: str, group: str, name: str) -> None:
    lane = LaneKeys(stream, group)
    prefix = push_prefix(stream)
    ours = {push_guard(prefix, name), push_tickets(prefix, 1), push_waiting(stream)}
    assert not ours & set(every_key(lane, [name]).values())
    assert {lane.owner_of(key) for key in ours} == {None}
