"""The policy `rendezvous` in a lane: who gets which ticket while consumers join, leave, and differ in their tasks."""

from __future__ import annotations

from collections.abc import Iterable

from bridge.protocol.outcomes import Kind
from bridge.routing.policies import PolicyName, Ring
from tests.unit.leader.lane_world import TASKS, LaneWorld

TICKETS = [f"T{i}" for i in range(60)]


class Homes:
    """A lane, and the consumers at which each ticket's messages ran, in their order."""

    def __init__(self, bundle_ms: float = 0.0) -> None:
        self.lane = LaneWorld(policy=PolicyName.RENDEZVOUS, bundle_ms=bundle_ms, window=100_000)
        self.lane.lane.service_ms.update(TASKS)
        self.names: dict[str, str] = {}
        self.of: dict[str, list[str]] = {ticket: [] for ticket in TICKETS}

    def join(self, name: str, tasks: frozenset[str] | None = None) -> str:
        life = self.lane.join(name, 1, tasks)
        self.names[life] = name
        return life

    def run(self, rounds: int) -> None:
        """So many turns, in each of which all that runs succeeds."""
        for _ in range(rounds):
            # Backoffs are over
            self.lane.now += 1000
            self.lane.read()
            running = self.lane.running()
            for parcel, ticket in running:
                self.of[ticket].append(self.names[parcel.incarnation])
            self.lane.step([self.lane.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in running])
            self.lane.check()

    def forget(self) -> None:
        for seen in self.of.values():
            seen.clear()


def owners(names: Iterable[str], among: Iterable[str] = ()) -> dict[str, str]:
    ring = Ring()
    ring.update(names)
    able = set(among) or set(names)
    return {ticket: ring.owner(ticket, able) for ticket in TICKETS}


def push_each(homes: Homes, count: int, task: str = "long") -> None:
    for _ in range(count):
        for ticket in TICKETS:
            homes.lane.push(ticket, task)
    homes.lane.read()


def until_each_ran(homes: Homes, count: int) -> None:
    while min(map(len, homes.of.values())) < count:
        before = sum(map(len, homes.of.values()))
        homes.run(1)
        assert sum(map(len, homes.of.values())) > before, "it stands still"


def test_under_joins_and_leaves_only_the_share_of_who_came_or_went_moves() -> None:
    homes = Homes()
    first = [f"w{i}@h" for i in range(3)]
    lives = [homes.join(name) for name in first]
    push_each(homes, 40)
    until_each_ran(homes, 2)
    three = owners(first)
    assert {ticket: set(where) for ticket, where in homes.of.items()} == {t: {three[t]} for t in TICKETS}

    homes.join("w3@h")
    # Each ticket has its consumer until its next message is done, and waits there for that
    until_each_ran(homes, 6)
    four = owners([*first, "w3@h"])
    assert {where[-1] for t, where in homes.of.items() if three[t] != four[t]} == {"w3@h"}
    for ticket, where in homes.of.items():
        assert where[-1] == four[ticket]
        assert set(where) == {three[ticket], four[ticket]}
        moved = where.index(four[ticket])
        assert set(where[:moved]) <= {three[ticket]}
        assert set(where[moved:]) == {four[ticket]}, "it moved more than once"

    homes.lane.leave(lives[1])
    homes.forget()
    until_each_ran(homes, 4)
    last = owners(["w0@h", "w2@h", "w3@h"])
    assert {ticket: set(where) for ticket, where in homes.of.items()} == {t: {last[t]} for t in TICKETS}
    assert all(last[t] == four[t] for t in TICKETS if four[t] != "w1@h")


def test_a_ticket_whose_owner_cannot_run_its_task_goes_to_the_next_in_its_own_order() -> None:
    homes = Homes()
    names = [f"w{i}@h" for i in range(4)]
    able = names[:2]
    for name in names:
        homes.join(name, frozenset({"long", "middle"}) if name in able else frozenset({"middle"}))
    everybody, some = owners(names), owners(names, able)
    push_each(homes, 3, "long")
    push_each(homes, 3, "middle")
    push_each(homes, 3, "long")
    until_each_ran(homes, 9)
    for ticket, where in homes.of.items():
        assert where == [some[ticket]] * 3 + [everybody[ticket]] * 3 + [some[ticket]] * 3
    # Those of the two that cannot run it are spread over the two that can
    assert {some[t] for t in TICKETS if everybody[t] not in able} == set(able)


def test_a_run_ends_before_a_message_whose_task_has_another_owner() -> None:
    # Short tasks travel as runs
    homes = Homes(bundle_ms=10.0)
    names = [f"w{i}@h" for i in range(4)]
    able = names[:2]
    for name in names:
        homes.join(name, frozenset({"short", "limited"}) if name in able else frozenset({"limited"}))
    everybody, some = owners(names), owners(names, able)
    for task in ("short", "short", "limited", "limited", "short", "short"):
        for ticket in TICKETS:
            homes.lane.push(ticket, task)
    homes.lane.read()
    until_each_ran(homes, 6)
    for ticket, where in homes.of.items():
        assert where == [some[ticket]] * 2 + [everybody[ticket]] * 2 + [some[ticket]] * 2
    assert any(len(set(where)) == 2 for where in homes.of.values())


def test_a_task_that_few_of_many_can_run_has_the_owners_that_all_give() -> None:
    homes = Homes()
    names = [f"w{i}@h" for i in range(40)]
    able = names[5:8]
    for name in names:
        homes.join(name, frozenset({"long", "middle"}) if name in able else frozenset({"middle"}))
    push_each(homes, 2, "long")
    until_each_ran(homes, 2)
    some = owners(names, able)
    assert {ticket: set(where) for ticket, where in homes.of.items()} == {t: {some[t]} for t in TICKETS}
    # And when one of them is not there any more
    gone = next(life for life, name in homes.names.items() if name == able[0])
    homes.lane.leave(gone)
    homes.forget()
    push_each(homes, 2, "long")
    until_each_ran(homes, 2)
    rest = owners([name for name in names if name != able[0]], able[1:])
    assert {ticket: set(where) for ticket, where in homes.of.items()} == {t: {rest[t]} for t in TICKETS}
