"""A lane under random events, by the real scripts on real servers. After each event the server's data equals the
reference.

The leader may settle, dispatch, re-route and send again at any time, and its predecessors go on trying; workers are
careless: they run whatever they popped, under whatever fence. What keeps the invariants is the scripts alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bridge.link.connections import client
from bridge.protocol.outcomes import Kind
from bridge.routing.batch import Batch
from bridge.routing.errors import LaneConflict, NotLeading
from bridge.routing.leadership import begin_term, renew, resign
from bridge.routing.return_codes import ReturnCode
from bridge.routing.states import State
from bridge.routing.transitions import Leadership, adopt, advance, forget, read, recall, reroute, resend
from bridge.stack.embedded import EmbeddedServer
from tests.keycheck import check_keys
from tests.scripts.driven_lane import BROKEN, DrivenLane
from tests.scripts.lane_reference import Consumer
from tests.scripts.world import OPENING, entries_of, snapshot, state_of, text

pytestmark = pytest.mark.scripts

TICKETS = ["T1", "a:{b} c", 'é\n"']
NAMES = ["w1@a", "w2@b"]
#: Bytes of payloads: from the smallest to as many as a read may bring.
SIZES = [2, 3, 100, 5_000, 40_000]
#: Where a state may stand in its ticket: what is over, what is worked on, what waits, what nobody has read.
RANK = {
    State.DONE: 0,
    State.DEAD: 0,
    State.IN_FLIGHT: 1,
    State.AWAITING_RETRY: 1,
    State.WAITING: 2,
    State.UNREAD: 3,
}


class LaneRules(RuleBasedStateMachine):
    """Every rule is something that may happen. ``connected``: the server."""

    connected: Any

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.connected.flushall()
        self.lane = DrivenLane(self.connected)
        self.lane.join(NAMES[0])
        for ticket in TICKETS[: data.draw(st.integers(0, 3))] * 3:
            self.lane.push(ticket)
        self.lane.read(100)

    # -- what users and the leader do ----------------------------------------------------------------------------

    @rule(
        ticket=st.sampled_from([*TICKETS, *TICKETS, BROKEN]),
        sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=4),
    )
    def push(self, ticket: str, sizes: list[int]) -> None:
        for size in sizes:
            self.lane.push(ticket, size)

    @rule(count=st.integers(1, 8))
    def read(self, count: int) -> None:
        self.lane.read(count)

    @precondition(lambda self: self.lane.consumers)
    @rule(settle=st.booleans(), data=st.data())
    def step(self, settle: bool, data: st.DataObject) -> None:
        # To any consumer that was registered: the leader may not know yet that its lease is over
        pick = st.tuples(st.sampled_from(TICKETS), st.integers(1, 3), st.sampled_from(sorted(self.lane.consumers)))
        self.lane.step(settle=settle, picks=data.draw(st.lists(pick, max_size=3)))

    @precondition(lambda self: self.lane.consumers)
    @rule(data=st.data())
    def reroute(self, data: st.DataObject) -> None:
        lane = self.lane
        lives = {record.incarnation for t in lane.reference.in_flight() if (record := lane.reference.record(t))}
        lives |= {consumer.incarnation for consumer in lane.consumers.values()}
        life = data.draw(st.sampled_from(sorted(lives)))
        alive = any(c.incarnation == life and c.alive for c in lane.consumers.values())
        unread = any(fields["i"] == life for id_, fields in entries_of(lane.client, lane.keys.outcomes))
        before = snapshot(lane.client) if alive or unread else {}
        code = lane.reroute(life)
        assert code is (ReturnCode.ALIVE if alive else ReturnCode.UNREAD if unread else ReturnCode.OK)
        assert code is ReturnCode.OK or snapshot(lane.client) == before

    @precondition(lambda self: self.lane.reference.in_flight())
    @rule(data=st.data())
    def resend(self, data: st.DataObject) -> None:
        self.lane.resend(data.draw(st.sampled_from(sorted(self.lane.reference.in_flight()))))

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 2))
    def recall(self, name: str, count: int) -> None:
        self.lane.recall(name, count)

    @precondition(lambda self: self.lane.reference.owner)
    @rule(data=st.data())
    def a_stranger_claims(self, data: st.DataObject) -> None:
        self.lane.claimed_by_a_stranger(data.draw(st.sampled_from(sorted(self.lane.reference.owner))))

    # -- what workers do -----------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES))
    def join(self, name: str) -> None:
        self.lane.join(name)

    @precondition(lambda self: self.lane.consumers)
    @rule(data=st.data(), how=st.sampled_from(["expires", "says good-bye", "dies"]))
    def a_lease_ends(self, data: st.DataObject, how: str) -> None:
        self.lane.ends(data.draw(st.sampled_from(sorted(self.lane.consumers))), how)

    @precondition(lambda self: self.lane.present())
    @rule(data=st.data())
    def a_worker_freezes_and_is_overtaken(self, data: st.DataObject) -> None:
        # What it runs it will end, under a fence that is not the current one any more
        lane = self.lane
        execution = data.draw(st.sampled_from(lane.present()))
        lane.ends(execution.consumer, "expires")
        lane.step(settle=True, picks=[])
        assert lane.reroute(execution.incarnation) is ReturnCode.OK
        lane.join(execution.consumer)
        lane.step(settle=True, picks=[(execution.ticket, data.draw(st.integers(0, 2)), execution.consumer)])

    @precondition(lambda self: any(self.lane.reference.queues.values()))
    @rule()
    def pop_all(self) -> None:
        for name, queue in self.lane.reference.queues.items():
            while queue:
                self.lane.pop(name)

    @precondition(lambda self: any(self.lane.reference.queues.values()))
    @rule(data=st.data())
    def pop(self, data: st.DataObject) -> None:
        queues = self.lane.reference.queues
        self.lane.pop(data.draw(st.sampled_from(sorted(name for name, queue in queues.items() if queue))))

    @precondition(lambda self: any(not e.over for e in self.lane.executions))
    @rule(data=st.data(), kind=st.sampled_from([Kind.DONE] * 4 + [Kind.FAILED, Kind.LOST, Kind.RETURNED, Kind.DEAD]))
    def outcome(self, data: st.DataObject, kind: Kind) -> None:
        self.lane.outcome(data.draw(st.sampled_from([e for e in self.lane.executions if not e.over])), kind)

    @precondition(lambda self: self.lane.in_time())
    @rule(data=st.data(), twice=st.booleans())
    def succeed_with_effects(self, data: st.DataObject, twice: bool) -> None:
        self.lane.succeed(data.draw(st.sampled_from(self.lane.in_time())), twice=twice)

    @precondition(lambda self: self.lane.overtaken())
    @rule(data=st.data())
    def succeed_under_an_old_fence(self, data: st.DataObject) -> None:
        code = self.lane.succeed(data.draw(st.sampled_from(self.lane.overtaken())), twice=False)
        assert code is ReturnCode.STALE

    # -- what must change nothing --------------------------------------------------------------------------------

    @rule(how=st.sampled_from(["expires", "resigns", "takes a new term"]))
    def the_lead_changes(self, how: str) -> None:
        lane = self.lane
        lane.deposed.append(lane.lead)
        if how == "takes a new term":
            lane.begin_term()
            return
        if how == "resigns":
            assert resign(lane.client, lane.keys, lane.lead.token)
        else:
            lane.client.delete(lane.keys.leader)
        lane.elect()

    @precondition(lambda self: self.lane.deposed)
    @rule(data=st.data())
    def whoever_led_changes_nothing(self, data: st.DataObject) -> None:
        lane = self.lane
        old = data.draw(st.sampled_from(lane.deposed[-3:]))
        before = snapshot(lane.client)
        for attempt in data.draw(st.lists(st.sampled_from(ATTEMPTS), min_size=1, max_size=4)):
            assert attempt(lane, old)
        assert snapshot(lane.client) == before

    @precondition(lambda self: self.lane.reference.records)
    @rule(data=st.data())
    def a_record_that_is_not_as_expected_stops_the_step(self, data: st.DataObject) -> None:
        lane = self.lane
        ticket = data.draw(st.sampled_from(sorted(lane.reference.records)))
        wrong = data.draw(st.sampled_from(["", "[1,1]", lane.reference.records[ticket] + " "]))
        batch = Batch(expected={ticket: wrong}, acknowledged=lane.reference.order[:1], released=[ticket])
        before = snapshot(lane.client)
        with pytest.raises(LaneConflict):
            advance(lane.client, lane.lead, OPENING, batch)
        assert snapshot(lane.client) == before

    @precondition(lambda self: self.lane.consumers)
    @rule(data=st.data(), old=st.booleans())
    def forget(self, data: st.DataObject, old: bool) -> None:
        lane = self.lane
        consumer = data.draw(st.sampled_from([lane.consumers[name] for name in sorted(lane.consumers)]))
        registration = b"another one" if old else consumer.registration
        code = forget(lane.client, lane.lead, consumer.name, consumer.incarnation, registration)
        if consumer.alive:
            assert code is ReturnCode.ALIVE
        elif old and lane.client.hexists(lane.keys.consumers, consumer.name):
            assert code is ReturnCode.CHANGED
        else:
            assert code is ReturnCode.OK
            lane.reference.queues.pop(consumer.name, None)

    # -- what holds ----------------------------------------------------------------------------------------------

    @invariant()
    def the_server_is_what_the_reference_says(self) -> None:
        if hasattr(self, "lane"):
            check(self.lane)

    def teardown(self) -> None:
        if not hasattr(self, "lane"):
            return
        lane = self.lane
        for id_ in lane.reference.order:
            assert state_of(lane.client, lane.keys, id_) is lane.reference.state[id_]
        lane.finish()
        check(lane)
        ref = lane.reference
        assert all(state in (State.DONE, State.DEAD) for state in ref.state.values())
        assert (ref.records, ref.applied, ref.outcomes, ref.owner) == ({}, {}, [], {})
        check_keys(lane.client, lane.keys, allowed=["user:*"])


#: What a leader that was may try: each says whether it was refused.
Attempt = Callable[[DrivenLane, Leadership], bool]


def _refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except NotLeading:
        return True
    return False


def _tries_a_step(lane: DrivenLane, old: Leadership) -> bool:
    # Exactly what the leader of today might do, and nothing but the term speaks against it
    known = lane.reference.records
    batch = Batch(expected=dict(known), acknowledged=lane.reference.order[:2], released=sorted(known))
    batch.keep_outcomes_from = "9999999999999-0"
    batch.count("done")
    return _refused(lambda: advance(lane.client, old, OPENING, batch))


def _tries_to_reroute(lane: DrivenLane, old: Leadership) -> bool:
    ids = sorted(lane.reference.owner)[:2]
    return _refused(lambda: reroute(lane.client, old, "no life", "9999999999999-0", [("T9", "", "[0]", 1)], ids))


def _any_consumer(lane: DrivenLane) -> Consumer:
    return next(iter(lane.consumers.values()))


def _tries_to_forget(lane: DrivenLane, old: Leadership) -> bool:
    consumer = _any_consumer(lane)
    return _refused(lambda: forget(lane.client, old, consumer.name, "no life", consumer.registration))


def _tries_to_resend(lane: DrivenLane, old: Leadership) -> bool:
    ticket, record = next(iter(lane.reference.records.items()), ("T9", ""))
    return _refused(lambda: resend(lane.client, old, NAMES[0], ticket, record, "{}"))


ATTEMPTS: list[Attempt] = [
    lambda lane, old: _refused(lambda: read(lane.client, old, 5)),
    _tries_a_step,
    _tries_to_reroute,
    _tries_to_forget,
    _tries_to_resend,
    lambda lane, old: _refused(lambda: adopt(lane.client, old, "a stranger", sorted(lane.reference.owner)[:2])),
    lambda lane, old: _refused(lambda: recall(lane.client, old, NAMES[0], 5)),
    lambda lane, old: not renew(lane.client, lane.keys, old.token, 60_000),
    lambda lane, old: not resign(lane.client, lane.keys, old.token),
    lambda lane, old: _refused(lambda: begin_term(lane.client, lane.keys, old.token, "m0", 60_000)),
]


def check(lane: DrivenLane) -> None:
    """Compares the server with the reference: I1, I2, and all that the design says is in a key."""
    ref, keys, connected = lane.reference, lane.keys, lane.client
    records = {text(k): text(v) for k, v in connected.hgetall(keys.tickets).items()}
    assert records == ref.records
    pending = connected.xpending_range(keys.stream, keys.group, "-", "+", 10_000)
    assert {text(row["message_id"]): text(row["consumer"]) for row in pending} == ref.owner
    [group] = [g for g in connected.xinfo_groups(keys.stream) if text(g["name"]) == keys.group]
    read_up_to = int(text(group["last-delivered-id"]).partition("-")[0])
    assert read_up_to == sum(state is not State.UNREAD for state in ref.state.values())
    awaiting = {ticket for ticket in records if not (ref.record(ticket) or _nothing()).in_flight}
    assert {text(ticket) for ticket in connected.zrange(keys.retries, 0, -1)} == awaiting
    assert {text(k): int(v) for k, v in connected.hgetall(keys.applied).items()} == ref.applied
    assert [fields["message_id"] for _, fields in entries_of(connected, keys.dead)] == ref.dead
    assert [id_ for id_, _ in entries_of(connected, keys.outcomes)] == ref.outcomes
    for name in NAMES:
        assert [text(t) for t in connected.lrange(keys.queue(name), 0, -1)][::-1] == ref.queues.get(name, [])
    for ticket in TICKETS:
        assert [text(id_) for id_ in connected.lrange(f"user:{ticket}", 0, -1)] == ref.effects.get(ticket, [])
        # I2: what is in flight are the oldest undone messages, in order
        ids = [id_ for id_ in ref.order if ref.ticket_of[id_] == ticket]
        ranks = [RANK[ref.state[id_]] for id_ in ids]
        assert ranks == sorted(ranks)
        record = ref.record(ticket)
        worked_on = tuple(id_ for id_ in ids if RANK[ref.state[id_]] == 1)
        assert worked_on == (record.ids if record is not None else ())
        assert all(lane.owner_should_be(id_) == ref.owner.get(id_) for id_ in ids)


def _nothing() -> Any:
    raise AssertionError("a ticket without a record")


def explore(
    connected: Any, *, examples: int, phases: tuple[Phase, ...] = tuple(Phase), derandomize: bool = False
) -> None:
    machine = type("LaneRules", (LaneRules,), {"connected": connected})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            print_blob=not derandomize,
            phases=phases,
            derandomize=derandomize,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )


@pytest.mark.parametrize("examples", [20, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_the_servers_data_equals_the_reference_after_any_steps(server: EmbeddedServer, examples: int) -> None:
    with client(server.url) as connected:
        explore(connected, examples=examples)
