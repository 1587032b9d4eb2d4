"""Which tasks may travel in bundles, as their workers say."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from celery import Celery

from bridge.app.installation import install
from bridge.app.traits import Traits, is_limited
from bridge.protocol.registration import Registrations


def pay(ticket_id: str, payload: Any) -> None:
    del ticket_id, payload


@pytest.mark.parametrize(
    ("limit", "limited"),
    [(None, False), ("0", False), (0, False), ("0/m", False), ("20/s", True), (5, True), ("3/m", True), ("3/x", True)],
)
def test_a_limit_of_zero_is_none(limit: Any, limited: bool) -> None:
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False))
    task = app.task(name="shop.pay", rate_limit=limit, lazy=False, shared=False)(pay)
    assert is_limited(task) is limited


@pytest.mark.parametrize(
    ("declared", "said", "bundled"),
    [
        ({}, [], True),
        ({"rate_limit": "5/s"}, [], False),
        # An operator has set a limit at one of two workers.
        ({}, [{}, {"bundle": False}], False),
        # An operator has taken the limit away.
        ({"rate_limit": "5/s"}, [{}], True),
        ({"rate_limit": "5/s"}, [{}, {"bundle": False}], False),
        ({"bridge_bundle": False}, [{}], False),
        ({"Request": "shop.requests:Request"}, [], False),
        ({"Request": "shop.requests:Request"}, [{}], False),
    ],
)
def test_the_workers_say_whether_a_task_has_a_limit(declared: Any, said: list[Any], bundled: bool) -> None:
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False))
    app.task(name="shop.pay", lazy=False, shared=False, **declared)(pay)
    registrations = Registrations()
    registrations.read(
        {
            b"w%d" % n: orjson.dumps(
                {"incarnation": f"{n}", "queue": f"q{n}", "slots": 1, "tasks": ["shop.pay"],
                 "traits": {"shop.pay": traits} if traits else {}}
            )
            for n, traits in enumerate(said)
        },
        lambda name, _text: pytest.fail(f"{name!r} is not read"),
    )  # fmt: skip
    traits = Traits(app, app.bridge.settings.lane, registrations)
    assert traits.of("shop.pay").bundled is bundled
