"""A run with versions: what is judged over both, how the deploy goes, and that the producer knows what is where."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from bridge.routing.partitions import partition_of
from tests.chaos import chains, checks
from tests.chaos.facts import Effect, Evidence, Execution, Letter, Message, Notes, Rest
from tests.chaos.feeder import Feeder, Planned
from tests.chaos.subscriptions import ONE, STREAM, Subscription, evidence_of, split
from tests.chaos.versions import FOLLOWS, Deploy, Producers, draw_versions, follows, in_versions
from tests.chaos.versions import chains as chains_of

MS = 1_000_000
WALL_MS = 1_700_000_000_000
LANES = in_versions(ONE, "both")
[(OLDER, NEWER)] = chains_of(LANES)


def message(version: str, at: int, n: int) -> Message:
    """Pushed ``at`` ms."""
    return Message(f"{WALL_MS + at}-0", "T", n, pushed_ns=(WALL_MS + at) * MS, version=version)


def ran(version: str, pushed: int, start: int, end: int) -> tuple[Execution, Effect]:
    """An execution from ``start`` to ``end`` of what was pushed at ``pushed``, all in ms, and its effect."""
    id_ = f"{version}:{WALL_MS + pushed}-0"
    fence = (WALL_MS + start) * 1000
    execution = Execution(
        ticket="T",
        message_id=id_,
        n=0,
        attempt=1,
        fence=fence,
        consumer="w1",
        pool="prefork",
        pid=1,
        parent=0,
        start_ns=start * MS,
        wall_ns=(WALL_MS + start) * MS,
        seen_ns=end * MS,
        end_ns=end * MS,
        outcome="done",
    )
    return execution, Effect("T", id_, 0, fence, WALL_MS + end + 1)


def violations(
    messages: list[Message], rows: list[tuple[Execution, Effect]], letters: list[Letter] | None = None
) -> set[str]:
    """What the checks over both versions find. Effects are applied in the order of ``rows``."""
    executions = [row[0] for row in rows]
    effects = [replace(row[1], place=place) for place, row in enumerate(rows)]
    judged = [
        evidence_of(lane, messages, executions, effects, letters or [], Rest(), Notes(), 5, struck=False)
        for lane in (OLDER, NEWER)
    ]
    return {violation.invariant for violation in chains.check_chain(*judged)}


PUSHED = [message("v1", 0, 0), message("v2", 10, 1), message("v1", 20, 2), message("v2", 30, 3)]
IN_ORDER = [ran("v1", 0, 40, 50), ran("v1", 20, 60, 70), ran("v2", 10, 80, 90), ran("v2", 30, 100, 110)]


def test_all_older_ones_before_the_first_newer_one_are_as_they_should_be() -> None:
    assert violations(PUSHED, IN_ORDER) == set()


def test_a_newer_one_before_an_older_one_that_was_there_is_found() -> None:
    swapped = [ran("v1", 0, 40, 50), ran("v2", 10, 60, 70), ran("v1", 20, 80, 90), ran("v2", 30, 100, 110)]
    assert violations(PUSHED, swapped) == {chains.OVERTAKEN}


def test_a_newer_one_before_an_older_one_that_came_later_is_no_violation() -> None:
    late = [message("v2", 10, 0), message("v1", 50, 1)]
    assert violations(late, [ran("v2", 10, 20, 30), ran("v1", 50, 60, 70)]) == set()


def test_an_older_one_that_was_never_settled_is_found() -> None:
    assert violations(PUSHED, IN_ORDER[1:]) == {chains.OVERTAKEN}


def test_a_dead_older_one_holds_nothing_up_from_then_on() -> None:
    for dead_at, found in ((75, set[str]()), (85, {chains.OVERTAKEN})):
        letter = Letter(f"{WALL_MS}-0", "T", 5, "why", WALL_MS + dead_at)
        older = Evidence(PUSHED[:1], [], [], [letter], Rest(), Notes(), 5)
        newer = Evidence([], [ran("v2", 10, 80, 90)[0]], [], [], Rest(), Notes(), 5)
        assert {violation.invariant for violation in chains.check_chain(older, newer)} == found


def test_executions_of_two_versions_that_overlap_are_found() -> None:
    late = [message("v2", 10, 0), message("v1", 50, 1)]
    assert violations(late, [ran("v2", 10, 20, 80), ran("v1", 50, 60, 70)]) >= {checks.OVERLAP}


def test_fences_grow_over_both_versions() -> None:
    late = [message("v2", 10, 0), message("v1", 50, 1)]
    [execution, effect] = ran("v1", 50, 60, 70)
    small = (replace(execution, fence=7), replace(effect, fence=7))
    assert violations(late, [ran("v2", 10, 20, 30), small]) == {checks.FENCE, checks.STALE_EFFECT}


def test_each_lane_has_the_messages_and_the_rows_of_its_version() -> None:
    assert [found.message_id for found in OLDER.wanted(PUSHED)] == [PUSHED[0].message_id, PUSHED[2].message_id]
    assert [found.n for found in NEWER.wanted(PUSHED)] == [0, 1]
    assert OLDER.own_id("v1:1-0@p1") == "1-0"
    assert (OLDER.own_id("v2:1-0"), OLDER.own_id("1-0"), ONE[0].own_id("v1:1-0")) == ("", "", "")
    assert ONE[0].own_id("1-0@p1") == "1-0"


def test_every_subscription_and_partition_has_a_chain() -> None:
    lanes = split((Subscription("a", label="a/"), Subscription("b", label="b/")), 2)
    assert in_versions(lanes, "one") == lanes
    found = in_versions(lanes, "deploy")
    assert found[0].version == "v1"
    assert len({lane.keys for lane in found}) == 8
    assert {(a.name, a.partition) for a, _ in chains_of(found)} == {(lane.name, lane.partition) for lane in lanes}
    assert all((a.name, a.partition) == (b.name, b.partition) for a, b in chains_of(found))
    assert json.loads(follows(found)[FOLLOWS])[0]["tasks"].keys() == {"a", "b"}
    assert follows(lanes) == {}


def test_the_draw_has_each_kind_of_run() -> None:
    assert {draw_versions(seed) for seed in range(30)} == {"one", "both", "deploy"}
    assert {in_versions(ONE, "both", seed)[0].version for seed in range(30)} == {"v1", "v2"}


class FakeSeat:
    """As much of a seat as the deploy uses."""

    def __init__(self, name: str) -> None:
        self.name, self.idle, self.held, self.leaving = name, True, False, False
        self.stopped = 0

    def stop(self, _back_in_s: float) -> None:
        self.stopped += 1
        self.idle = False


def test_the_deploy_stops_one_node_after_the_other_workers_first_and_then_come_the_producers() -> None:
    changed: list[str] = []
    producers = Producers(1, "deploy")
    change: Any = lambda seat: changed.append(seat.name)  # noqa: E731
    deploy = Deploy(change, producers)
    worker, master = FakeSeat("w"), FakeSeat("m")
    seats: Any = ([worker], [master])
    deploy.tick(lambda _: True)
    assert not changed
    deploy.begin(*seats, producers_first=False)
    deploy.tick(lambda _: False)
    assert not changed, "it may not be stopped yet"
    deploy.tick(lambda _: True)
    deploy.tick(lambda _: True)
    assert (changed, worker.stopped, master.stopped) == (["w"], 1, 0), "the worker is not back yet"
    worker.idle, master.held = True, True
    deploy.tick(lambda _: True)
    assert changed == ["w"], "a frozen master is waited for"
    master.held = False
    deploy.tick(lambda _: True)
    assert (changed, master.stopped) == (["w", "m"], 1)
    assert not _over(deploy)
    assert {producers.version_of("T", n) for n in range(20)} == {"v1"}
    master.idle = True
    for _ in range(2):
        deploy.tick(lambda _: True)
    assert _over(deploy)
    assert {producers.version_of("T", n) for n in range(20)} == {"v1", "v2"}


def _over(deploy: Deploy) -> bool:
    return deploy.over


class FakeRedis:
    """Streams in memory. A pipeline breaks after ``last`` commands, if that is set."""

    def __init__(self) -> None:
        self.streams: dict[str, list[tuple[str, dict[str, str]]]] = defaultdict(list)
        self.last: int | None = None
        self._commands: list[tuple[str, dict[str, str]]] = []

    def pipeline(self, **_: object) -> FakeRedis:
        return self

    def __enter__(self) -> FakeRedis:
        self._commands = []
        return self

    def __exit__(self, *_: object) -> None:
        return

    def xadd(self, stream: str, fields: dict[str, str]) -> None:
        self._commands.append((stream, fields))

    def execute(self) -> list[str]:
        ids = []
        for stream, fields in self._commands[: self.last]:
            # The ids of two streams may be equal.
            ids.append(f"{len(self.streams[stream]) + 1}-0")
            self.streams[stream].append((ids[-1], fields))
        if self.last is not None:
            raise RedisConnectionError("cut off")
        return ids

    def xrange(self, stream: str, first: str, _last: str) -> list[tuple[str, dict[str, str]]]:
        after = int(first.removeprefix("(").partition("-")[0])
        return [(id_, fields) for id_, fields in self.streams[stream] if int(id_.partition("-")[0]) > after]


@pytest.mark.parametrize("arrived", range(7))
def test_what_arrived_of_a_batch_in_doubt_is_known_whatever_its_version(arrived: int) -> None:
    redis: Any = FakeRedis()

    def source(counts: dict[str, int]) -> Planned:
        ticket = f"T{sum(counts.values()) % 2}"
        n = counts.get(ticket, 0)
        return ticket, "", {"n": n, "v": ("v2", "v1", "v1", "v2")[n % 4]}, False

    feeder = Feeder(redis, source, 2, ["v1", "v2"])
    feeder.push(2)
    redis.last = arrived
    assert feeder.push(6) == 0
    redis.last = None
    assert feeder.settle()
    assert len(feeder.messages) == 2 + arrived
    assert feeder.push(6) == 6
    for ticket in ("T0", "T1"):
        pushed = [found for found in feeder.messages if found.ticket == ticket]
        assert [found.n for found in pushed] == list(range(len(pushed)))
    for found in feeder.messages:
        name = f"{STREAM if found.version == 'v1' else f'{STREAM}:v2'}:p{partition_of(found.ticket, 2)}"
        fields = dict(redis.streams[name])[found.message_id]
        assert json.loads(fields["payload"]) == {"n": found.n, "v": found.version}
