"""How long messages have waited for a consumer that knows their task, over a takeover."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.leader.duties import unknown_tasks as under_test
from bridge.leader.duties.unknown_tasks import UnknownTasks
from bridge.leader.picture.pieces import Ticket
from bridge.leader.picture.stranded import Waiting
from bridge.protocol.registration import Registrations
from bridge.protocol.unserved import read_note
from bridge.routing.batch import Batch
from bridge.routing.messages import Message
from tests.unit.leader.lane_world import LaneWorld


class Notes:
    """What the leaders have noted: the two hashes, and each note that was written."""

    def __init__(self) -> None:
        self.unserved: dict[bytes, bytes] = {}
        self.messages: list[int] = []
        self.forgotten: list[str] = []

    def hgetall(self, key: str) -> dict[bytes, bytes]:
        return self.unserved if key.endswith(":unserved") else {}

    def note(self, _redis: Any, _leadership: Any, _known: Any, forgotten: list[str], notes: dict[str, bytes]) -> None:
        self.forgotten += forgotten
        self.unserved = {name.encode(): text for name, text in notes.items()}
        self.messages += [read_note(name, text).task.messages for name, text in self.unserved.items()]


def test_a_new_leader_goes_on_counting_and_says_nothing_before_it_has_read_the_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given messages of a task that no consumer can run, which have waited for a while
    notes = Notes()
    now = [1000.0]
    monkeypatch.setattr(under_test, "note_tasks", notes.note)
    monkeypatch.setattr(under_test, "time", SimpleNamespace(monotonic=lambda: now[0]))
    world = LaneWorld(page=5, sliced=True)
    world.join("w1@h", 2, frozenset({"short"}))

    def leads() -> UnknownTasks:
        parts = (cast("Any", world), world.settling, world.breakers, Registrations(), world.refill)
        found = UnknownTasks(replace(world.term, redis=notes), world.lane, *parts)
        found.read_notes()
        return found

    first = leads()
    for n in range(40):
        world.push(f"T{n}", "long")
    world.read()
    for _ in range(20):
        now[0] += 5
        world.now += 5000
        first.look()
    [waited_s] = [read_note(*one).waited_s for one in notes.unserved.items()]
    assert waited_s == pytest.approx(100, abs=6)
    # When another one takes over, and looks while it reads the lane
    lead = world.lead
    seconds: list[UnknownTasks] = []

    def lead_and_read_notes() -> None:
        lead()
        seconds.append(leads())

    monkeypatch.setattr(world, "lead", lead_and_read_notes)
    notes.messages = []
    world.rebuild()
    [second] = seconds
    looks = 0
    while world.lane.behind:
        second.look()
        looks += 1
        world.refill_now()
    assert looks > 2, "it was read at once"
    now[0] += 5
    world.now += 5000
    second.look()
    # Then the time goes on, and no note had fewer messages than there are
    [again_s] = [read_note(*one).waited_s for one in notes.unserved.items()]
    assert again_s == pytest.approx(waited_s + 5, abs=1)
    assert set(notes.messages) == {40}


def test_messages_that_are_given_up_together_are_counted_once_and_not_logged_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given tickets whose tasks no consumer has, and which have waited long enough
    counted: list[Waiting] = []

    def count(waiting: Waiting) -> int:
        counted.append(waiting)
        return sum(ticket.waiting_known for ticket in waiting.tickets)

    monkeypatch.setattr(Waiting, "messages", property(count))
    monkeypatch.setattr(under_test, "note_tasks", Notes().note)
    now = [1000.0]
    monkeypatch.setattr(under_test, "time", SimpleNamespace(monotonic=lambda: now[0]))
    world = LaneWorld(page=100, window=1000, unknown_after=0.0)
    world.join("w1@h", 2, frozenset({"short"}))
    parts = (cast("Any", world), world.settling, world.breakers, Registrations(), world.refill)
    tasks = UnknownTasks(replace(world.term, redis=Notes()), world.lane, *parts)
    for n in range(300):
        world.push(f"T{n}", ("long", "never")[n % 2])
    world.read()
    # When they are given up in one look
    tasks.look()
    assert len(world.store.dead) == 300
    # Then the messages of a task were counted for the reason, and for the note, and not for each message
    assert len(counted) <= 4
    # And the log has a line for each task: `DeadLog` has those of dead letters
    assert len(caplog.records) <= 2


class Looks:
    """A lane whose consumer can run ``short`` alone, and the looks of its leader at the messages that wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        monkeypatch.setattr(under_test, "note_tasks", Notes().note)
        self._s = 1000.0
        monkeypatch.setattr(under_test, "time", SimpleNamespace(monotonic=lambda: self._s))
        self.world = world = LaneWorld(page=100, window=1000, **settings)
        world.join("w1@h", 2, frozenset({"short"}))
        parts = (cast("Any", world), world.settling, world.breakers, Registrations(), world.refill)
        self._tasks = UnknownTasks(replace(world.term, redis=Notes()), world.lane, *parts)

    def look(self, passed_s: float = 0.0) -> list[str]:
        """Looks each second until so many have passed. Returns the ids of the messages that are dead then."""
        for _ in range(int(passed_s) + 1):
            self._tasks.look()
            self._s += 1
            self.world.now += 1000
            self.world.read()
        return list(self.world.store.dead)


def test_a_ticket_that_was_stranded_twice_is_given_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a message that waits, and an older one of its ticket that is replayed
    looks = Looks(monkeypatch, unknown_after=10.0)
    world = looks.world
    [dead] = world.push("T", "long")
    world.read()
    looks.look(20)
    assert list(world.store.dead) == [dead]
    [waiting] = world.push("T", "long")
    world.push("other", "long")
    world.read()
    batch = Batch()
    batch.given_back.append(dead)
    batch.replayed.append(dead)
    world.lane.replay(Message(dead, "T", "long", b"1"), batch)
    world.advance(batch)
    # When both have waited long enough, then each is dead, in its order
    looks.look(30)
    assert [id_ for id_ in world.store.dead if id_ in (dead, waiting)] == [dead, waiting]
    assert not world.lane.tickets


def test_a_breakers_trials_leave_nothing_in_the_order_of_those_that_wait() -> None:
    waiting = Waiting(0)
    tickets = [Ticket(f"T{n}") for n in range(10)]
    for n in range(10_000):
        ticket = tickets[n % 10]
        if ticket in waiting.tickets:
            waiting.remove(ticket)
        waiting.add(ticket, 0.0)
    assert len(waiting._oldest) < 200
    found = []
    while (longest := waiting.longest()) is not None:
        found.append(longest[0])
        waiting.drop_longest()
    assert sorted(found, key=tickets.index) == tickets


@pytest.mark.parametrize("hold", [False, True])
def test_a_message_has_not_waited_before_it_was_due(monkeypatch: pytest.MonkeyPatch, *, hold: bool) -> None:
    # Given a message that is due in a minute, and others that wait for its task for so long that they are dead
    looks = Looks(monkeypatch, unknown_after=20.0, clocked=True)
    world = looks.world
    delayed = world.push_delayed("T", world.now + 60_000, hold=hold, task="long")
    # 75 s: it was due 15 s ago
    for n in range(75):
        world.push(f"other {n}", "long")
        looks.look()
    assert world.store.dead
    assert delayed not in world.store.dead
    # When it has waited itself, then it is dead, too
    assert delayed in looks.look(20)


def test_a_note_logs_few_of_many_tasks_by_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(under_test, "note_tasks", Notes().note)
    world = LaneWorld()
    parts = (cast("Any", world), world.settling, world.breakers, Registrations(), world.refill)
    tasks = UnknownTasks(replace(world.term, redis=Notes()), world.lane, *parts)
    world.lane.stranded.waiting = {f"typo {n}": Waiting(0) for n in range(500)}
    for waiting in world.lane.stranded.waiting.values():
        waiting.add(Ticket("T"), 0.0)
    tasks.look()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == under_test.LOGGED + 1
    assert lines[-1] == f"messages wait for consumers that can run {500 - under_test.LOGGED} other tasks"


def test_a_task_is_not_forgotten_while_messages_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes()
    now = [1000.0]
    monkeypatch.setattr(under_test, "note_tasks", notes.note)
    monkeypatch.setattr(under_test, "time", SimpleNamespace(monotonic=lambda: now[0]))
    world = LaneWorld()
    world.join("w1@h", 2, frozenset({"short"}))
    there = {"short", "long"}
    registrations: Any = SimpleNamespace(known=lambda: there, meant_for=lambda _task: None)
    parts = (cast("Any", world), world.settling, world.breakers, registrations, world.refill)
    duty = UnknownTasks(replace(world.term, redis=cast("Any", notes)), world.lane, *parts)

    def hours(count: int) -> None:
        for _ in range(count):
            now[0] += 3600
            world.now += 3_600_000
            duty.look()

    hours(48)
    # Its last worker is replaced by one without the task, a message comes on the sixth day, and waits for two weeks
    there.remove("long")
    hours(6 * 24)
    world.push("T", "long")
    world.read()
    hours(14 * 24)
    [unserved] = [read_note(*one) for one in notes.unserved.items()]
    assert (unserved.task.task, unserved.task.known, unserved.waited_s) == ("long", True, 0)
    assert notes.forgotten == []
    # Somebody took it away
    world.lane.stranded.waiting["long"].tickets.clear()
    hours(2)
    assert notes.forgotten == ["long"]
