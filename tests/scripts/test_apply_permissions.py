"""Effects that the worker's Redis user may not apply: none of their message is applied, and other messages are not
affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis.exceptions import ResponseError

from bridge.app.effect_arguments import COMMANDS
from bridge.app.effects import Effects
from bridge.routing.effects import apply
from bridge.routing.return_codes import ReturnCode
from bridge.routing.server_errors import is_forbidden
from bridge.stack.embedded import EmbeddedServer
from tests.scripts.test_apply import INCARNATION, ON_WHAT_IS_THERE, WRITES, recorded, success
from tests.scripts.world import World, changes

pytestmark = pytest.mark.scripts

USER = "restricted"
DENIED = "the Redis user of this worker may not do that"


@contextmanager
def restricted(server: EmbeddedServer, *rules: str) -> Iterator[Any]:
    """A client of a user who may do everything but what ``rules`` take away."""
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", USER, "reset", "on", ">pw", "allkeys", "allchannels", "+@all", *rules)
        try:
            with server.client(username=USER, password="pw") as made:
                yield made
        finally:
            admin.acl_deluser(USER)


def every_command() -> dict[str, Callable[[Effects], object]]:
    """A call of each command that may be an effect."""
    calls = {name: record for name, (_, record, _) in {**WRITES, **ON_WHAT_IS_THERE}.items()}
    calls["expire"] = lambda e: e.expire("user:k", 100)
    calls["pexpire"] = lambda e: e.pexpire("user:k", 100_000)
    calls["persist"] = lambda e: e.persist("user:k")
    calls["xadd"] = lambda e: e.xadd("user:k", {"a": "1"}, maxlen=10, approximate=False)
    calls["geoadd"] = lambda e: e.geoadd("user:k", (13.4, 52.5, "Berlin"))
    calls["publish"] = lambda e: e.publish("user:k", "hello")
    of: dict[str, Callable[[Effects], object]] = {}
    for record in calls.values():
        of.setdefault(str(recorded(record)[0].arguments[0]), record)
    return of


def test_each_command_that_may_be_an_effect_is_called_here() -> None:
    # DECRBY is written as an increment.
    assert set(every_command()) == set(COMMANDS) - {"DECRBY"}


def test_a_command_that_is_not_permitted_lets_nothing_be_applied(world: World, server: EmbeddedServer) -> None:
    for command, record in every_command().items():

        def effects(e: Effects, command: str = command, record: Callable[[Effects], object] = record) -> None:
            # One that is permitted goes first; one of each is left where the command is taken away.
            e.rpush("user:first", "a") if command != "RPUSH" else e.lpush("user:first", "a")
            record(e)

        world.client.delete("user:k", "user:l")
        world.client.hset(world.keys.applied, "busy", 90)
        asked = success(world, recorded(effects))
        before = world.snapshot()
        with restricted(server, f"-{command.lower()}") as connected:
            if command == "XADD":
                # Without it no outcome can be written: it is not about this effect.
                with pytest.raises(ResponseError) as refused:
                    apply(connected, world.keys, INCARNATION, [asked])
                assert is_forbidden(refused.value)
            else:
                [(code, problem)] = apply(connected, world.keys, INCARNATION, [asked])
                assert code is ReturnCode.ERR, command
                assert problem.startswith(f"{command}: ")
        assert changes(before, world.snapshot()) == set(), command
        # And the same call is applied where it is permitted.
        with restricted(server) as connected:
            assert apply(connected, world.keys, INCARNATION, [asked]) == [(ReturnCode.OK, "")], command


KEYS: dict[str, Callable[[Effects], object]] = {
    "its key": lambda e: e.hset("private:k", "a", "1"),
    "the second key of MSET": lambda e: e.mset({"user:k": "v", "private:k": "w"}),
    "the second key of DEL": lambda e: e.delete("user:k", "private:k"),
    "the second key of UNLINK": lambda e: e.unlink("user:k", "private:k"),
    "a key that is read first": lambda e: e.incrby("private:k", 1),
    "its channel": lambda e: e.publish("private:k", "hello"),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_forbidden_key_prevents_all_effects_of_its_message_and_no_others(
    name: str, world: World, server: EmbeddedServer
) -> None:
    def effects(e: Effects) -> None:
        e.rpush("user:first", "a")
        KEYS[name](e)

    asked = [
        success(world, recorded(effects)),
        success(world, recorded(lambda e: e.rpush("user:other", "b")), fence=200, ticket="other"),
    ]
    before = world.snapshot()
    lane = f"~{world.keys.prefix}:*"
    with restricted(server, "resetkeys", "resetchannels", lane, "~user:*", "&user:*") as connected:
        (code, problem), (other, _) = apply(connected, world.keys, INCARNATION, asked)
    assert code is ReturnCode.ERR
    assert problem
    assert other is ReturnCode.OK
    assert changes(before, world.snapshot()) == {"user:other", world.keys.applied, world.keys.outcomes}
