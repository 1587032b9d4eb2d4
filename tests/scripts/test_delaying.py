"""Delayed messages on a real server: when a script moves them, what it hands over, and how they end."""

from __future__ import annotations

import orjson
import pytest

from bridge.routing import delaying
from bridge.routing.batch import Batch
from bridge.routing.delaying import Moved, move_due
from bridge.routing.errors import LaneConflict
from bridge.routing.history import What, read_entry
from bridge.routing.ids import id_in, member_of
from bridge.routing.scripts import Argument
from bridge.routing.transitions import advance
from tests.scripts.world import MASTER, OPENING, World, entries_of

pytestmark = pytest.mark.scripts

#: A time that is over, and one that is far away, in ms.
OVER, FAR = 1000, 2**45
SOON = 500


def delay(world: World, ids: list[str], due_ms: int = OVER) -> None:
    """These messages, which the master has read, are delayed."""
    batch = Batch()
    for id_ in ids:
        batch.delay(world.keys.delayed_consumer(MASTER), id_, due_ms)
    advance(world.client, world.lead, OPENING, batch)


def delayed(world: World, ticket: str = "T", count: int = 3, due_ms: int = OVER) -> list[str]:
    ids = world.pushed(ticket, count)
    delay(world, ids, due_ms)
    return ids


def moved(world: World, count: int = 10, before_ms: int | None = None) -> tuple[list[str], Moved]:
    read_to = world.client.xinfo_groups(world.keys.stream)[0]["last-delivered-id"].decode()
    found = move_due(world.client, world.lead, count, read_to, before_ms=before_ms)
    return [entry[0].decode() for entry in found.entries], found


def due_times(world: World, key: str) -> dict[str, int]:
    return {member.decode(): int(due) for member, due in world.client.zrange(key, 0, -1, withscores=True)}


def owners(world: World) -> dict[str, str]:
    rows = world.client.xpending_range(world.keys.stream, world.keys.group, "-", "+", 100)
    return {row["message_id"].decode(): row["consumer"].decode() for row in rows}


def test_what_is_due_is_moved_with_its_entry_and_is_late_from_then_on(fresh: World) -> None:
    ids = delayed(fresh)
    assert owners(fresh) == dict.fromkeys(ids, "master/delayed")
    found, reply = moved(fresh)
    assert found == ids
    assert [entry[1] for entry in reply.entries] == [[b"ticket_id", b"T", b"payload", b'{"n": 1}']] * 3
    assert reply.next_ms is None
    assert due_times(fresh, fresh.keys.late) == {member_of(id_): OVER for id_ in ids}
    assert not fresh.client.exists(fresh.keys.delayed)
    assert owners(fresh) == dict.fromkeys(ids, MASTER)


def test_nothing_is_moved_before_it_is_due(fresh: World) -> None:
    delayed(fresh, due_ms=FAR)
    found, reply = moved(fresh)
    assert (found, reply.next_ms) == ([], FAR)
    # Nor when it is due by the server's clock only
    delay(fresh, fresh.pushed("U"), OVER)
    assert moved(fresh, before_ms=OVER)[0] == []
    assert moved(fresh, before_ms=OVER + 1)[0] == ["4-0"]


def test_a_message_is_moved_once(fresh: World) -> None:
    ids = delayed(fresh)
    assert moved(fresh, 2)[0] == ids[:2]
    assert moved(fresh, 2)[0] == ids[2:]
    assert moved(fresh)[0] == []


def test_messages_that_are_due_at_one_time_are_moved_in_the_order_of_their_ids(fresh: World) -> None:
    ids = delayed(fresh, count=12)
    assert [id_ for _ in range(4) for id_ in moved(fresh, 3)[0]] == ids
    # And by their due times before that
    first, second = fresh.pushed("T", 2)
    delay(fresh, [first], OVER + 1)
    delay(fresh, [second], OVER)
    assert moved(fresh)[0] == [second, first]


def test_what_was_added_until_it_was_due_is_read_before_it_is_moved(fresh: World) -> None:
    # The ids of this world are small: only what was added at this time by its id may be after it
    ids = delayed(fresh)
    fresh.client.execute_command("XADD", fresh.keys.stream, f"{OVER}-0", "ticket_id", "T")
    assert moved(fresh)[0] == []
    fresh.read()
    fresh.client.execute_command("XADD", fresh.keys.stream, f"{OVER + 1}-0", "ticket_id", "T")
    assert moved(fresh)[0] == []
    fresh.read()
    assert moved(fresh)[0] == ids


FOREIGN = [
    *(
        b"",
        b"garbage",
        b"\xff",
        b"-",
        b"+",
        b"a-b",
        b"a1",
        b"a1-",
        b"1-1",
        b"a1-1",
        b"a1-a1 ",
        b"a1-a1-a1",
        b"a1-a\xff",
    ),
    *(b"a-1-a1", b"A1-A1", b"t18446744073709551616-a1", b"a1-t18446744073709551616", b"z" + b"1" * 26 + b"-a1"),
]


@pytest.mark.parametrize("foreign", [[one] for one in FOREIGN] + [FOREIGN], ids=ascii)
def test_a_member_that_is_no_message_is_removed_and_keeps_no_message_back(fresh: World, foreign: list[bytes]) -> None:
    assert [id_in(one) for one in foreign] == [None] * len(foreign)
    ids = delayed(fresh)
    # By their due times some are before the messages, beside them, and behind those that are due
    fresh.client.zadd(fresh.keys.delayed, {one: (OVER - 1, OVER, FAR)[n % 3] for n, one in enumerate(foreign)})
    due = [one for n, one in enumerate(foreign) if n % 3 < 2]
    found, reply = moved(fresh, 100)
    assert (found, sorted(reply.foreign)) == ([], sorted(due))
    assert reply.next_ms is not None
    assert reply.next_ms < reply.before_ms
    found, reply = moved(fresh, 100)
    assert (found, list(reply.foreign)) == (ids, [])
    assert owners(fresh) == dict.fromkeys(ids, MASTER)
    assert due_times(fresh, fresh.keys.late) == {member_of(id_): OVER for id_ in ids}
    assert fresh.client.zcard(fresh.keys.delayed) == len(foreign) - len(due)


@pytest.mark.parametrize("id_", ["0-1", "1-18446744073709551615", "18446744073709551615-0", "9999999999999999999-7"])
def test_a_message_with_an_id_of_any_length_is_moved(fresh: World, id_: str) -> None:
    fresh.client.execute_command("XADD", fresh.keys.stream, id_, "ticket_id", "T")
    fresh.read()
    delay(fresh, [id_])
    assert moved(fresh)[0] == [id_]


def test_a_moved_message_has_a_row_in_the_history(fresh: World) -> None:
    ids = delayed(fresh, ticket='a "b"/c', count=2)
    move_due(fresh.client, fresh.lead, 10, "2-0", history_cap=100)
    [(entry_id, fields)] = entries_of(fresh.client, fresh.keys.history)
    rows = read_entry(entry_id, fields["d"])
    assert [(row.message_id, row.ticket, row.what, row.dispatched_ms) for row in rows] == [
        (id_, 'a "b"/c', What.DUE, OVER) for id_ in ids
    ]
    delayed(fresh)
    move_due(fresh.client, fresh.lead, 10, "9-0", history_cap=0)
    assert fresh.client.xlen(fresh.keys.history) == 1


def test_large_entries_come_without_other_fields_and_few_at_once(fresh: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delaying, "READ_BYTES", 1000)
    for n in range(3):
        fields = ("ticket_id", "T", "payload", "1" * 400, "other", "x" * 5000, "due", "5")
        fresh.client.execute_command("XADD", fresh.keys.stream, f"{n + 1}-0", *fields)
    fresh.read()
    delay(fresh, ["1-0", "2-0", "3-0"])
    found = move_due(fresh.client, fresh.lead, 10, "3-0", limit=600, names=("due",))
    assert [entry[:2] for entry in found.entries] == [
        [b"1-0", [b"ticket_id", b"T", b"payload", b"1" * 400, b"due", b"5"]]
    ]
    assert found.next_ms == OVER


def test_due_messages_between_others_come_with_their_own_entries(fresh: World) -> None:
    # Given due messages that follow each other in the stream, and some with others or a deleted entry between them
    ids = fresh.pushed("T", 120)
    due = [id_ for n, id_ in enumerate(ids) if n < 40 or n % 3 == 0 or n > 100]
    delay(fresh, list(reversed(due)))
    deleted = {due[1], due[30], due[50]}
    fresh.client.xdel(fresh.keys.stream, *deleted)
    stored = dict(fresh.client.xrange(fresh.keys.stream))
    # When they are moved
    found, reply = moved(fresh, 200)
    # Then each has what its entry has
    assert found == due
    for id_, fields, due_ms in reply.entries:
        named = dict(zip(fields[::2], fields[1::2], strict=True))
        assert named == ({} if id_.decode() in deleted else stored[id_])
        assert int(due_ms) == OVER


def test_a_deleted_entry_comes_without_fields_and_one_that_was_acknowledged_by_hand_is_pending_again(
    fresh: World,
) -> None:
    ids = delayed(fresh)
    fresh.client.xdel(fresh.keys.stream, ids[0])
    fresh.client.xack(fresh.keys.stream, fresh.keys.group, ids[1])
    found, reply = moved(fresh)
    assert found == ids
    assert reply.entries[0][1] == []
    assert {id_: owners(fresh).get(id_) for id_ in ids[1:]} == dict.fromkeys(ids[1:], MASTER)


def test_without_a_group_nothing_is_moved(fresh: World) -> None:
    delayed(fresh)
    fresh.client.xgroup_destroy(fresh.keys.stream, fresh.keys.group)
    before = fresh.snapshot()
    with pytest.raises(LaneConflict):
        move_due(fresh.client, fresh.lead, 10, "3-0")
    assert fresh.snapshot() == before


def test_a_due_time_that_an_operator_changed_stays_when_the_message_is_delayed_again(fresh: World) -> None:
    ids = delayed(fresh, due_ms=FAR)
    batch = Batch(rescheduled=[SOON, member_of(ids[0]), SOON, member_of("77-0")])
    advance(fresh.client, fresh.lead, OPENING, batch)
    delay(fresh, ids, FAR)
    assert due_times(fresh, fresh.keys.delayed) == {
        member_of(ids[0]): SOON,
        **{member_of(id_): FAR for id_ in ids[1:]},
    }


def test_a_held_message_is_rescheduled_and_a_late_one_is_not(fresh: World) -> None:
    held, late = fresh.pushed("T", 2)
    advance(fresh.client, fresh.lead, OPENING, Batch(holding=[FAR, member_of(held)], late=[OVER, member_of(late)]))
    again: list[Argument] = [SOON, member_of(held), SOON, member_of(late)]
    advance(fresh.client, fresh.lead, OPENING, Batch(rescheduled=again))
    advance(fresh.client, fresh.lead, OPENING, Batch(holding=[FAR, member_of(held)]))
    assert due_times(fresh, fresh.keys.holding) == {member_of(held): SOON}
    assert due_times(fresh, fresh.keys.late) == {member_of(late): OVER}


def test_a_message_that_is_over_leaves_nothing_behind(fresh: World) -> None:
    ids = delayed(fresh)
    moved(fresh, 1)
    batch = Batch(holding=[FAR, member_of(ids[2])])
    advance(fresh.client, fresh.lead, OPENING, batch)
    end = Batch(acknowledged=ids, over=[member_of(id_) for id_ in ids])
    advance(fresh.client, fresh.lead, OPENING, end)
    assert not fresh.client.exists(fresh.keys.delayed, fresh.keys.late, fresh.keys.holding)
    assert orjson.dumps(owners(fresh)) == b"{}"
