"""The audit of a lane on a server, also of one that moves on while it is read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.client import Pipeline

from bridge.audit import pages
from bridge.audit.audit import NO_GROUP, Audit, Check, audit
from bridge.routing.connection import with_raw_replies
from bridge.routing.history import What
from bridge.stack.embedded import EmbeddedServer
from tests.scripts.world import snapshot
from tests.unit.audit.true_history import Event, Happening, TrueLane, happenings
from tests.unit.audit.written_history import WrittenLane

_ONE_DONE: list[Happening] = [(Event.DISPATCH, 0, 0), (Event.DONE, 0, 0)]
#: Each ticket has successes, a retry, a death and its replay, a lost consumer, and a returned run.
EVENTFUL: list[Happening] = [
    (event, ticket, number)
    for ticket in range(3)
    for event, number in [
        *[(Event.PUSH, 0)] * 8,
        *[(Event.DISPATCH, 2), (Event.DONE, 1), (Event.FAIL, 0), (Event.DISPATCH, 0), (Event.DIE, 0)],
        *[(Event.DISPATCH, 1), (Event.CONSUMER_FREEZES, 1), (Event.REPLAY, 0), (Event.DISPATCH, 2), (Event.DONE, 0)],
        *[(Event.RETURN, 0), (Event.WAKE, 0), (Event.PUSH_BROKEN, 0), (Event.DISPATCH, 4), (Event.DONE, 4)],
        *[(Event.PUSH, 0)] * 3,
    ]
]


@pytest.fixture
def redis(server: EmbeddedServer) -> Iterator[Redis]:
    with server.client(protocol=2) as client:
        yield client


def test_a_lane_at_rest_is_clean_and_complete(redis: Redis) -> None:
    lane = TrueLane().play(EVENTFUL).finish()
    written = WrittenLane(redis, lane)
    written.finish()

    verdict = audit(redis, written.keys)

    assert verdict.examples == ()
    assert verdict.ok
    assert verdict.coverage.complete
    assert verdict.coverage.from_id == lane.entries[0][0]
    assert not verdict.coverage.older
    assert verdict.deliveries == sum(map(len, lane.steps))
    assert verdict.undone == 0
    assert verdict.rows[What.STALE] == 3
    assert verdict.repeats > 0


def test_undone_messages_are_counted_and_no_violation(redis: Redis) -> None:
    lane = TrueLane().play(EVENTFUL)
    written = WrittenLane(redis, lane)
    written.finish()

    verdict = audit(redis, written.keys, since="0")

    assert verdict.ok
    assert verdict.undone == len(lane.pending) > 0


def test_an_audit_changes_nothing(redis: Redis) -> None:
    written = WrittenLane(redis, TrueLane().play(EVENTFUL))
    written.finish()
    before = snapshot(redis)

    audit(redis, written.keys)

    assert snapshot(redis) == before


@pytest.mark.parametrize("left", [1, 5, 20])
def test_the_rest_of_a_capped_history_is_audited_and_its_start_is_named(redis: Redis, left: int) -> None:
    lane = TrueLane().play(EVENTFUL).finish()
    written = WrittenLane(redis, lane, cap=left)
    written.finish()

    verdict = audit(redis, written.keys, clock_skew_ms=0)

    assert verdict.ok
    assert not verdict.coverage.complete
    assert verdict.coverage.older
    assert verdict.coverage.from_id == f"{lane.steps[-left][0].written_ms + 1}-0"


def test_entries_from_before_the_bridge_are_not_missed_unless_they_are_its_own(redis: Redis) -> None:
    """A group that was used before has acknowledged entries without a history."""
    lane = TrueLane().play(EVENTFUL).finish()
    lane.entries[:0] = [(f"1-{n + 1}", "old") for n in range(3)]
    lane.marks = [mark + 3 for mark in lane.marks]
    written = WrittenLane(redis, lane)
    written.finish()
    redis.xack(written.keys.stream, written.keys.group, "1-1", "1-2", "1-3")

    assert audit(redis, written.keys).ok
    assert audit(redis, written.keys).coverage.older
    assert audit(redis, written.keys, since="0").counts[Check.LOST] == 3


def test_an_entry_that_vanished_from_the_pending_list_is_lost(redis: Redis) -> None:
    lane = TrueLane().play(EVENTFUL)
    written = WrittenLane(redis, lane)
    written.finish()
    gone = lane.pending[0]
    redis.xack(written.keys.stream, written.keys.group, gone)

    verdict = audit(redis, written.keys)

    assert [(found.check, found.message_id) for found in verdict.examples] == [(Check.LOST, gone)]
    assert audit(redis, written.keys, ticket="elsewhere").clean, "of another ticket"


def test_a_done_message_that_is_still_pending_is_found(redis: Redis) -> None:
    lane = TrueLane().play([(Event.PUSH, 0, 0), (Event.DISPATCH, 0, 0), (Event.DONE, 0, 0)])
    written = WrittenLane(redis, TrueLane())
    written._lane = lane
    written._read(1)
    written.write(lane.steps[0], acknowledge=False)

    verdict = audit(redis, written.keys)

    assert [(found.check, found.message_id) for found in verdict.examples] == [(Check.DISAGREEING, lane.entries[0][0])]
    assert [found.ticket for found in audit(redis, written.keys, ticket="T0").examples] == ["T0"]
    assert audit(redis, written.keys, ticket="elsewhere").clean, "of another ticket"


def test_a_record_that_still_names_a_done_message_is_found(redis: Redis) -> None:
    lane = TrueLane().play(EVENTFUL).finish()
    written = WrittenLane(redis, lane)
    written.finish()
    done = lane.entries[0][0]
    redis.hset(written.keys.tickets, "T0", f'[5,1,"w1@a","i",1,["{done}"],1,""]')

    verdict = audit(redis, written.keys)

    assert [(f.check, f.ticket, f.message_id) for f in verdict.examples] == [(Check.DISAGREEING, "T0", done)]


@pytest.mark.parametrize(
    ("fields", "ticket"),
    [
        ({"ticket_id": "T42"}, "T42"),
        ({"field:ticket_id": "T42"}, "T42"),
        # Its ticket cannot be known, so it may be of any.
        ({}, ""),
    ],
)
def test_a_dead_letter_without_a_row_is_found(redis: Redis, fields: dict[Any, Any], ticket: str) -> None:
    lane = TrueLane().play(EVENTFUL).finish()
    written = WrittenLane(redis, lane)
    written.finish()
    message_id = lane.entries[1][0]
    redis.xadd(written.keys.dead, {"message_id": message_id, **fields})

    for only in (None, "T42"):
        verdict = audit(redis, written.keys, ticket=only)
        found = [(found.check, found.ticket, found.message_id) for found in verdict.examples]
        assert found == [(Check.DISAGREEING, ticket, message_id)]
    assert audit(redis, written.keys, ticket="elsewhere").clean == bool(ticket)


def test_a_dead_letter_that_was_dropped_is_not_missed(redis: Redis) -> None:
    written = WrittenLane(redis, TrueLane().play(EVENTFUL).finish())
    written.finish()
    redis.delete(written.keys.dead)

    assert audit(redis, written.keys).ok


def test_an_unreadable_row_is_reported(redis: Redis) -> None:
    written = WrittenLane(redis, TrueLane().play(EVENTFUL).finish())
    written.finish()
    redis.xadd(written.keys.history, {"d": '[["1-1"]]'})
    redis.xadd(written.keys.history, {"x": "y"})

    verdict = audit(redis, written.keys)

    assert verdict.counts[Check.DISAGREEING] == 2
    assert "cannot be read" in verdict.examples[0].text


def test_without_a_group_what_is_undone_is_not_judged(redis: Redis) -> None:
    written = WrittenLane(redis, TrueLane().play(EVENTFUL))
    written.finish()
    redis.xgroup_destroy(written.keys.stream, written.keys.group)

    verdict = audit(redis, written.keys)

    assert verdict.ok
    assert verdict.notes == (NO_GROUP,)


def test_a_group_that_is_there_again_is_compared_and_no_note_stays(redis: Redis) -> None:
    written = WrittenLane(redis, TrueLane().play(EVENTFUL).finish())
    written.finish()
    redis.xgroup_destroy(written.keys.stream, written.keys.group)
    following = Audit(redis, written.keys)
    assert following.run().notes == (NO_GROUP,)

    redis.xgroup_create(written.keys.stream, written.keys.group, "$")

    assert following.run().notes == ()


def test_while_the_leader_makes_the_group_again_nothing_counts_as_lost(redis: Redis) -> None:
    """The group's position is restored after the undone messages are pending again, and not before."""
    written = WrittenLane(redis, TrueLane().play(EVENTFUL))
    written.finish()
    redis.xgroup_destroy(written.keys.stream, written.keys.group)
    redis.xgroup_create(written.keys.stream, written.keys.group, "0")

    assert audit(redis, written.keys, since="0").examples == ()


def test_an_empty_lane_is_nothing_to_audit(redis: Redis) -> None:
    verdict = audit(redis, WrittenLane(redis, TrueLane()).keys)
    assert verdict.nothing
    assert not verdict.ok


def test_without_a_history_the_undone_messages_are_the_pending_ones(redis: Redis) -> None:
    keys = WrittenLane(redis, TrueLane()).keys
    for _ in range(3):
        redis.xadd(keys.stream, {"ticket_id": "T"})
    redis.xreadgroup(keys.group, "master", {keys.stream: ">"}, count=2)
    verdict = audit(redis, keys)
    assert (verdict.undone, verdict.ok) == (2, False)


def test_entries_need_not_be_utf8(redis: Redis) -> None:
    written = WrittenLane(redis, TrueLane().play([(Event.PUSH, 0, 0), (Event.DISPATCH, 0, 0), (Event.DONE, 0, 0)]))
    written.finish()
    id_ = redis.execute_command("XADD", written.keys.stream, "*", "ticket_id", b"\xff", b"\xfe", b"\xff").decode()
    redis.xreadgroup(written.keys.group, "master", {written.keys.stream: ">"})
    redis.xack(written.keys.stream, written.keys.group, id_)

    verdict = audit(redis, written.keys, since="0")

    assert [(found.check, found.message_id) for found in verdict.examples] == [(Check.LOST, id_)]
    with pytest.raises(ValueError, match="decode_responses"):
        audit(Redis(decode_responses=True), written.keys)


# -- while the lane moves on -----------------------------------------------------------------------------------------


class _Interrupted(Redis):
    """A client that calls a function before each of its commands."""

    between: Callable[[], None]

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self.between()
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        pipe = super().pipeline(transaction, shard_hint)
        execute = pipe.execute
        between = self.between

        def interrupted(raise_on_error: bool = True) -> list[Any]:
            between()
            return execute(raise_on_error)

        pipe.execute = interrupted  # type: ignore[method-assign]
        return pipe


def _interrupt(
    monkeypatch: pytest.MonkeyPatch, redis: Redis, before: str, then: Callable[[], object], *, nth: int = 1
) -> None:
    """Calls a function once, before the audit's ``nth`` command with this beginning."""
    seen = 0
    interrupted = with_raw_replies(_Interrupted(connection_pool=redis.connection_pool))
    interrupted.between = lambda: None
    execute = interrupted.execute_command

    def watched(*args: Any, **options: Any) -> Any:
        nonlocal seen
        if " ".join(map(str, args)).startswith(before):
            seen += 1
            if seen == nth:
                then()
        return execute(*args, **options)

    monkeypatch.setattr(interrupted, "execute_command", watched)
    monkeypatch.setattr(pages, "raw_client", lambda _: interrupted)


def test_a_late_row_does_not_replace_a_dropped_one(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are as many rows as were counted, and the oldest is missing."""
    lane = TrueLane().play([(Event.PUSH, 0, 0), (Event.DISPATCH, 0, 0), (Event.DONE, 0, 0)] * 6)
    written = WrittenLane(redis, lane, ahead=6)
    for _ in range(5):
        written.go_on()
    redis.xtrim(written.keys.history, maxlen=4, approximate=False)
    # The second: between the counters and the rows.
    _interrupt(monkeypatch, redis, "XINFO GROUPS", written.go_on, nth=2)

    verdict = Audit(redis, written.keys, clock_skew_ms=0, since="0").run()

    assert verdict.examples == ()
    assert not verdict.coverage.complete


#: (what happens, how many steps the history drops): no row of a message that is done or dead is among them.
_CUT_UNCOUNTED: list[tuple[list[Happening], int]] = [
    # Others overtake the delayed message. The history forgets that it is delayed.
    ([(Event.PUSH_DELAYED, 0, 5), (Event.PUSH, 0, 0), (Event.DISPATCH, 0, 0), (Event.DONE, 0, 0)], 1),
    # The oldest message is pending. The history forgets what happened to younger ones.
    ([(Event.PUSH, 1, 0), (Event.PUSH_UNWANTED, 0, 0), (Event.PUSH, 0, 0), *_ONE_DONE], 1),
    ([(Event.PUSH, 1, 0), (Event.PUSH_SKIPPED, 0, 0), (Event.PUSH, 0, 0), *_ONE_DONE], 1),
    ([(Event.PUSH, 1, 0), (Event.PUSH_DELAYED, 0, 5), (Event.CANCEL, 0, 0), (Event.PUSH, 0, 0), *_ONE_DONE], 2),
    (
        [
            (Event.PUSH, 1, 0),
            (Event.PUSH, 0, 0),
            (Event.DISPATCH, 0, 0),
            (Event.DROP, 0, 0),
            (Event.PUSH, 0, 0),
            *_ONE_DONE,
        ],
        1,
    ),
]


@pytest.mark.parametrize(
    ("happened", "dropped"), _CUT_UNCOUNTED, ids=["delayed", "left out", "skipped", "cancelled", "dropped"]
)
def test_a_history_that_dropped_no_row_of_a_done_message_was_cut_all_the_same(
    redis: Redis, server: EmbeddedServer, happened: list[Happening], dropped: int
) -> None:
    lane = TrueLane().play(happened)
    written = WrittenLane(redis, lane)
    written.finish()
    redis.xtrim(written.keys.history, maxlen=len(lane.steps) - dropped, approximate=False)

    verdict = audit(redis, written.keys, clock_skew_ms=0)

    assert verdict.examples == ()
    # A server before 7.0 does not say that rows are gone, and no counter has the delayed ones.
    counted = happened[0][0] is not Event.PUSH_DELAYED
    assert verdict.coverage.complete == (not counted and pages.is_whole(redis, written.keys.history) is None)


@pytest.mark.parametrize("before", [0, 3])
def test_a_history_that_was_off_while_a_message_failed_is_no_violation(redis: Redis, before: int) -> None:
    """At its beginning, or after some messages. The lane counts the failure, and no row of it was written."""
    failed: list[Happening] = [(Event.PUSH, 1, 0), (Event.DISPATCH, 1, 0), (Event.FAIL, 1, 0)]
    done: list[Happening] = [(Event.DISPATCH, 1, 0), (Event.DONE, 1, 0)]
    lane = TrueLane().play([*[(Event.PUSH, 0, 0), *_ONE_DONE] * before, *failed, *done])
    written = WrittenLane(redis, lane)
    for step, rows in enumerate(lane.steps):
        if step == before:
            redis.hincrby(written.keys.counts, "retried", len(rows))
            written._step += 1
        else:
            written.go_on()
    written.finish()

    verdict = audit(redis, written.keys, clock_skew_ms=0)

    assert verdict.examples == ()
    assert verdict.coverage.complete


def test_failures_alone_that_were_dropped_are_no_miscount(redis: Redis) -> None:
    """All done and dead rows are there, so the counters do not show that one is missing."""
    lane = TrueLane().play([(Event.PUSH, 0, 0), (Event.DISPATCH, 0, 0), (Event.FAIL, 0, 0)]).finish()
    written = WrittenLane(redis, lane, cap=1)
    written.finish()

    assert audit(redis, written.keys, since="0").examples == ()


def test_a_message_that_is_replayed_behind_the_audits_back_may_be_pending(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = [(Event.PUSH, 0, 0), (Event.DISPATCH, 0, 0), (Event.DIE, 0, 0), (Event.REPLAY, 0, 0)]
    written = WrittenLane(redis, TrueLane().play(happened))
    written.go_on()
    # The first is of the survey.
    _interrupt(monkeypatch, redis, f"XPENDING {written.keys.stream} {written.keys.group} - + 1000", written.go_on)

    verdict = Audit(redis, written.keys, since="0").run()

    assert verdict.examples == ()
    assert verdict.rows[What.REPLAYED] == 1


#: The second message begins before the replay of the first, in a row that a cap of 8 drops.
_BEGAN_UNSEEN = [
    (Event.PUSH, 0, 0),
    (Event.DISPATCH, 0, 0),
    (Event.CONSUMER_FREEZES, 0, 0),
    (Event.WAKE, 0, 0),
    (Event.REPLAY, 0, 0),
    (Event.PUSH, 0, 2),
    (Event.DISPATCH, 0, 0),
    (Event.FAIL, 0, 0),
    (Event.DISPATCH, 0, 0),
    (Event.DIE, 0, 0),
]


@pytest.mark.parametrize("examples", [120, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_a_lane_that_moves_on_between_any_two_commands_of_the_audit_is_clean(
    valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, examples: int
) -> None:
    @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
    @example(happened=_BEGAN_UNSEEN, seed=1, cap=8, already=0.0, ahead=0)
    @example(happened=_BEGAN_UNSEEN, seed=0, cap=8, already=1.0, ahead=0)
    @given(
        happened=happenings(60),
        seed=st.integers(0, 2**32),
        cap=st.sampled_from([None, None, 3, 8]),
        already=st.floats(0, 1),
        ahead=st.integers(0, 5),
    )
    def is_clean(happened: list[Happening], seed: int, cap: int | None, already: float, ahead: int) -> None:
        dice = random.Random(seed)
        lane = TrueLane().play(happened * 3)
        monkeypatch.setattr(pages, "HISTORY_PAGE", dice.choice([1, 2, 100]))
        monkeypatch.setattr(pages, "PENDING_PAGE", dice.choice([1, 2, 1000]))
        with valkey.client(protocol=2) as mover, valkey.client(protocol=2) as reader:
            mover.flushall()
            written = WrittenLane(mover, lane, cap=cap, ahead=ahead)
            for _ in range(int(already * len(lane.steps))):
                written.go_on()
            pace = dice.choice([[0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 8], [0, 1, 1, 2], [0] * 20 + [30]])

            def between() -> None:
                for _ in range(dice.choice(pace)):
                    written.go_on()

            interrupted = with_raw_replies(_Interrupted(connection_pool=reader.connection_pool))
            interrupted.between = between
            monkeypatch.setattr(pages, "raw_client", lambda _: interrupted)
            auditing = Audit(reader, written.keys, clock_skew_ms=0, since="0")
            assert auditing.run().examples == ()
            written.finish()
            auditing.compare()
            verdict = auditing.result()
            assert verdict.examples == ()
            if cap is None and lane.steps:
                assert verdict.coverage.complete
                assert verdict.undone == len(lane.pending)
                assert verdict.deliveries == sum(map(len, lane.steps))

    is_clean()
