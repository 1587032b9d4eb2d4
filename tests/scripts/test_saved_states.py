"""What a message writes of its ticket's state gives the state that its task saw, also when the stored one is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bridge.app.state import StateDict
from tests.scripts.world import World

pytestmark = pytest.mark.scripts

STORED: dict[Any, Any] = {b"n": b"1", b"order": b'["a","b"]', b"first": b'"x"'}


def nothing(_: StateDict) -> None:
    """The body reads only."""


def one_more(state: StateDict) -> None:
    state["n"] += 1


def other_fields(state: StateDict) -> None:
    del state["first"]
    state["order"].append("c")
    state["new"] = None


def cleared(state: StateDict) -> None:
    state.clear()


@pytest.mark.parametrize("own_ttl_s", [None, 60.0])
@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("body", [nothing, one_more, other_fields, cleared])
def test_a_state_whose_time_ended_while_the_body_ran_is_saved_whole(
    body: Callable[[StateDict], None], is_gone: bool, own_ttl_s: float | None, fresh: World
) -> None:
    # Given a state that is deleted after a time, of the app or of the message
    fresh.client.hset("state", mapping=STORED)
    state = StateDict(fresh.client.hgetall("state"))
    if own_ttl_s is not None:
        state.ttl(own_ttl_s)
    # When the body ends, and the time was over before or not
    body(state)
    if is_gone:
        fresh.client.delete("state")
    for effect in state.changes("state", most_bytes=1000, default_ttl_s=3600.0 if own_ttl_s is None else None).effects:
        fresh.client.execute_command(*effect.arguments)
    # Then what is stored is what the body saw at its end
    stored: Any = fresh.client.hgetall("state")
    assert dict(StateDict(stored)) == dict(state)
    if stored:
        assert 0 < fresh.client.pttl("state") <= 3_600_000


def test_a_field_that_another_program_wrote_meanwhile_stays(fresh: World) -> None:
    fresh.client.hset("state", mapping=STORED)
    state = StateDict(fresh.client.hgetall("state"))
    state["n"] = 2
    fresh.client.hset("state", "first", '"theirs"')
    for effect in state.changes("state", most_bytes=1000, default_ttl_s=60.0).effects:
        fresh.client.execute_command(*effect.arguments)
    assert fresh.client.hgetall("state") == {**STORED, b"n": b"2", b"first": b'"theirs"'}
