"""advance.lua and follow.lua, where a stream has other versions: what must wait is not dispatched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import orjson
import pytest

import bridge.leader.step.dropped_versions
from bridge.leader.step.dropped_versions import VERSIONS_S, WARN_S, DroppedVersions
from bridge.routing.batch import Batch, OlderLane
from bridge.routing.errors import ConfigurationError, DispatchRefused, NotLeading
from bridge.routing.keys import LaneKeys, follows_key, newer_key
from bridge.routing.records import AWAITING, PARKED, record, tail
from bridge.routing.retiring import retire
from bridge.routing.return_codes import ReturnCode
from bridge.routing.transitions import Leadership, advance
from bridge.routing.versions import (
    check_versions,
    dropped_versions,
    follow,
    leave_chain,
    newer_versions,
    older_versions,
    refuse_left_behind,
)
from tests.scripts.keeping import Clock
from tests.scripts.world import LEASE_MS, MASTER, OPENING, TOKEN, World

pytestmark = pytest.mark.scripts

OLDER, NEWER = LaneKeys("tickets:v0", "bridge"), LaneKeys("tickets:v2", "bridge")
THEIR_TOKEN = "3 master@here"


def batch_of(world: World, *tickets: str, read_to: str = "5-0") -> Batch:
    """A dispatch of a message of each ticket, in a lane with an older and a newer version."""
    batch = Batch(older=[OlderLane(OLDER, THEIR_TOKEN, read_to)], newer=[NEWER], contested=list(tickets))
    with world.at_once():
        runs = [(ticket, world.pushed(ticket)) for ticket in tickets]
    world.dispatch(batch, "w1@a", runs)
    world.client.set(OLDER.leader, THEIR_TOKEN, px=LEASE_MS)
    return batch


def older_entry(world: World, id_: str, *fields: str) -> None:
    words: Any = fields
    world.client.execute_command("XADD", OLDER.stream, id_, *words)


def assert_refused(world: World, batch: Batch) -> DispatchRefused:
    before = world.snapshot()
    with pytest.raises(DispatchRefused) as refused:
        advance(world.client, world.lead, OPENING, batch)
    assert world.snapshot() == before
    return refused.value


def test_what_no_other_version_has_is_dispatched(fresh: World) -> None:
    batch = batch_of(fresh, "A", "B")
    older_entry(fresh, "5-0", "ticket_id", "A")
    older_entry(fresh, "6-0", "ticket_id", "C")
    older_entry(fresh, "7-0", "no", "ticket")
    for fence in (AWAITING, PARKED):
        fresh.client.hset(NEWER.tickets, {AWAITING: "A", PARKED: "B"}[fence], record(fence, tail("", "", 1, [], 1)))
    assert advance(fresh.client, fresh.lead, OPENING, batch).base
    assert set(fresh.client.hkeys(fresh.keys.tickets)) == {b"A", b"B"}


@pytest.mark.parametrize("before", [0, 15, 16, 40, 400])
def test_a_ticket_with_an_unread_message_in_an_older_version_waits(before: int, fresh: World) -> None:
    batch = batch_of(fresh, "A", "B", "C")
    older_entry(fresh, "5-0", "ticket_id", "C")
    for n in range(before):
        older_entry(fresh, f"6-{n}", "ticket_id", "X")
    older_entry(fresh, "7-0", "payload", "{}", "ticket_id", "B")
    refused = assert_refused(fresh, batch)
    assert (refused.tickets, refused.behind) == (("B",), "")


@pytest.mark.parametrize("large", [False, True])
def test_an_older_version_with_much_unread_must_be_read_on_first(large: bool, fresh: World) -> None:
    batch = batch_of(fresh, "A")
    for n in range(64 if large else 600):
        older_entry(fresh, f"6-{n}", "ticket_id", "X", "payload", "x" * (200_000 if large else 1))
    refused = assert_refused(fresh, batch)
    assert (refused.tickets, refused.behind) == ((), OLDER.stream)


def test_nothing_is_dispatched_when_another_master_leads_an_older_version(fresh: World) -> None:
    batch = batch_of(fresh, "A")
    for token in ("4 another", None):
        fresh.client.delete(OLDER.leader)
        if token:
            fresh.client.set(OLDER.leader, token, px=LEASE_MS)
        before = fresh.snapshot()
        with pytest.raises(NotLeading, match=OLDER.stream):
            advance(fresh.client, fresh.lead, OPENING, batch)
        assert fresh.snapshot() == before


def test_a_ticket_in_flight_in_a_newer_version_waits(fresh: World) -> None:
    names = [f"T{n}" for n in range(1001)]
    batch = batch_of(fresh, *names)
    for name in ("T0", "T999", "T1000"):
        fresh.client.hset(NEWER.tickets, name, record(99, tail("w", "life", 1, ["1-0"], 1)))
    assert assert_refused(fresh, batch).tickets == ("T0", "T999", "T1000")


def test_a_batch_that_dispatches_no_ticket_asks_nobody(fresh: World) -> None:
    batch = Batch(counts={"done": 1}, older=[OlderLane(OLDER, "9 nobody", "0-0")], newer=[NEWER])
    advance(fresh.client, fresh.lead, OPENING, batch)
    assert fresh.client.hget(fresh.keys.counts, "done") == b"1"


@pytest.mark.parametrize("which", [OLDER, NEWER])
def test_fences_grow_over_all_versions(which: LaneKeys, fresh: World) -> None:
    ahead = (fresh.client.time()[0] + 600) * 1_000_000
    fresh.client.set(which.fence, ahead)
    assert advance(fresh.client, fresh.lead, OPENING, batch_of(fresh, "A")).base == ahead + 1


def test_a_stream_notes_what_it_follows(fresh: World) -> None:
    follow(fresh.client, fresh.lead, [OLDER.stream, NEWER.stream])
    follow(fresh.client, fresh.lead, [OLDER.stream, NEWER.stream])
    assert older_versions(fresh.client, fresh.keys.stream) == (OLDER.stream, NEWER.stream)
    assert (
        newer_versions(fresh.client, OLDER.stream) == newer_versions(fresh.client, NEWER.stream) == {fresh.keys.stream}
    )
    check_versions(fresh.client, fresh.keys.stream, [OLDER.stream, NEWER.stream])


def test_a_circle_changes_nothing(fresh: World) -> None:
    fresh.client.sadd(newer_key(fresh.keys.stream), NEWER.stream)
    fresh.client.set(follows_key(NEWER.stream), orjson.dumps([fresh.keys.stream]))
    before = fresh.snapshot()
    with pytest.raises(ConfigurationError, match="cannot follow each other"):
        follow(fresh.client, fresh.lead, [OLDER.stream, NEWER.stream])
    with pytest.raises(ConfigurationError, match="cannot follow each other"):
        check_versions(fresh.client, fresh.keys.stream, [OLDER.stream, NEWER.stream])
    fresh.client.delete(newer_key(fresh.keys.stream))
    with pytest.raises(ConfigurationError, match="cannot follow each other"):
        check_versions(fresh.client, fresh.keys.stream, [OLDER.stream, NEWER.stream])
    fresh.client.sadd(newer_key(fresh.keys.stream), NEWER.stream)
    assert fresh.snapshot() == before


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_circle_over_other_streams_changes_nothing(length: int, fresh: World) -> None:
    stream = fresh.keys.stream
    chain = [f"v{n}" for n in range(length)]
    # Given streams of which each follows the one before, and a circle that has nothing to do with them
    for older, newer in [*pairwise([stream, *chain]), ("x", "y"), ("y", "x"), ("y", chain[-1])]:
        known = older_versions(fresh.client, newer)
        fresh.client.set(follows_key(newer), orjson.dumps([*known, older]))
    before = fresh.snapshot()
    for names in ([chain[-1]], ["y", chain[-1]]):
        with pytest.raises(ConfigurationError, match="cannot follow each other"):
            check_versions(fresh.client, stream, names)
        with pytest.raises(ConfigurationError, match="cannot follow each other"):
            follow(fresh.client, fresh.lead, names)
    assert fresh.snapshot() == before
    fresh.client.delete(follows_key(chain[0]))
    check_versions(fresh.client, stream, [chain[-1]])
    follow(fresh.client, fresh.lead, [chain[-1]])
    fresh.client.flushdb()


#: The script takes them for lists of streams that there are not.
TAKEN = ("[1]", "{}", b'["\xff"]')


@pytest.mark.parametrize("text", ["", "notjson", "5", "null", '"v0"', '[["v0"]]', '["v0",null]', b"\xff", *TAKEN])
@pytest.mark.parametrize("whose", ["own", "older", "over another"])
def test_what_a_stream_follows_and_cannot_be_read_is_one_line_with_the_key(
    whose: str, text: str | bytes, fresh: World
) -> None:
    stream = {"own": fresh.keys.stream, "older": OLDER.stream, "over another": "v0"}[whose]
    if whose == "over another":
        fresh.client.set(follows_key(OLDER.stream), orjson.dumps([stream]))
    fresh.client.set(follows_key(stream), text)
    before = fresh.snapshot()
    refused = pytest.raises(ConfigurationError, match=f"the key {re.escape(follows_key(stream))} cannot be read")
    with refused:
        older_versions(fresh.client, stream)
    with refused:
        check_versions(fresh.client, "newest" if whose == "own" else fresh.keys.stream, [OLDER.stream, stream])
    if whose == "own" or text not in TAKEN:
        with refused:
            follow(fresh.client, fresh.lead, [OLDER.stream])
        assert fresh.snapshot() == before
    fresh.client.delete(follows_key(stream))
    follow(fresh.client, fresh.lead, [OLDER.stream])


def test_an_older_version_with_older_ones_of_its_own_needs_them_named_before_it(fresh: World) -> None:
    fresh.client.set(follows_key(NEWER.stream), orjson.dumps([OLDER.stream]))
    check_versions(fresh.client, "newest", [OLDER.stream, NEWER.stream])
    check_versions(fresh.client, "newest", [NEWER.stream])
    with pytest.raises(ConfigurationError, match=f"{NEWER.stream!r}, which follows {OLDER.stream!r}: name that before"):
        check_versions(fresh.client, "newest", [NEWER.stream, OLDER.stream])


def test_a_version_that_is_not_named_any_more_is_dropped_until_it_is_retired(fresh: World) -> None:
    client, newest, group = fresh.client, fresh.keys.stream, fresh.keys.group
    client.set(follows_key(NEWER.stream), orjson.dumps([OLDER.stream]))
    client.sadd(newer_key(OLDER.stream), NEWER.stream)
    follow(client, fresh.lead, [OLDER.stream, NEWER.stream])
    follow(client, fresh.lead, [NEWER.stream])
    assert older_versions(client, newest) == (OLDER.stream, NEWER.stream), "a dropped version is forgotten"
    assert dropped_versions(client, newest, group, [OLDER.stream, NEWER.stream]) == []
    assert dropped_versions(client, newest, group, [NEWER.stream]) == [OLDER.stream]
    older_entry(fresh, "5-0", "ticket_id", "A")
    refuse_left_behind(client, newest, group, [NEWER.stream])
    client.xgroup_create(OLDER.stream, group, "0")
    with pytest.raises(ConfigurationError, match=f"{OLDER.stream!r}, an older version of {newest!r}, has messages"):
        refuse_left_behind(client, newest, group, [NEWER.stream])
    client.delete(OLDER.stream)
    leave_chain(client, OLDER.stream)
    assert dropped_versions(client, newest, group, [NEWER.stream]) == []


def test_nothing_is_dispatched_while_somebody_leads_a_dropped_version(fresh: World) -> None:
    batch = Batch(older=[OlderLane(OLDER, "", "5-0")], contested=["A"])
    fresh.dispatch(batch, "w1@a", [("A", fresh.pushed("A"))])
    fresh.client.set(OLDER.leader, THEIR_TOKEN, px=LEASE_MS)
    before = fresh.snapshot()
    with pytest.raises(NotLeading, match=OLDER.stream):
        advance(fresh.client, fresh.lead, OPENING, batch)
    assert fresh.snapshot() == before
    fresh.client.delete(OLDER.leader)
    assert advance(fresh.client, fresh.lead, OPENING, batch).base


def test_a_leader_warns_of_each_dropped_version_that_has_undone_messages(
    fresh: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It warned of one of them: of the other one nothing was said until the first one was done."""
    clock = Clock()
    monkeypatch.setattr(bridge.leader.step.dropped_versions, "time", clock)
    streams = [OLDER.stream, NEWER.stream]
    for stream in streams:
        fresh.client.execute_command("XADD", stream, "5-0", "ticket_id", "A")
        fresh.client.xgroup_create(stream, fresh.keys.group, "0")
    dropped = DroppedVersions(fresh.client, fresh.keys, streams)
    assert [next(name for name in streams if name in line) for line in caplog.messages] == streams
    # And not at each look
    for seconds, lines in ((VERSIONS_S, 2), (WARN_S, 4)):
        clock.now_s += seconds
        dropped.look(fresh.client)
        assert len(caplog.messages) == lines


def test_a_dropped_version_that_a_subscription_never_read_holds_none_of_its_tickets(fresh: World) -> None:
    """Its entries may be kept for others, or for a retention."""
    fresh.client.execute_command("XADD", OLDER.stream, "5-0", "ticket_id", "A")
    dropped = DroppedVersions(fresh.client, fresh.keys, [OLDER.stream])
    assert [lane.read_to for lane in dropped.lanes] == ["5-0"]
    # What comes there later is no message of it, either
    fresh.client.execute_command("XADD", OLDER.stream, "6-0", "ticket_id", "A")
    dropped._look_at = 0.0
    dropped.look(fresh.client)
    assert [lane.read_to for lane in dropped.lanes] == ["6-0"]


def test_only_the_leader_notes_what_a_stream_follows(fresh: World) -> None:
    fresh.client.set(fresh.keys.leader, "8 another", px=LEASE_MS)
    before = fresh.snapshot()
    with pytest.raises(NotLeading):
        follow(fresh.client, Leadership(fresh.keys, TOKEN, MASTER), [OLDER.stream])
    assert fresh.snapshot() == before


# -- retire --------------------------------------------------------------------------------------------------------


def retired(world: World, *free: str, groups: Sequence[str] = ("bridge",)) -> tuple[ReturnCode, str]:
    keys = world.keys
    return retire(world.client, keys.stream, groups, [keys.leader, *free], [keys.term])


def test_a_stream_that_is_done_is_deleted_with_its_keys(fresh: World) -> None:
    fresh.client.xack(fresh.keys.stream, fresh.keys.group, *fresh.pushed("T", 3))
    fresh.client.delete(fresh.keys.leader)
    fresh.client.set("user:other", 1)
    assert retired(fresh) == (ReturnCode.OK, "2")
    assert fresh.client.keys() == [b"user:other"]
    assert retired(fresh) == (ReturnCode.OK, "0")


def test_a_stream_with_anything_undone_or_in_use_is_not_deleted(fresh: World) -> None:
    client, keys = fresh.client, fresh.keys

    def refused(code: ReturnCode, detail: str, **how: Any) -> None:
        before = fresh.snapshot()
        assert retired(fresh, **how) == (code, detail)
        assert fresh.snapshot() == before

    refused(ReturnCode.HELD, keys.leader)
    client.delete(keys.leader)
    refused(ReturnCode.CHANGED, "bridge", groups=["another"])
    [id_] = fresh.push("T")
    refused(ReturnCode.UNREAD, "bridge")
    fresh.read()
    refused(ReturnCode.UNDONE, "bridge")
    client.xack(keys.stream, keys.group, id_)
    client.xgroup_create(keys.stream, "late", "0")
    refused(ReturnCode.UNREAD, "late", groups=["bridge", "late"])
    client.xgroup_destroy(keys.stream, "late")
    client.xgroup_destroy(keys.stream, "bridge")
    refused(ReturnCode.UNREAD, "")


def test_a_retired_stream_leaves_its_chain(fresh: World) -> None:
    older, stream, newer = OLDER.stream, fresh.keys.stream, NEWER.stream
    for name, follows in ((stream, [older]), (newer, [older, stream])):
        fresh.client.set(follows_key(name), orjson.dumps(follows))
        for one in follows:
            fresh.client.sadd(newer_key(one), name)
    leave_chain(fresh.client, stream)
    assert older_versions(fresh.client, newer) == (older,)
    assert newer_versions(fresh.client, older) == {newer}
    assert not fresh.client.exists(follows_key(stream), newer_key(stream))


def test_where_states_are_kept_is_noted_once_and_is_where_the_oldest_version_keeps_them(fresh: World) -> None:
    client, oldest = fresh.client, LaneKeys("tickets:v1", "bridge")
    follow(client, fresh.lead, [OLDER.stream])
    assert not client.exists(fresh.keys.state_home)
    follow(client, fresh.lead, [OLDER.stream], (fresh.keys, OLDER))
    assert client.get(fresh.keys.state_home) == OLDER.stream.encode()
    client.set(oldest.state_home, "tickets")
    follow(client, fresh.lead, [oldest.stream, OLDER.stream], (fresh.keys, oldest))
    assert client.get(fresh.keys.state_home) == OLDER.stream.encode()
    client.delete(fresh.keys.state_home)
    with pytest.raises(NotLeading):
        follow(client, Leadership(fresh.keys, THEIR_TOKEN, MASTER), [oldest.stream], (fresh.keys, oldest))
    assert not client.exists(fresh.keys.state_home)
    follow(client, fresh.lead, [oldest.stream, OLDER.stream], (fresh.keys, oldest))
    assert client.get(fresh.keys.state_home) == b"tickets"
    client.delete(oldest.state_home, newer_key(oldest.stream))
