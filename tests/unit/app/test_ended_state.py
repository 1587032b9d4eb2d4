"""Once the body of a task has ended, in whatever way, a change of its state is refused: it would be lost."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, Task
from celery.exceptions import Ignore, Reject

import bridge
from bridge.app.state import StateDict
from bridge.routing.errors import PayloadError
from bridge.testing import handle

#: How a body ends -> what it raises.
ENDS: dict[str, Callable[[], Exception | None]] = {
    "done": lambda: None,
    "failed": lambda: ValueError("no"),
    "nacked": lambda: bridge.Nack("no"),
    "uncharged": lambda: bridge.Nack("no", charge=False),
    "dropped": lambda: bridge.Drop("no"),
    "dead": lambda: bridge.Dead("no"),
    "ignored": Ignore,
    "rejected": lambda: Reject("no"),
}

CHANGES: dict[str, Callable[[Any], object]] = {
    "an item": lambda state: state.__setitem__("n", 2),
    "a deletion": lambda state: state.__delitem__("n"),
    "|=": lambda state: state.__ior__({"n": 2}),
    "clear": lambda state: state.clear(),
    "pop": lambda state: state.pop("n"),
    "popitem": lambda state: state.popitem(),
    "setdefault": lambda state: state.setdefault("m", 2),
    "update": lambda state: state.update(n=2),
    "ttl": lambda state: state.ttl(60),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("attempt", [1, 5])
def test_a_change_after_the_body_is_refused_in_handlers_and_where_the_state_was_kept(end: str, attempt: int) -> None:
    app: Any = bridge.install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False))
    kept: list[Any] = []
    refused: list[str] = []

    def change(state: Any) -> None:
        before = dict(state)
        for name, one in CHANGES.items():
            with pytest.raises(PayloadError, match="the task's body has ended"):
                one(state)
            assert state == before, name
            refused.append(name)

    class Handling(Task):
        def after_return(self, *_: Any) -> None:
            change(self.ticket.state)

        # After a retry Celery calls this one alone.
        on_retry = after_return

    @app.task(bind=True, base=Handling, lazy=False, shared=False, bridge_state=True, name="shop.keeps")
    def keeps(self: Any, ticket_id: str, payload: Any) -> None:
        del ticket_id, payload
        kept.append(self.ticket.state)
        self.ticket.state["n"] = 1
        error = ENDS[end]()
        if error is not None:
            raise error

    handled = handle(keeps, "T", {}, attempt=attempt, state={"m": 0})
    in_handlers = list(refused)
    change(kept[0])
    # Celery calls no handler after an Ignore or a Reject.
    assert in_handlers == ([] if end in ("ignored", "rejected") else list(CHANGES))
    if end in ("done", "ignored"):
        assert handled.saved == {"m": 0, "n": 1}


def test_a_start_that_fails_ends_the_state_too() -> None:
    app: Any = bridge.install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False))
    ends: list[str] = []

    class Failing(Task):
        def before_start(self, *_: Any) -> None:
            self.ticket.state["n"] = 1
            raise ValueError("not yet")

        def on_retry(self, *_: Any) -> None:
            with pytest.raises(PayloadError, match="has ended"):
                self.ticket.state["n"] = 2
            ends.append("refused")

    @app.task(bind=True, base=Failing, lazy=False, shared=False, bridge_state=True, name="shop.fails")
    def fails(self: Any, ticket_id: str, payload: Any) -> None: ...

    assert handle(fails, "T", {}).state == "retried"
    assert ends == ["refused"]


def test_a_state_that_has_ended_can_be_read_and_copied() -> None:
    state = StateDict({b"a": b'{"b":[1]}'})
    state["c"] = 2
    state.end()
    whole = {"a": {"b": [1]}, "c": 2}
    assert state == whole
    assert json.loads(json.dumps(state)) == whole
    for copied in (copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state)), state | {}):
        assert copied == whole
        copied["c"] = 3
    assert state["c"] == 2
