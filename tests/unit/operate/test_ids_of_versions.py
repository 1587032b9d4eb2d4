"""``bridge ticket show`` names a message by the id that it has, also one in an old partition."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

import bridge
import bridge.inspect.versions
from bridge.app.installed import bridge_of
from bridge.app.lanes import subscriptions_of
from bridge.inspect.versions import find_ticket
from bridge.routing.partitions import Layout
from bridge.routing.repartitioning import next_layout


class Found(Exception):
    """Ends the search: what it was asked for is known."""


def test_the_ids_of_each_stream_end_as_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given an app whose stream is being repartitioned
    app = Celery("shop", broker="redis://localhost:6379/0")
    bridge.install(app)

    @app.task(bind=True, name="shop.apply", shared=False)
    def apply(self: Any, ticket_id: str, payload: Any) -> None:
        del self, ticket_id, payload

    app.conf.bridge_default_task = apply.name
    app.finalize()
    bridge_of(app).take_layout(next_layout(Layout(2), 3))
    lanes = {lane.settings.stream: lane for lane in next(iter(subscriptions_of(app).values()))}
    asked: dict[str, str] = {}

    def locate(_redis: Any, settings: Any, _ticket: str, _attempts: Any, _commands: Any, suffix: str, _own: Any) -> Any:
        asked[settings.stream] = suffix
        if len(asked) == len(newest.older) + 1:
            raise Found
        return None

    def every_version(_redis: Any, lane: Any, found: Any, locate_: Any) -> Any:
        del found
        for older in lane.older:
            locate_(older)

    monkeypatch.setattr(bridge.inspect.versions, "locate", locate)
    monkeypatch.setattr(bridge.inspect.versions, "with_versions", every_version)
    newest = lanes["ticket_stream:g1:p1"]
    # When a ticket of a new partition is searched for, then each stream is searched with the ending of its own ids
    with pytest.raises(Found):
        find_ticket(app, None, newest, "T", lambda _lane: None)  # type: ignore[arg-type, return-value]
    assert asked == {stream: lanes[stream].id_suffix for stream in asked}
    assert set(asked.values()) >= {"@g1p1", "@p0"}
