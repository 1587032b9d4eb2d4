"""Each subscription of a run is judged by its own evidence: what is for it, in its own numbers."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.checks import check_all
from tests.chaos.facts import Effect, Execution, Message, Notes, Rest
from tests.chaos.subscriptions import (
    ONE,
    Subscription,
    addressed,
    draw_partitions,
    draw_subscriptions,
    environment,
    evidence_of,
    split,
)

MS = 1_000_000
WALL = 1_700_000_000_000 * MS
#: Ticket T, of which every second message is of kind b.
MESSAGES = [Message(f"{n + 1}-0", "T", n, pushed_ns=WALL, kind="ab"[n % 2]) for n in range(4)]
FAILING = Subscription("failing", label="failing/")
SLOW = Subscription("slow", ("b",), times=4, fails=False, label="slow/")


def ran(label: str, n: int, at: int) -> tuple[Execution, Effect]:
    """An execution and its effect; ``at``: ms."""
    ticket, id_, start = f"{label}T", f"{n + 1}-0", at * MS
    execution = Execution(
        ticket=ticket,
        message_id=id_,
        n=n,
        attempt=1,
        fence=at,
        consumer="w1",
        pool="prefork",
        pid=1,
        parent=0,
        start_ns=start,
        wall_ns=WALL + start,
        seen_ns=start + MS,
        end_ns=start + MS,
        outcome="done",
    )
    return execution, Effect(ticket, id_, n, at, WALL // MS + at + 1)


def violations(one: Subscription, order: dict[str, list[int]]) -> set[str]:
    """What the checks find when these numbers ran in each subscription, in this order."""
    rows = [ran(label, n, 10 * at) for label, found in order.items() for at, n in enumerate(found, start=1)]
    executions, effects = [row[0] for row in rows], [row[1] for row in rows]
    done = len(order[one.label])
    evidence = evidence_of(one, MESSAGES, executions, effects, [], Rest(done=done), Notes(), 5, struck=False)
    return {violation.invariant for violation in check_all(evidence)}


def test_each_one_has_what_is_for_it_once_and_in_order() -> None:
    order = {"failing/": [0, 1, 2, 3], "slow/": [1, 3]}
    assert violations(FAILING, order) == set()
    assert violations(SLOW, order) == set()


def test_what_one_misses_is_lost_there_although_another_has_it() -> None:
    order = {"failing/": [0, 1, 2, 3], "slow/": [3]}
    assert violations(FAILING, order) == set()
    assert "lost" in violations(SLOW, order)


def test_what_its_filter_leaves_out_must_not_run() -> None:
    assert "unexplained" in violations(SLOW, {"slow/": [1, 2, 3]})


def test_its_order_is_its_own() -> None:
    assert "reordered" in violations(SLOW, {"failing/": [0, 1, 2, 3], "slow/": [3, 1]})
    assert violations(FAILING, {"failing/": [0, 1, 2, 3], "slow/": [3, 1]}) == set()


def test_a_message_begins_after_the_one_before_it_that_is_wanted() -> None:
    executions = [ran("slow/", 1, 20)[0], ran("slow/", 3, 10)[0]]
    effects = [ran("slow/", 3, 30)[1], ran("slow/", 1, 40)[1]]
    evidence = evidence_of(SLOW, MESSAGES, executions, effects, [], Rest(done=2), Notes(), 5, struck=False)
    assert "started too early" in {violation.invariant for violation in check_all(evidence)}


def test_messages_die_only_where_they_fail() -> None:
    dying = [Message("1-0", "T", 0, True, WALL, "b")]
    assert [message.dies for message in FAILING.wanted(dying)] == [True]
    assert [message.dies for message in SLOW.wanted(dying)] == [False]
    payload = addressed((FAILING, SLOW), {"n": 0, "ms": 10, "until": 99, "how": "raise"}, "b")
    assert payload["in"] == {"failing": {"ms": 10}, "slow": {"ms": 43, "until": 1}}
    assert payload["kind"] == "b"


def test_one_lane_is_as_it_was() -> None:
    assert ONE[0].wanted(MESSAGES) == MESSAGES
    assert environment(ONE) == {}
    assert addressed(ONE, {"n": 0, "ms": 1}, "a") == {"n": 0, "ms": 1}


def test_a_message_that_others_overtake_is_numbered_by_when_it_is_due() -> None:
    pushed = [Message(f"{n}-0", "T", n) for n in range(1, 5)]
    # The second one is due in the ms of the fourth one, which goes first. The ticket waits for the first one.
    pushed[1] = replace(pushed[1], due_ms=4)
    pushed[0] = replace(pushed[0], due_ms=9, hold=True)
    assert [one.n for one in ONE[0].wanted(pushed)] == [0, 3, 1, 2]


def test_the_draw_has_a_slow_one_a_failing_one_and_a_filter() -> None:
    for seed in range(30):
        drawn = draw_subscriptions(seed)
        assert drawn == draw_subscriptions(seed)
        assert {one.name for one in drawn} == {"failing", "slow", "plain"}
        assert 1 <= sum(bool(one.wants) for one in drawn) <= 2
        assert [one.name for one in drawn if one.fails] == ["failing"]
        assert [one.name for one in drawn if one.times > 1] == ["slow"]
    assert {draw_subscriptions(seed)[0].name for seed in range(30)} == {"failing", "slow", "plain"}


def test_each_partition_has_its_own_tickets_and_all_have_each_once() -> None:
    messages = [Message(f"{n}-0", f"T{n % 20}", n // 20, pushed_ns=WALL, kind="b") for n in range(40)]
    lanes = split((FAILING, SLOW), 3)
    assert len({one.keys for one in lanes}) == 6
    for name in ("failing", "slow"):
        found = [message for one in lanes if one.name == name for message in one.wanted(messages)]
        assert sorted(int(message.message_id[:-2]) for message in found) == list(range(40))
    tickets = [{message.ticket for message in one.wanted(messages)} for one in lanes if one.name == "slow"]
    assert all(tickets)
    assert not tickets[0] & tickets[1]


def test_the_rows_of_another_partition_are_not_a_lanes_own() -> None:
    [first, second] = split((SLOW,), 2)
    executions = [ran("slow/", 1, 10)[0]]
    [here] = [one for one in (first, second) if one.has("T")]
    [elsewhere] = [one for one in (first, second) if not one.has("T")]
    assert [row.message_id for row in here.own([replace(executions[0], message_id="2-0@p1")])] == ["2-0"]
    assert elsewhere.own(executions) == []


def test_a_run_has_as_many_partitions_as_the_seed_draws() -> None:
    assert {draw_partitions(seed) for seed in range(30)} == {1, 2, 3}
    assert environment(split(ONE, 2)) == {"CHAOS_PARTITIONS": "2"}
    assert environment(split((FAILING, SLOW), 2)).keys() > {"CHAOS_PARTITIONS", "CHAOS_SUBSCRIPTIONS"}
