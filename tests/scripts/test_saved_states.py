"""What a message writes of its ticket's state gives the state that its task saw, also when the stored one is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bridge.app.state import FIELDS_OF_CALL, StateDict
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.effects import Success, apply
from bridge.routing.return_codes import ReturnCode
from tests.scripts.world import World

pytestmark = pytest.mark.scripts

KEY = "state"
STORED: dict[Any, Any] = {b"n": b"1", b"order": b'["a","b"]', b"first": b'"x"'}
#: With more fields than one command writes.
LARGE: dict[Any, Any] = {**STORED, **{b"f%d" % n: b"%d" % n for n in range(2 * FIELDS_OF_CALL + 1)}}


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


def success(world: World, state: StateDict, fence: int, ttl_s: float) -> Success:
    effects = state.changes(KEY, most_bytes=1 << 20, default_ttl_s=ttl_s).effects
    outcome = Outcome(world.busy[fence - 100], fence, Kind.DONE, 1.5).encode().decode()
    return Success("busy", fence, outcome, effects)


def save(world: World, *successes: Success) -> None:
    codes = apply(world.client, world.keys, "life-of-w1@a", successes)
    assert codes == [(ReturnCode.OK, "")] * len(successes)


@pytest.mark.parametrize("own_ttl_s", [None, 60.0])
@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("body", [nothing, one_more, other_fields, cleared])
@pytest.mark.parametrize("fields", [STORED, LARGE], ids=["small", "large"])
def test_a_state_whose_time_ended_while_the_body_ran_is_saved_whole(
    fields: dict[Any, Any],
    body: Callable[[StateDict], None],
    is_gone: bool,
    own_ttl_s: float | None,
    world: World,
) -> None:
    # Given a state that is deleted after a time, of the app or of the message
    world.client.hset(KEY, mapping=fields)
    state = StateDict(world.client.hgetall(KEY))
    if own_ttl_s is not None:
        state.ttl(own_ttl_s)
    # When the body ends, and the time was over before or not
    body(state)
    if is_gone:
        world.client.delete(KEY)
    save(world, success(world, state, 100, 3600.0))
    # Then what is stored is what the body saw at its end
    stored: Any = world.client.hgetall(KEY)
    assert dict(StateDict(stored)) == dict(state)
    if stored:
        assert 0 < world.client.pttl(KEY) <= 3_600_000


def test_the_next_message_of_a_write_changes_the_state_that_the_one_before_it_saved(world: World) -> None:
    # Given a state that is gone when two messages of its ticket are saved in one call
    first = StateDict(STORED)
    one_more(first)
    second = StateDict(first.changes(KEY, most_bytes=1000).stored)
    other_fields(second)
    # When both are; then the second one finds the key, and its own changes are all that it writes
    save(world, success(world, first, 100, 60.0), success(world, second, 101, 60.0))
    assert dict(StateDict(world.client.hgetall(KEY))) == {"n": 2, "order": ["a", "b", "c"], "new": None}


def test_a_field_that_another_program_wrote_or_deleted_meanwhile_stays_so(world: World) -> None:
    world.client.hset(KEY, mapping=STORED)
    state = StateDict(world.client.hgetall(KEY))
    state["n"] = 2
    world.client.hset(KEY, "first", '"theirs"')
    world.client.hdel(KEY, "order")
    save(world, success(world, state, 100, 60.0))
    assert world.client.hgetall(KEY) == {b"n": b"2", b"first": b'"theirs"'}
