"""Changes of delayed messages when Redis fails: each message gets its result."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as ConnectionLost

from bridge.operate.delayed import Change, change
from bridge.protocol.orders import DelayedAct
from bridge.routing.keys import LaneKeys


@pytest.mark.parametrize("error", [ConnectionLost("Connection closed by server."), KeyboardInterrupt()], ids=repr)
def test_each_message_has_its_reason_when_nobody_says_what_the_leader_has_read(error: BaseException) -> None:
    def execute_command(*_: Any) -> Any:
        raise error

    redis: Any = SimpleNamespace(execute_command=execute_command)
    lane: Any = SimpleNamespace(settings=SimpleNamespace(keys=LaneKeys("s", "g")))
    messages: Any = [SimpleNamespace(id="1-0"), SimpleNamespace(id="2-0")]
    results: list[Change] = []

    with pytest.raises(type(error)):
        results.extend(change(redis, lane, DelayedAct.CANCEL, messages))

    assert results == [Change(id_, str(error) or "interrupted") for id_ in ("1-0", "2-0")]
