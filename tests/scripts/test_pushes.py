"""The scripts of writers outside the lane: each row once, none incomplete, never into a full stream."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import ResponseError

from bridge.routing.keys import push_prefix, push_tickets, push_waiting
from bridge.routing.pushes import (
    Answer,
    Columns,
    Partition,
    Tickets,
    append_once,
    append_per_ticket,
    guard_of,
    note_wait,
    settle_push,
)
from bridge.routing.return_codes import ReturnCode
from tests.scripts.world import World, changes, entries_of
from tests.ticket_numbers import numbers_are_older

pytestmark = pytest.mark.scripts

STREAM = "ticket_stream"
TWO = Columns(("ticket_id", "payload"))
THREE = Columns(("ticket_id", "task", "payload"))
AT = Partition(STREAM, guard_of(STREAM, "orders {1}: a\nb"), 0, 3, 4, None, 60)
LIFE_S = 60
TICKETS = Tickets(STREAM, "{ticket_stream}/push", None, LIFE_S)


def rows(*tickets: str) -> list[bytes]:
    """A payload of 1 for each ticket, as values of two columns."""
    return [word for ticket in tickets for word in (ticket.encode(), b"1")]


def tickets_in(world: World) -> list[str]:
    return [fields["ticket_id"] for _, fields in entries_of(world.client, STREAM)]


def test_a_chunk_is_appended_with_its_mark_and_never_a_second_time(empty: World) -> None:
    assert append_once(empty.client, AT, "0 0", "2 77", TWO, rows("A", "B")).code is ReturnCode.OK
    before = empty.snapshot()
    # The same chunk again, and one behind a chunk that was not taken
    for expected, after in (("0 0", "2 77"), ("4 99", "5 11")):
        assert append_once(empty.client, AT, expected, after, TWO, rows("A")) == Answer(ReturnCode.CHANGED, "2 77")
    assert empty.snapshot() == before
    # The next one
    assert append_once(empty.client, AT, "2 77", "3 88", TWO, rows("C")).code is ReturnCode.OK
    assert tickets_in(empty) == ["A", "B", "C"]
    assert empty.client.hgetall(AT.guard) == {b"0/3": b"3 88", b"0/of": b"4"}
    assert 0 < empty.client.ttl(AT.guard) <= LIFE_S


def test_partitions_and_epochs_have_marks_of_their_own(empty: World) -> None:
    for at in (AT, replace(AT, number=0), replace(AT, epoch=1)):
        assert append_once(empty.client, at, "0 0", "1 5", TWO, rows("A")).code is ReturnCode.OK
    assert len(tickets_in(empty)) == 3


def test_another_number_of_partitions_is_refused_and_changes_nothing(empty: World) -> None:
    append_once(empty.client, AT, "0 0", "1 5", TWO, rows("A"))
    before = empty.snapshot()
    other = append_once(empty.client, replace(AT, count=5, number=1), "0 0", "1 5", TWO, rows("B"))
    assert other == Answer(ReturnCode.CONFLICT, "4")
    assert empty.snapshot() == before
    # Who does not know it is not asked
    assert (
        append_once(empty.client, replace(AT, count=None, number=1), "0 0", "1 5", TWO, rows("B")).code is ReturnCode.OK
    )


def test_a_straggler_of_an_epoch_that_is_over_is_refused(empty: World) -> None:
    for epoch in (0, 1):
        append_once(empty.client, replace(AT, epoch=epoch), "0 0", "1 5", TWO, rows("A"))
    assert settle_push(empty.client, AT.guard, 1, 4, '{"rows": 2}', LIFE_S) is ReturnCode.OK
    assert set(empty.client.hgetall(AT.guard)) == {b"1/3", b"1/of", b"floor", b"told"}
    before = empty.snapshot()
    assert append_once(empty.client, AT, "1 5", "2 6", TWO, rows("B")).code is ReturnCode.LATE
    assert settle_push(empty.client, AT.guard, 0, 4, "{}", LIFE_S) is ReturnCode.LATE
    assert empty.snapshot() == before
    # The epoch itself may be replayed, and finds its marks
    again = append_once(empty.client, replace(AT, epoch=1), "0 0", "1 5", TWO, rows("A"))
    assert again == Answer(ReturnCode.CHANGED, "1 5")


def test_the_number_of_partitions_stays_however_many_tasks_ran(empty: World) -> None:
    append_once(empty.client, AT, "0 0", "1 5", TWO, rows("A"))
    assert settle_push(empty.client, AT.guard, 0, 2, "{}", LIFE_S) is ReturnCode.OK
    # Another attempt says the same again
    again = append_once(empty.client, AT, "1 5", "2 6", TWO, rows("B"))
    assert again.code is ReturnCode.OK
    # Where nobody said it, it is what the tasks came to
    nameless = replace(AT, guard=guard_of(STREAM, "nameless"), count=None)
    append_once(empty.client, nameless, "0 0", "1 5", TWO, rows("A"))
    settle_push(empty.client, nameless.guard, 0, 2, "{}", LIFE_S)
    assert empty.client.hget(nameless.guard, "0/of") == b"2"


def test_a_user_who_may_not_write_the_guard_appends_no_row(empty: World) -> None:
    empty.client.execute_command("ACL", "SETUSER", "few", "on", "nopass", "~*", "+@all", "-hset")
    try:
        port = empty.client.connection_pool.connection_kwargs["port"]
        with Redis(port=port, username="few", password="any") as few:
            with pytest.raises(ResponseError):
                append_once(few, AT, "0 0", "2 77", TWO, rows("A", "B"))
            with pytest.raises(ResponseError):
                append_per_ticket(few, TICKETS, TWO, [b"1", b"A", b"1"])
    finally:
        empty.client.execute_command("ACL", "DELUSER", "few")
    assert tickets_in(empty) == []


def test_a_stream_at_its_high_water_takes_no_chunk_and_never_more_than_one_above(empty: World) -> None:
    at = replace(AT, high_water=3)
    assert append_once(empty.client, at, "0 0", "2 1", TWO, rows("A", "B")).code is ReturnCode.OK
    assert append_once(empty.client, at, "2 1", "5 2", TWO, rows("C", "D", "E")).code is ReturnCode.OK
    before = empty.snapshot()
    assert append_once(empty.client, at, "5 2", "6 3", TWO, rows("F")) == Answer(ReturnCode.WAIT, "5")
    assert empty.snapshot() == before
    # Its end needs no room
    assert append_once(empty.client, at, "5 2", "5 2 end", TWO, []).code is ReturnCode.OK
    # And there is room again when entries have left
    empty.client.xtrim(STREAM, maxlen=2, approximate=False)
    other = replace(at, number=1)
    assert append_once(empty.client, other, "0 0", "1 9", TWO, rows("F")).code is ReturnCode.OK


def test_values_that_are_not_there_leave_their_field_out(empty: World) -> None:
    values = [b"A", b"", b"1", b"B", b"shop.work", b"\xff\r\n"]
    assert append_once(empty.client, AT, "0 0", "2 1", THREE, values, b"101111").code is ReturnCode.OK
    found = [fields for _, fields in empty.client.xrange(STREAM)]
    assert found == [
        {b"ticket_id": b"A", b"payload": b"1"},
        {b"ticket_id": b"B", b"task": b"shop.work", b"payload": b"\xff\r\n"},
    ]


def test_a_chunk_may_be_as_large_as_a_writer_makes_it(empty: World) -> None:
    many = 10_000
    assert append_once(empty.client, AT, "0 0", f"{many} 1", TWO, rows(*["T"] * many)).code is ReturnCode.OK
    numbered = [word for number in range(many) for word in (b"%d" % number, b"T%d" % (number % 5000), b"1")]
    assert append_per_ticket(empty.client, TICKETS, TWO, numbered) == Answer(ReturnCode.OK, str(many))
    assert empty.client.xlen(STREAM) == 2 * many


def test_only_numbers_that_are_larger_than_their_tickets_last_are_appended(empty: World) -> None:
    def chunk(*pairs: tuple[int, str]) -> list[bytes]:
        return [word for number, ticket in pairs for word in (b"%d" % number, ticket.encode(), b"1")]

    assert append_per_ticket(empty.client, TICKETS, TWO, chunk((1, "A"), (2, "A"), (1, "B"))).detail == "3"
    before = empty.snapshot()
    assert append_per_ticket(empty.client, TICKETS, TWO, chunk((2, "A"), (1, "B"))).detail == "0"
    assert changes(before, empty.snapshot()) == set()
    # In one chunk, too
    assert append_per_ticket(empty.client, TICKETS, TWO, chunk((2, "A"), (3, "A"), (3, "A"))).detail == "1"
    assert append_per_ticket(empty.client, TICKETS, TWO, chunk((3, "A"), (10, "B"), (9, "B"))).detail == "1"
    assert tickets_in(empty) == ["A", "A", "B", "A", "B"]
    assert 0 < empty.client.ttl(push_tickets(TICKETS.prefix, 0)) <= LIFE_S


#: Seconds that pass, who writes to which ticket, and for how long a number that it writes must be found.
WRITES = st.lists(
    st.tuples(st.sampled_from((0, 50, 150, 350)), st.sampled_from("AB"), st.sampled_from((100, 400))),
    min_size=2,
    max_size=12,
)


@given(writes=WRITES)
# The hash that is left to expire is not gone when the life of the other one is over.
@example(writes=[(0, "A", 400), (350, "A", 400), *[(50, "B", 100)] * 3, (150, "A", 100)])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_number_is_found_for_its_life_whatever_life_others_have_and_expires_after_two(
    empty: World, writes: list[tuple[int, str, int]]
) -> None:
    client = empty.client
    client.flushdb()
    now = 0
    #: Ticket -> its last number; until when it must be found, and may be.
    last: dict[str, tuple[int, int, int]] = {}
    longest = max(life_s for _, _, life_s in writes)
    for number, (passed_s, ticket, life_s) in enumerate(writes):
        now += passed_s
        numbers_are_older(client, TICKETS.prefix, passed_s)
        at = replace(TICKETS, guard_ttl_s=life_s)
        if ticket in last:
            known, must, may = last[ticket]
            again = append_per_ticket(client, at, TWO, [b"%d" % known, ticket.encode(), b"1"])
            assert not (now < must and again.detail == "1"), "a number was forgotten within its life"
            assert not (now > may and again.detail == "0"), "a number was kept for longer than two lives"
        assert append_per_ticket(client, at, TWO, [b"%d" % number, ticket.encode(), b"1"]).detail == "1"
        last[ticket] = number, now + life_s, now + 2 * longest
        assert len(list(client.scan_iter(push_prefix(STREAM) + ":tickets:*"))) <= 2


def test_rows_that_are_there_already_need_no_room(empty: World) -> None:
    full = replace(TICKETS, high_water=1)
    chunk = [b"1", b"A", b"1"]
    assert append_per_ticket(empty.client, full, TWO, chunk) == Answer(ReturnCode.OK, "1")
    assert append_per_ticket(empty.client, full, TWO, chunk) == Answer(ReturnCode.OK, "0")
    before = empty.snapshot()
    assert append_per_ticket(empty.client, full, TWO, [b"2", b"A", b"1"]) == Answer(ReturnCode.WAIT, "1")
    assert empty.snapshot() == before


def test_a_waiting_writer_is_noted_until_it_goes_on(empty: World) -> None:
    key = push_waiting(STREAM)
    note_wait(empty.client, STREAM, "run 0/1", "the stream is full", 2500)
    note_wait(empty.client, STREAM, "run 0/2", "no memory", 1)
    noted = empty.client.hget(key, "run 0/1").decode().split(" ", 2)
    assert noted[1:] == ["2500", "the stream is full"]
    assert 0 < empty.client.ttl(key) <= 60
    note_wait(empty.client, STREAM, "run 0/1", "", 3000)
    assert empty.client.hkeys(key) == [b"run 0/2"]
