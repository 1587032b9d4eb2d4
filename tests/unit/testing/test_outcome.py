"""Waiting for a lane in a test ends when nothing is undone, and not between a task's push and its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from bridge.settings.lane import LaneSettings
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.outcome import wait_until_done

FIRST, SECOND = LaneSettings(stream="first"), LaneSettings(stream="second")
#: More than the looks at two lanes may be.
CALLS = 12


class Interrupted(Redis):
    """A client that does something between two calls to the server."""

    left = 0
    act: Callable[[], None]

    def execute_command(self, *args: Any, **options: Any) -> Any:
        reply = super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        self.called()
        return reply

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        found = super().pipeline(transaction, shard_hint)
        execute = found.execute

        def executed(raise_on_error: bool = True) -> Any:
            replies = execute(raise_on_error)
            self.called()
            return replies

        found.execute = executed  # type: ignore[method-assign]
        return found

    def called(self) -> None:
        self.left -= 1
        if not self.left:
            self.act()


@pytest.fixture
def redis(server: EmbeddedServer) -> Iterator[Interrupted]:
    with Interrupted.from_url(server.url) as client:
        yield client


def in_flight(redis: Redis, lane: LaneSettings) -> None:
    """A lane with one message, which is in flight."""
    redis.xgroup_create(lane.stream, lane.group, "0", mkstream=True)
    redis.xadd(lane.stream, {"ticket_id": "T"}, "1-0")
    redis.xreadgroup(lane.group, "c", {lane.stream: ">"})


def idle(redis: Redis, lane: LaneSettings) -> None:
    in_flight(redis, lane)
    redis.xack(lane.stream, lane.group, "1-0")


@pytest.mark.parametrize("calls", range(1, CALLS))
@pytest.mark.parametrize("other", [FIRST, SECOND])
def test_a_message_that_a_task_pushes_just_before_its_end_is_not_missed(
    redis: Interrupted, server: EmbeddedServer, other: LaneSettings, calls: int
) -> None:
    in_flight(redis, other)
    if other is SECOND:
        idle(redis, FIRST)

    with server.client() as task:

        def push_and_end() -> None:
            task.xadd(FIRST.stream, {"ticket_id": "T"}, "2-0")
            task.xack(other.stream, other.group, "1-0")

        redis.act, redis.left = push_and_end, calls
        with pytest.raises(TimeoutError, match=r"not read|1 pending message$"):
            wait_until_done(redis, [FIRST, SECOND], 0)


def test_a_stream_that_does_not_exist_has_nothing_undone(redis: Interrupted) -> None:
    idle(redis, FIRST)
    wait_until_done(redis, [FIRST, SECOND], 0)
