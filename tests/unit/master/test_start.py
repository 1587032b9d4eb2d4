"""A master that cannot start says why, in one line."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from redis.exceptions import BusyLoadingError
from redis.exceptions import ConnectionError as RedisConnectionError

import bridge
import bridge.master.lineup
import bridge.master.process
from bridge.routing.errors import ServerUnavailable


@pytest.mark.parametrize(
    ("error", "said"),
    [
        # While it loads, a server answers INFO: it looks well at first.
        (BusyLoadingError("Redis is loading the dataset in memory"), "loading the dataset in memory; try again when"),
        (RedisConnectionError("Connection refused"), "Connection refused; is it running?"),
    ],
)
def test_a_server_that_goes_away_while_a_master_starts_is_named(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    app = Celery("shop", broker="redis://:secret@127.0.0.1:1/0", set_as_current=False)
    bridge.install(app)

    class Away:
        def __getattr__(self, command: str) -> Any:
            raise error

    monkeypatch.setattr(bridge.master.lineup, "check_server", lambda *_: (7, 0, 0))
    monkeypatch.setattr(bridge.master.lineup, "client", lambda *_: Away())
    with pytest.raises(ServerUnavailable) as caught:
        bridge.master.process.run(app)
    assert str(caught.value).startswith("cannot reach Redis at redis://")
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
