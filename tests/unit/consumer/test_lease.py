"""How a worker registers while replies of the server are lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import TimeoutError as NoReply

from bridge.consumer import lease as under_test
from bridge.consumer.lease import Lease
from bridge.protocol.registration import ChangingFacts, Profile, RunnableTasks, read_registration
from bridge.routing.return_codes import ReturnCode
from bridge.settings.lane import LaneSettings

FACTS = ChangingFacts(1, RunnableTasks([], [], {}, {}))
PROFILE = Profile("queue:w1", FACTS, "prefork", 7, 1.5, {})
SETTINGS = LaneSettings(lease=6.0)

#: What becomes of a try to register: it is answered; it never arrives; its reply is lost; it arrives when the worker
#: has given it up, before or after the worker looks again.
ENDS = st.sampled_from(["answered", "lost before", "lost after", "late", "later"])


class World:
    """The server with one name, and the clock of all."""

    def __init__(self, ends: list[str]) -> None:
        self.now_ns = 10**12
        self.ends = ends
        self.registered: bytes | None = None
        #: Incarnation -> when its lease is over (ns).
        self.leases: dict[str, int] = {}
        self.held = 0
        #: The incarnations of the worker.
        self.own: set[str] = set()
        self._on_the_way: list[Any] = []

    def pipeline(self, **_: Any) -> Any:
        return nullcontext(self)

    def hget(self, *_: Any) -> None: ...
    def time(self) -> None: ...

    def execute(self, **_: Any) -> list[Any]:
        while self._on_the_way and self._on_the_way[0][0] == "late":
            self._run(*self._on_the_way.pop(0)[1:])
        found = self.registered
        while self._on_the_way:
            self._run(*self._on_the_way.pop(0)[1:])
        return [found, [self.now_ns // 10**9, 0]]

    def register(self, *call: Any) -> tuple[ReturnCode, int]:
        _, _, _, incarnation, lease_ms, registration, found, _ = call
        self.own.add(incarnation)
        end = self.ends.pop(0) if self.ends else "answered"
        if end in ("late", "later"):
            self._on_the_way.append((end, incarnation, lease_ms, registration, found))
        elif end != "lost before":
            code = self._run(incarnation, lease_ms, registration, found)
            if end == "answered":
                return code, 6000
        self.now_ns += 10**9
        raise NoReply("timed out")

    def _run(self, incarnation: str, lease_ms: int, registration: bytes, found: Any) -> ReturnCode:
        """The script."""
        if self.registered != (found[0] if found else None):
            return ReturnCode.CHANGED
        if found and self.leases.get(found[1], 0) > self.now_ns:
            self.held += 1
            assert found[1] not in self.own, "it waits for the end of a lease of its own"
            return ReturnCode.HELD
        self.registered = registration
        self.leases[incarnation] = self.now_ns + lease_ms * 10**6
        return ReturnCode.OK

    def goodbye(self, _redis: Any, _keys: Any, _name: str, incarnation: str) -> None:
        self.leases.pop(incarnation, None)


class Deadline:
    """The deadline, as far as a registration needs it."""

    def __init__(self) -> None:
        self.incarnation = ""
        self.deadline_ns = 0

    def learn_server_time(self, _ms: float) -> None: ...

    def begin(self, incarnation: str, deadline_ns: int) -> None:
        self.incarnation, self.deadline_ns = incarnation, deadline_ns


@contextmanager
def lease_in(world: World, deadline: Deadline) -> Iterator[Lease]:
    """The lease of a worker in ``world``."""
    with (
        patch.object(under_test, "client", lambda *_, **__: world),
        patch.object(under_test, "register", world.register),
        patch.object(under_test, "goodbye", world.goodbye),
        patch.object(under_test, "now_ns", lambda: world.now_ns),
    ):
        yield Lease(
            *("redis://here", SETTINGS, "w1@h", PROFILE, cast("Any", deadline)),
            layout=cast("Any", None),
            held=list,
            changing_facts=lambda: FACTS,
            on_lost=lambda: pytest.fail("nothing was held"),
        )


@given(ends=st.lists(ENDS, max_size=12), pauses=st.lists(st.integers(0, 7), min_size=13, max_size=13))
def test_a_worker_whose_registration_was_not_answered_takes_it_and_waits_for_no_lease(
    ends: list[str], pauses: list[int]
) -> None:
    world, deadline = World(list(ends)), Deadline()
    with lease_in(world, deadline) as lease:
        # As `_come_back` does it, with outages between two tries
        while lease._register_again():
            world.now_ns += pauses.pop() * 10**9
    assert world.registered is not None
    assert read_registration(world.registered).incarnation == deadline.incarnation
    assert [one for one, over in world.leases.items() if over > world.now_ns] == [deadline.incarnation]
    assert world.now_ns < deadline.deadline_ns < world.leases[deadline.incarnation]


@pytest.mark.parametrize("damaged", [b"damaged", b"{}", b'{"incarnation":7}'])
def test_a_registration_that_cannot_be_read_is_replaced(damaged: bytes) -> None:
    world, deadline = World([]), Deadline()
    world.registered = damaged
    with lease_in(world, deadline) as lease:
        assert lease._register_again() == 0
    assert read_registration(world.registered).incarnation == deadline.incarnation


def test_the_lease_of_another_worker_is_waited_for() -> None:
    world, deadline = World([]), Deadline()
    world.registered = PROFILE.text("another", 2.5, 6000)
    world.leases["another"] = world.now_ns + 10**9
    stop: Any = SimpleNamespace(is_set=lambda: False, wait=lambda _s: world.leases.clear())
    with lease_in(world, deadline) as lease:
        lease._stop = stop
        lease._register()
    assert world.held
    assert deadline.incarnation not in ("", "another")
