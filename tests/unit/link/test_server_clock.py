"""Whether the clocks agree, which leases are over by them, and the lane's time, on clocks that a test sets."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bridge.leader.consumers.leases import Leases
from bridge.link.server_clock import ServerClock

LEASE_S = 6.0


class World:
    """A server and a master. Each answer takes some time."""

    def __init__(self, seed: int = 0) -> None:
        self.mono = 1000.0
        self.ahead = 5_000_000.0
        self.slow_s = 0.0
        self.random = random.Random(seed)
        self.clock = ServerClock(LEASE_S, now=lambda: self.mono)

    def time(self) -> tuple[int, int]:
        """The server's reply to TIME."""
        there, back = self.random.uniform(0.0001, 0.002) + self.slow_s, self.random.uniform(0.0001, 0.002)
        self.mono += there
        server_s = self.mono + self.ahead
        self.mono += back
        return int(server_s), int(server_s % 1 * 1e6)

    def go_on(self, seconds: float, every: float = 1.0) -> None:
        redis: Any = self
        end = self.mono + seconds
        while self.mono < end:
            self.mono += every
            self.clock.compare(redis)


def steady(world: World) -> bool:
    return world.clock.steady_for(LEASE_S)


def test_clocks_agree_after_one_lease_and_not_before() -> None:
    world = World()
    world.go_on(LEASE_S - 2)
    assert not steady(world)
    world.go_on(3)
    assert steady(world)


@pytest.mark.parametrize("step", [0.3, 7.0, 3600.0, -0.3, -3600.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_step_is_noticed_and_no_lease_is_ended_for_one_lease(step: float, seed: int) -> None:
    world = World(seed)
    world.go_on(100)
    assert steady(world)
    world.ahead += step
    world.go_on(1)
    noticed = world.mono
    while not steady(world):
        world.go_on(1)
    assert LEASE_S - 0.1 <= world.mono - noticed < LEASE_S + 2


def test_a_clock_that_is_made_to_run_fast_is_noticed_as_well() -> None:
    world = World()
    world.go_on(100)
    for _ in range(60):
        # A twelfth faster, as some programs correct a clock.
        world.ahead += 1 / 12
        world.go_on(1)
        if not steady(world):
            break
    assert not steady(world)


@pytest.mark.parametrize("drift", [1e-4, -1e-4])
def test_clocks_that_drift_as_clocks_do_agree(drift: float) -> None:
    world = World()
    world.go_on(10)
    for _ in range(2000):
        world.ahead += drift
        world.go_on(1)
        assert steady(world)


def test_a_slow_answer_is_not_used_and_is_no_step() -> None:
    world = World()
    world.go_on(10)
    world.slow_s = 1.0
    world.go_on(1)
    assert not steady(world)
    world.slow_s = 0.0
    world.go_on(1)
    assert steady(world)


def test_a_step_behind_slow_answers_is_noticed_when_an_answer_is_quick() -> None:
    world = World()
    world.go_on(10)
    world.slow_s = 1.0
    world.ahead += 0.9
    world.go_on(1)
    assert not steady(world)
    world.slow_s = 0.0
    world.go_on(1)
    assert not steady(world)


def test_a_link_that_is_always_slow_is_judged_by_its_quickest_answer() -> None:
    world = World()
    world.slow_s = 0.4
    world.go_on(20)
    assert steady(world)


def test_the_time_of_the_lane_knows_no_step_and_the_servers_does() -> None:
    world = World()
    world.go_on(10)
    lane_ms, server_ms = world.clock.lane_ms(), world.clock.server_ms()
    assert abs(lane_ms - (world.mono + world.ahead) * 1000) < 10
    before = world.mono
    world.ahead -= 3600
    world.go_on(10)
    assert abs(world.clock.lane_ms() - lane_ms - (world.mono - before) * 1000) < 20
    assert abs(world.clock.server_ms() - server_ms - (world.mono - before - 3600) * 1000) < 20


@pytest.mark.parametrize("step", [3600.0, -3600.0, 2.0])
@pytest.mark.parametrize("earlier", [0.0, 7200.0, -7200.0])
def test_what_is_due_has_a_step_after_one_lease_and_for_that_lease_is_due_by_both(step: float, earlier: float) -> None:
    world = World()
    world.go_on(10)
    if earlier:
        # It is long ago. It is not to be taken for one that is not settled.
        world.ahead += earlier
        world.go_on(2 * LEASE_S)
    clock, before = world.clock, world.ahead
    assert clock.is_settled()
    steps_ms = clock.settled_steps_ms()
    world.ahead += step
    world.go_on(1)
    assert not clock.is_settled()
    assert abs(clock.settled_ms() - (world.mono + before) * 1000) < 20
    assert abs(clock.due_ms() - (world.mono + before + min(0.0, step)) * 1000) < 20
    assert clock.settled_steps_ms() == steps_ms
    world.go_on(LEASE_S)
    assert clock.is_settled()
    assert clock.due_ms() == clock.settled_ms() == clock.server_ms()
    assert abs(clock.settled_steps_ms() - steps_ms - step * 1000) < 20


def test_a_clock_that_is_put_right_within_a_lease_makes_nothing_due() -> None:
    world = World()
    world.go_on(10)
    at, due_ms = world.mono, world.clock.due_ms()
    world.ahead += 3600
    for _ in range(3):
        world.go_on(1)
        assert abs(world.clock.due_ms() - due_ms - (world.mono - at) * 1000) < 20
    world.ahead -= 3600
    for _ in range(10):
        world.go_on(1)
        assert abs(world.clock.due_ms() - due_ms - (world.mono - at) * 1000) < 20
    assert abs(world.clock.settled_steps_ms()) < 20


class Lead:
    """The server's replies to the leader's questions about leases."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.left: dict[str, int] = {}
        self.keys = self

    def lease(self, incarnation: str) -> str:
        return incarnation

    def execute_command(self, _command: str, _sha: str, _count: int, *leases: str) -> list[int]:
        return [self.left.get(name, -2) for name in leases]

    def time(self) -> tuple[int, int]:
        return self.world.time()


def test_a_lease_that_ends_in_its_time_is_over_at_once() -> None:
    world = World()
    lead: Any = Lead(world)
    leases = Leases(world.clock, LEASE_S)
    world.go_on(10)
    lead.left = {"a": 400}
    assert leases.over(leases.ask(lead, lead, ["a"])) == set()
    world.mono += 1
    lead.left = {}
    assert leases.over(leases.ask(lead, lead, ["a"])) == {"a"}
    assert not leases.was_ended("a")


def test_a_lease_that_is_gone_before_its_time_is_waited_for() -> None:
    """It was deleted by hand, or the server's clock was set and set back between two checks."""
    world = World()
    lead: Any = Lead(world)
    leases = Leases(world.clock, LEASE_S)
    world.go_on(10)
    lead.left = {"a": 5000}
    leases.ask(lead, lead, ["a"])
    lead.left = {}
    world.mono += 1
    missed = world.mono
    while not leases.over(leases.ask(lead, lead, ["a"])):
        world.mono += 1
    # It had 5 s left at the last check, and may have been renewed since.
    assert world.mono - missed >= LEASE_S
    assert leases.was_ended("a"), "and what it ran is not to blame"


def test_a_master_knows_in_its_next_term_when_a_lease_was_to_end() -> None:
    """A step that was set back between two checks ended the leases, and the leader lease."""
    world = World()
    lead: Any = Lead(world)
    first = Leases(world.clock, LEASE_S)
    world.go_on(10)
    lead.left = {"a": 5000}
    first.ask(lead, lead, ["a"])
    lead.left = {}
    second = Leases(world.clock, LEASE_S)
    # Consumers that only ticket records name are asked for last.
    second.ask(lead, lead, ["b"])
    missed = world.mono
    while not second.over(second.ask(lead, lead, ["a"])):
        world.mono += 1
    assert world.mono - missed >= LEASE_S
    assert second.was_ended("a")


def test_leases_that_are_over_are_forgotten() -> None:
    world = World()
    lead: Any = Lead(world)
    leases = Leases(world.clock, LEASE_S)
    lead.left = {"a": 5000}
    leases.ask(lead, lead, ["a"])
    lead.left = {}
    world.go_on(6)
    leases.ask(lead, lead, [])
    assert world.clock.ends == {}


def test_a_lease_missing_after_a_step_counts_as_over_one_lease_later() -> None:
    world = World()
    lead: Any = Lead(world)
    leases = Leases(world.clock, LEASE_S)
    world.go_on(10)
    lead.left = {"a": 100}
    leases.ask(lead, lead, ["a"])
    # The lease is renewed, and then the clock is set.
    world.mono += 0.9
    world.ahead += 60
    lead.left = {}
    missed = world.mono
    while not leases.over(leases.ask(lead, lead, ["a"])):
        world.mono += 0.5
    assert world.mono - missed >= LEASE_S
    assert leases.was_ended("a"), "and what it ran is not to blame"


def test_a_master_that_was_just_started_ends_no_lease_within_its_first_lease() -> None:
    world = World()
    lead: Any = Lead(world)
    leases = Leases(world.clock, LEASE_S)
    began = world.mono
    while not leases.over(leases.ask(lead, lead, ["a"])):
        world.mono += 0.5
    assert LEASE_S <= world.mono - began < LEASE_S + 1


@pytest.mark.parametrize("length_s", [LEASE_S / 2, LEASE_S, 2 * LEASE_S, 10 * LEASE_S])
@pytest.mark.parametrize("seed", range(3))
def test_a_longer_lease_of_a_worker_is_waited_for_when_a_master_does_not_know_the_clock(
    length_s: float, seed: int
) -> None:
    """The server's clock was set before this master started: the worker renews its lease when a third of it is over."""
    world = World(seed)
    lead: Any = Lead(world)
    leases = Leases(world.clock, LEASE_S)
    leases.know("a", int(length_s * 1000))
    began = world.mono
    while not leases.over(leases.ask(lead, lead, ["a"])):
        leases.know("a", int(length_s * 1000))
        world.mono += 0.5
    assert max(LEASE_S, length_s) <= world.mono - began < max(LEASE_S, length_s) + 1
