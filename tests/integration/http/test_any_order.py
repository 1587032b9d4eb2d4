"""Calls of a consumer in any order over the ports of two masters, right ones and wrong ones: each answer is exact.

A model says what each call must be answered. Messages are put in flight as a leader does it.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from bridge.routing.keys import LaneKeys
from bridge.routing.records import record, tail
from bridge.stack.embedded import EmbeddedServer
from tests.integration.http.http_port import STREAM, Answer, Port, app_of, port_of

KEYS = LaneKeys(STREAM, "concurrency_stream_group")
FENCE = 1_700_000_000_000_000
SLOTS = 3
OUTCOMES = ("done", "failed", "refused", "dead")
PORTS = st.integers(0, 1)


class Calls(RuleBasedStateMachine):
    """One consumer. The class has the ports and the server's client."""

    ports: tuple[Port, Port]
    redis: Any
    number = 0

    @initialize()
    def begin(self) -> None:
        self.redis.flushdb()
        self.register(0)

    def post(self, port: int, path: str, **body: Any) -> Answer:
        return self.ports[port].post(path, {"incarnation": self.life, **body})

    def acknowledge(self, port: int, id_: str, fence: int, outcome: str) -> int:
        said = {"consumer": "h", "message_id": id_, "fence": fence, "outcome": outcome}
        return self.post(port, "/api/messages/acknowledge", **said).status

    def register(self, port: int) -> None:
        self.life = ""
        answer = self.ports[port].post("/api/consumers/register", {"name": "h", "concurrency": SLOTS})
        assert answer.status == 200
        self.life, self.lives = answer.body["incarnation"], True
        #: Fence -> message id: what waits in the queue, and what was given and is not acknowledged.
        self.queue: dict[int, str] = {}
        self.given: dict[int, str] = {}
        #: Fence -> (message id, outcome).
        self.done: dict[int, tuple[str, str]] = {}

    @precondition(lambda self: not self.lives)
    @rule(port=PORTS)
    def come_again(self, port: int) -> None:
        self.register(port)

    @precondition(lambda self: self.lives)
    @rule()
    def dispatch(self) -> None:
        Calls.number += 1
        id_, fence, ticket = f"{self.number}-0", FENCE + self.number, f"T{self.number}"
        headers = {"bridge_fence": fence, "bridge_runs": [[ticket, 0, 1, 1, 0]], "bridge_incarnation": self.life}
        body = f'["{ticket}",{{"n":{self.number}}}],{{}},{{}}]'
        text = json.dumps({"headers": {**headers, "id": id_, "task": "shop.apply"}, "body": f"[{body}"})
        self.redis.hset(KEYS.tickets, ticket, record(fence, tail("h", self.life, 1, [id_], 0)))
        self.redis.lpush(KEYS.queue("h"), text)
        self.queue[fence] = id_

    @rule(port=PORTS, most=st.integers(1, 5), knows=st.booleans())
    def receive(self, port: int, most: int, knows: bool) -> None:
        has = list(self.given)[:1] if knows else []
        more = "".join(f"&has={fence}" for fence in has)
        answer = self.ports[port].get(f"/api/messages/next?consumer=h&incarnation={self.life}&max={most}{more}")
        if not self.lives:
            assert answer.status == 410
            return
        assert answer.status == 200
        wanted = [fence for fence in self.given if fence not in has][:most]
        while self.queue and len(wanted) < most and len(self.given) < SLOTS:
            fence = next(iter(self.queue))
            self.given[fence] = self.queue.pop(fence)
            wanted.append(fence)
        found = answer.body["messages"]
        assert [(one["fence"], one["message_id"]) for one in found] == [(one, self.given[one]) for one in wanted]
        assert all(one["payload"] == {"n": int(one["message_id"][:-2])} for one in found)

    @rule(port=PORTS, which=st.integers(0, 20), outcome=st.sampled_from(OUTCOMES))
    def acknowledge_one(self, port: int, which: int, outcome: str) -> None:
        """One that was sent: not given yet, given, or acknowledged."""
        known = {**self.queue, **self.given, **{fence: id_ for fence, (id_, _) in self.done.items()}}
        if not known:
            return
        fence = sorted(known)[which % len(known)]
        status = self.acknowledge(port, known[fence], fence, outcome)
        if not self.lives:
            assert status == 410
        elif fence in self.queue:
            assert status == 404
        elif fence in self.done:
            assert status == (200 if self.done[fence][1] == outcome else 409)
        else:
            assert status == 200
            self.done[fence] = (self.given.pop(fence), outcome)

    @precondition(lambda self: self.given)
    @rule(port=PORTS, off=st.sampled_from((-1, 1, 10**6)), foreign=st.booleans(), extends=st.booleans())
    def lie(self, port: int, off: int, foreign: bool, extends: bool) -> None:
        """A wrong fence for a message that was given, or another message under its fence."""
        fence, id_ = next(iter(self.given.items()))
        sent = ("7-7", fence) if foreign else (id_, fence + off)
        if extends:
            said = {"consumer": "h", "message_id": sent[0], "fence": sent[1]}
            assert self.post(port, "/api/messages/extend", **said).status == (409 if self.lives else 410)
        else:
            assert self.acknowledge(port, *sent, "done") == ((404 if foreign else 409) if self.lives else 410)

    @rule(port=PORTS)
    def beat(self, port: int) -> None:
        assert self.post(port, "/api/consumers/h/heartbeat").status == (200 if self.lives else 410)
        fences = [*self.given, FENCE]
        said = {"consumer": "h", "message_id": self.given.get(fences[0], "1-0"), "fence": fences[0]}
        status = self.post(port, "/api/messages/extend", **said).status
        assert status == ((200 if self.given else 409) if self.lives else 410)

    @precondition(lambda self: self.lives)
    @rule(port=PORTS, leaves=st.booleans())
    def end(self, port: int, leaves: bool) -> None:
        """It leaves, or its lease is over."""
        if leaves:
            assert self.post(port, "/api/consumers/h/leave").status == 200
        else:
            self.redis.delete(KEYS.lease(self.life))
        self.lives = False
        assert self.post(1 - port, "/api/consumers/h/leave").status == 410

    def teardown(self) -> None:
        """Each outcome that was answered with 200 is in the stream, once, and no other."""
        if not hasattr(self, "life"):
            return
        entries = self.redis.xrange(KEYS.outcomes)
        written = [json.loads(fields["o"]) for _, fields in entries if fields["i"] == self.life and "o" in fields]
        fences = [outcome[1] for some in written for outcome in some]
        assert sorted(fences) == sorted(self.done)


def test_each_call_is_answered_as_the_model_says(valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_of(valkey.url, bridge_lease=600.0)
    with ExitStack() as stack:
        monkeypatch.setattr(Calls, "ports", tuple(stack.enter_context(port_of(app)) for _ in range(2)), raising=False)
        monkeypatch.setattr(Calls, "redis", valkey.client(decode_responses=True), raising=False)
        checks = settings(
            max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        )
        run_state_machine_as_test(Calls, settings=checks)  # type: ignore[no-untyped-call, unused-ignore]
    app.bridge.client.close()
