"""advance.lua: outcomes are settled and messages dispatched in one step, and a refusal changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import orjson
import pytest
from redis.exceptions import ResponseError

from bridge.routing import records
from bridge.routing.batch import MAX_LETTER_ARGUMENTS, SECTIONS, Batch, DeadLetter
from bridge.routing.counters import ANY, read_counters
from bridge.routing.errors import LaneConflict, NotLeading
from bridge.routing.transitions import Advanced, Leadership, advance
from tests.scripts.world import (
    HOSTILE,
    LEASE_MS,
    MASTER,
    OPENING,
    World,
    changes,
    fields_of,
)

pytestmark = pytest.mark.scripts


def owners(world: dict[str, Any], keys: Any) -> dict[str, str]:
    """Pending entry -> who has it."""
    found: dict[str, str] = world[keys.stream]["value"]["groups"][keys.group]["pending"]
    return found


def everything(world: World) -> Batch:
    """A batch that uses every list that the script knows."""
    batch = Batch(keep_outcomes_from="2-0")
    batch.expected = {"busy": world.busy_record, "other": world.other_record, "late": world.late_record, "idle": ""}
    batch.acknowledged = [world.busy[0], world.other[0]]
    batch.given_back = [world.busy[1]]
    batch.records = ["busy", "[0,1,whatever]"]
    batch.released = ["other"]
    batch.retries = [9000, "busy"]
    batch.due = ["late"]
    batch.dead = [DeadLetter(world.other[0], ["reason", "gave up", "payload", b"\xff\0"])]
    batch.count("done", 2)
    batch.count("dead")
    world.dispatch(batch, "w1@a", [("late", world.late[:1])], attempt=2)
    world.dispatch(batch, "w2@b", [("idle", world.idle[:2])])
    return batch


# -- refusals ------------------------------------------------------------------------------------------------------

#: Keys of a lane that the script changes.
ADVANCED = [
    *("tickets", "applied", "retries", "outcomes", "stream", "fence", "dead", "counts", "history", "drains"),
    *("delayed", "late", "holding"),
]


@pytest.mark.parametrize("name", ADVANCED)
def test_a_key_of_another_type_changes_nothing(name: str, world: World) -> None:
    # Given a key that another program has overwritten
    key = getattr(world.keys, name)
    batch = everything(world)
    batch.history, batch.history_cap = [["row"]], 100
    batch.drains, batch.delayed = {"w1@a": "1"}, [9, "1-0"]
    batch.late, batch.holding = [9, "2-0"], [9, "3-0"]
    world.client.delete(key)
    if name == "fence":
        world.client.rpush(key, "no string")
    else:
        world.client.set(key, "of another program")
    before = world.snapshot()
    # When a batch uses it; then no part of the batch was done
    with pytest.raises((ResponseError, LaneConflict)):
        advance(world.client, world.lead, OPENING, batch)
    assert world.snapshot() == before


def deposed(world: World) -> None:
    world.client.set(world.keys.leader, "8 other@there", px=LEASE_MS)


def without_a_leader(world: World) -> None:
    world.client.delete(world.keys.leader)


@pytest.mark.parametrize("how", [deposed, without_a_leader])
def test_a_master_that_does_not_lead_changes_nothing(how: Callable[[World], None], world: World) -> None:
    # Given a batch that would change everything, and a leader of another term, or none
    how(world)
    before = world.snapshot()
    # When it is sent, then it is refused and nothing at all changed
    with pytest.raises(NotLeading, match="ticket_stream"):
        advance(world.client, world.lead, OPENING, everything(world))
    assert world.snapshot() == before


def test_the_same_holder_in_an_older_term_changes_nothing(world: World) -> None:
    before = world.snapshot()
    with pytest.raises(NotLeading):
        advance(world.client, Leadership(world.keys, "6 master@here", MASTER), OPENING, everything(world))
    assert world.snapshot() == before


def test_a_record_that_is_not_as_expected_changes_nothing(world: World) -> None:
    before = world.snapshot()
    for ticket in ("busy", "other", "late", "idle"):
        for held in ("", '[99,1,"w1@a","life-of-w1@a",1,["1-0"],1000,""]'):
            # Given a batch with one expectation that is wrong
            batch = everything(world)
            batch.expected[ticket] = "[1]" if batch.expected[ticket] == held else held
            # When it is sent, then the ticket is named and nothing at all changed
            with pytest.raises(LaneConflict, match=repr(ticket)):
                advance(world.client, world.lead, OPENING, batch)
            assert world.snapshot() == before, (ticket, held)


def test_a_conflict_is_found_wherever_it_stands_in_a_large_batch(world: World) -> None:
    # Given 2,500 records, one of which is not as expected
    record = {f"many-{i}": f"[{i + 1},1,x]" for i in range(2500)}
    world.client.hset(world.keys.tickets, mapping=record)
    before = world.snapshot()
    for wrong in (0, 999, 1000, 1001, 2499):
        batch = Batch(expected={**record, f"many-{wrong}": "[0,1,x]"}, released=list(record))
        with pytest.raises(LaneConflict, match=f"'many-{wrong}'"):
            advance(world.client, world.lead, OPENING, batch)
        assert world.snapshot() == before, wrong


# -- one step ------------------------------------------------------------------------------------------------------


def test_an_argument_equal_to_a_sections_name_begins_no_section(fresh: World) -> None:
    fresh.read()
    before = fresh.snapshot()
    for section in SECTIONS:
        # Given a batch with one section, whose first word is the name of another one, or of its own
        advance(fresh.client, fresh.lead, OPENING, Batch(records=[section.name, "1"]))
        # Then the record was written, and nothing else
        after = fresh.snapshot()
        assert changes(before, after) == {fresh.keys.tickets}, section.name
        assert after[fresh.keys.tickets]["value"] == {section.name: "1"}
        fresh.client.delete(fresh.keys.tickets)


def test_a_whole_batch_changes_exactly_what_it_says(world: World) -> None:
    # Given the world and a batch that uses every list
    keys = world.keys
    before = world.snapshot()
    batch = everything(world)
    # When it is sent
    base = advance(world.client, world.lead, OPENING, batch).base
    after = world.snapshot()
    # Then the world is the one before, but for this
    expected = deepcopy(before)
    lane = expected[keys.stream]["value"]["groups"][keys.group]
    for id_ in (world.busy[0], world.other[0]):
        del lane["pending"][id_]
    lane["pending"] |= {
        world.busy[1]: MASTER,
        world.late[0]: "w1@a",
        world.idle[0]: "w2@b",
        world.idle[1]: "w2@b",
    }
    tickets = expected[keys.tickets]["value"]
    del tickets["other"]
    tickets["busy"] = "[0,1,whatever]"
    tickets["late"] = records.record(base, batch.dispatches["w1@a"].runs[0][2])
    tickets["idle"] = records.record(base + 1, batch.dispatches["w2@b"].runs[0][2])
    del expected[keys.applied]["value"]["other"]
    expected[keys.retries]["value"] = {"busy": 9000.0}
    expected[keys.outcomes]["value"]["entries"] = expected[keys.outcomes]["value"]["entries"][1:]
    expected[keys.counts]["value"] = {"done": "3", "failed": "3", "dead": "1"}
    expected[keys.fence]["value"] = str(base + 2)
    text = f'{OPENING}{base},"what":1}}}}'
    expected[keys.queue("w1@a")]["value"] = [text, "older message"]
    expected[keys.queue("w2@b")] = {"type": "list", "expires": False, "value": [text]}
    assert fields_of(after, keys.dead)[1:] == [
        {"message_id": world.other[0], "reason": "gave up", "payload": "\udcff\0"}
    ]
    expected[keys.dead] = after[keys.dead]
    assert after == expected
    assert len(fields_of(after, keys.dead)) == 2


#: What somebody may write as a counter, so that the server does not count on from it.
NO_NUMBERS = [b"garbage", b"", b"1.5", b" 7", b"7 ", b"007", b"-0", b"+1", b"1_0", b"\xff", b"1" * 20]
#: More than this there cannot be.
LARGEST = b"%d" % (2**63 - 1)


@pytest.mark.parametrize("held", [*NO_NUMBERS, LARGEST])
def test_a_counter_that_cannot_be_raised_costs_no_half_step(held: bytes, world: World) -> None:
    # Given a counter that somebody wrote by hand, and a batch that raises it before it does other things
    keys = world.keys
    world.client.hset(keys.counts, "done", held)
    batch = everything(world)
    batch.history, batch.history_cap, batch.drains = [["row"]], 100, {"w1@a": "1"}
    before = world.snapshot()
    # When it is sent
    done = advance(world.client, world.lead, OPENING, batch)
    # Then all of it is done but for this counter, which is named
    assert [name for name, _ in done.uncounted] == ["done"]
    counts = {"done": held.decode(errors="surrogateescape"), "failed": "3", "dead": "1"}
    after = world.snapshot()
    assert after[keys.counts]["value"] == counts
    changed = {keys.stream, keys.tickets, keys.applied, keys.retries, keys.outcomes, keys.dead, keys.counts}
    changed |= {keys.history, keys.drains, keys.fence, keys.queue("w1@a"), keys.queue("w2@b")}
    assert changes(before, after) == changed


@pytest.mark.parametrize("held", [*NO_NUMBERS, b"0", b"7", b"-3", b"1" * 18, LARGEST])
def test_readers_of_counters_and_the_server_agree_on_what_is_a_number(held: bytes, fresh: World) -> None:
    fresh.client.hset(fresh.keys.counts, "done", held)
    assert (read_counters({b"done": held})["done"] == ANY) == (held in NO_NUMBERS)
    done = advance(fresh.client, fresh.lead, OPENING, Batch(counts={"done": -1}))
    assert bool(done.uncounted) == (held in NO_NUMBERS)


def test_an_empty_batch_changes_nothing(world: World) -> None:
    before = world.snapshot()
    assert advance(world.client, world.lead, OPENING, Batch()) == Advanced(0, 0, 0)
    assert world.snapshot() == before


def test_a_dead_letter_of_any_size_is_one_entry(fresh: World) -> None:
    # Given letters below, at and above what one call takes at a time
    letters = [
        DeadLetter(f"{n}-0", [argument for i in range(n) for argument in (f"field:{i}", f"value {i}")])
        for n in (1, 499, 500, 501, 2999)
    ]
    advance(fresh.client, fresh.lead, OPENING, Batch(dead=letters))
    # Then each is one entry, whole
    found = fields_of(fresh.snapshot(), fresh.keys.dead)
    assert [len(fields) for fields in found] == [1 + len(letter.fields) // 2 for letter in letters]


def test_a_letter_with_more_fields_than_one_call_can_take_folds_the_last_ones(fresh: World) -> None:
    # Given an entry that no one would send, with bytes that are not UTF-8
    letter = DeadLetter("1-0", [part for i in range(5000) for part in (f"f{i}", b"\xff%d" % i)])
    advance(fresh.client, fresh.lead, OPENING, Batch(dead=[letter]))
    # Then it is one letter, and nothing of it is missing
    [fields] = fields_of(fresh.snapshot(), fresh.keys.dead)
    assert len(fields) == MAX_LETTER_ARGUMENTS // 2
    rest = orjson.loads(fields["rest"])
    assert rest[-2:] == ["f4999", "\\xff4999"]
    assert len(fields) - 1 + len(rest) // 2 == 1 + len(letter.fields) // 2


# -- dispatch ------------------------------------------------------------------------------------------------------


def test_messages_reach_each_consumer_in_the_order_of_the_batch(fresh: World) -> None:
    # Given plain messages and a bundle for three consumers
    ids = {f"t{i}": fresh.pushed(f"t{i}", 2) for i in range(7)}
    batch = Batch()
    fresh.dispatch(batch, "w1@a", [("t0", ids["t0"][:1])])
    fresh.dispatch(batch, "w2@b", [("t1", ids["t1"])])
    fresh.dispatch(batch, "w1@a", [("t2", ids["t2"]), ("t3", ids["t3"]), ("t4", ids["t4"][:1])])
    fresh.dispatch(batch, "w3@c:d}", [("t5", ids["t5"][:1])])
    for i, to in enumerate(batch.dispatches.values()):
        to.texts = [f',"{i}.{n}"'.encode() for n in range(len(to.texts))]
    # When they are dispatched
    base = advance(fresh.client, fresh.lead, OPENING, batch).base
    # Then a worker that pops from the right gets the oldest first
    after = fresh.snapshot()
    for i, (name, count) in enumerate((("w1@a", 2), ("w2@b", 1), ("w3@c:d}", 1))):
        popped = list(reversed(after[fresh.keys.queue(name)]["value"]))
        assert popped == [f'{OPENING}{base},"{i}.{n}"' for n in range(count)]
    # And every message is in flight with the consumer that its record names, the rest waits
    pending = owners(after, fresh.keys)
    seen = {t: records.parse(text) for t, text in after[fresh.keys.tickets]["value"].items()}
    assert set(seen) == {f"t{i}" for i in range(6)}
    for record in seen.values():
        assert {pending[id_] for id_ in record.ids} == {record.consumer}
    waiting = {ids["t0"][1], ids["t4"][1], ids["t5"][1], *ids["t6"]}
    assert {id_ for id_, owner in pending.items() if owner == MASTER} == waiting
    # And no two messages have one fence
    fences = [record.fence + i for record in seen.values() for i in range(len(record.ids))]
    assert sorted(fences) == list(range(base, base + len(fences)))
    assert after[fresh.keys.fence]["value"] == str(base + len(fences) - 1)


def test_a_ticket_id_is_never_evaluated(fresh: World) -> None:
    for ticket in HOSTILE:
        # Given a ticket whose name looks like a protocol, a format, a key or JSON
        ids = fresh.pushed(ticket, 2)
        batch = Batch(expected={ticket: ""})
        fresh.dispatch(batch, "w1@a", [(ticket, ids[:1])])
        base = advance(fresh.client, fresh.lead, OPENING, batch).base
        # When its record is what the next batch expects
        tail = batch.dispatches["w1@a"].runs[0][2]
        record = records.record(base, tail)
        after = fresh.snapshot()
        assert after[fresh.keys.tickets]["value"] == {ticket: record}
        assert records.parse(record).ids == (ids[0],)
        again = records.record(0, records.tail("", "", 2, ids[:1], 1, ticket))
        step = Batch(expected={ticket: record}, given_back=ids[:1], records=[ticket, again], retries=[5, ticket])
        advance(fresh.client, fresh.lead, OPENING, step)
        last = Batch(expected={ticket: again}, due=[ticket], released=[ticket], acknowledged=ids)
        # Then every step finds it, and nothing of it stays
        assert fresh.snapshot()[fresh.keys.retries]["value"] == {ticket: 5.0}
        advance(fresh.client, fresh.lead, OPENING, last)
        gone = fresh.snapshot()
        assert fresh.keys.tickets not in gone
        assert fresh.keys.retries not in gone
        assert owners(gone, fresh.keys) == {}


def test_payloads_and_letters_keep_every_byte(fresh: World) -> None:
    payload = bytes(range(256)) * 4
    batch = Batch(dead=[DeadLetter("1-0", [b"field:\xff\0\r\n", payload])])
    ids = fresh.pushed("t")
    fresh.dispatch(batch, "w1@a", [("t", ids)]).texts = [payload]
    base = advance(fresh.client, fresh.lead, OPENING, batch).base
    assert fresh.client.lindex(fresh.keys.queue("w1@a"), 0) == f"{OPENING}{base}".encode() + payload
    [(_, fields)] = fresh.client.xrange(fresh.keys.dead)
    assert fields[b"field:\xff\0\r\n"] == payload


# -- fences --------------------------------------------------------------------------------------------------------


def server_us(world: World) -> int:
    seconds, us = world.client.time()
    return int(seconds) * 1_000_000 + int(us)


def one_dispatch(world: World, count: int = 1) -> int:
    ids = world.pushed("t", count)
    batch = Batch()
    world.dispatch(batch, "w1@a", [("t", ids)])
    base = advance(world.client, world.lead, OPENING, batch).base
    assert world.client.get(world.keys.fence) == str(base + count - 1).encode()
    assert records.parse(world.client.hget(world.keys.tickets, "t")).fence == base
    assert world.client.lindex(world.keys.queue("w1@a"), 0).startswith(f"{OPENING}{base},".encode())
    return base


@pytest.mark.parametrize("stored", [None, 0, 1, 1_000_000])
def test_a_fence_is_the_servers_clock_in_microseconds(stored: int | None, fresh: World) -> None:
    if stored is not None:
        fresh.client.set(fresh.keys.fence, stored)
    earliest = server_us(fresh)
    assert earliest <= one_dispatch(fresh) <= server_us(fresh)


@pytest.mark.parametrize("stored", [2**50 + 1, 2**52 - 1, 2**52 + 1, 2**53 - 10])
def test_a_stored_fence_ahead_of_the_clock_is_exceeded_by_exactly_one(stored: int, fresh: World) -> None:
    # Given a last fence that the clock, set back, has not reached
    stored += max(0, server_us(fresh) * 2 - stored) if stored < 2**51 else 0
    fresh.client.set(fresh.keys.fence, stored)
    # Then fences go on from there, without rounding
    assert one_dispatch(fresh, 3) == stored + 1
    assert one_dispatch(fresh) == stored + 4


def test_a_failover_that_lost_the_last_writes_gives_no_fence_out_again(fresh: World) -> None:
    # Given fences that were given out, and a replica that knows of none of them
    base = one_dispatch(fresh, 5)
    fresh.client.delete(fresh.keys.fence, fresh.keys.tickets)
    # Then the clock keeps the next ones apart
    assert one_dispatch(fresh) > base + 4


# -- size ----------------------------------------------------------------------------------------------------------


def test_five_thousand_acknowledgements_and_three_thousand_runs_fit_one_batch(fresh: World) -> None:
    # Given 5,000 messages in flight and 3,000 that wait, one of each ticket
    with fresh.at_once():
        old = [fresh.push(f"old-{i}")[0] for i in range(5000)]
        new = [fresh.push(f"new-{i}")[0] for i in range(3000)]
    fresh.read()
    keys = fresh.keys
    fresh.client.xclaim(keys.stream, keys.group, "w1@a", 0, old, justid=True)
    held = {f"old-{i}": f"[{i + 1},1,x]" for i in range(5000)}
    fresh.client.hset(keys.tickets, mapping=held)
    fresh.client.hset(keys.applied, mapping=dict.fromkeys(held, 1))
    batch = Batch(expected={**held, **{f"new-{i}": "" for i in range(3000)}}, acknowledged=old, released=list(held))
    batch.retries = [argument for i in range(1500) for argument in (i, f"later-{i}")]
    batch.given_back = new
    for consumer in range(3):
        mine = [(f"new-{i}", [new[i]]) for i in range(consumer, 3000, 3)]
        fresh.dispatch(batch, f"w{consumer}@a", mine)
    # When all of it is one step
    started = time.monotonic()
    base = advance(fresh.client, fresh.lead, OPENING, batch).base
    took = time.monotonic() - started
    # Then none is forgotten at the edges of the chunks
    after = fresh.snapshot()
    pending = owners(after, keys)
    assert set(pending) == set(new)
    assert all(pending[new[i]] == f"w{i % 3}@a" for i in range(3000))
    assert set(after[keys.tickets]["value"]) == {f"new-{i}" for i in range(3000)}
    assert keys.applied not in after
    assert len(after[keys.retries]["value"]) == 1500
    fences = sorted(records.parse(text).fence for text in after[keys.tickets]["value"].values())
    assert fences == list(range(base, base + 3000))
    assert took < 5, f"one batch took {took:.1f} s"


def test_no_list_is_cut_at_the_edge_of_a_chunk(fresh: World) -> None:
    for count in (1, 499, 500, 501, 999, 1000, 1001, 2000, 2001):
        names = [f"t{i}" for i in range(count)]
        batch = Batch(records=[argument for name in names for argument in (name, f"[0,1,{name}]")])
        batch.retries = [argument for i, name in enumerate(names) for argument in (i, name)]
        advance(fresh.client, fresh.lead, OPENING, batch)
        after = fresh.snapshot()
        assert after[fresh.keys.tickets]["value"] == {name: f"[0,1,{name}]" for name in names}
        assert after[fresh.keys.retries]["value"] == {name: float(i) for i, name in enumerate(names)}
        advance(fresh.client, fresh.lead, OPENING, Batch(released=names, due=names))
        after = fresh.snapshot()
        assert fresh.keys.tickets not in after
        assert fresh.keys.retries not in after


# -- counters and trimming -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("keep", "left"), [("", 300), ("1-0", 300), ("2-0", 299), ("151-0", 150), ("301-0", 0)])
def test_outcomes_are_trimmed_exactly_up_to_what_was_settled(keep: str, left: int, fresh: World) -> None:
    # Given more outcomes than fit one node of the stream, which an approximate trim would leave
    with fresh.client.pipeline() as pipe:
        for i in range(1, 301):
            pipe.xadd(fresh.keys.outcomes, {"i": "x", "o": "[]"}, id=f"{i}-0")
        pipe.execute()
    advance(fresh.client, fresh.lead, OPENING, Batch(keep_outcomes_from=keep))
    assert fresh.client.xlen(fresh.keys.outcomes) == left


def test_entries_for_a_newer_version_stay_among_settled_outcomes(fresh: World) -> None:
    outcomes = fresh.keys.outcomes
    for n in range(1, 9):
        fresh.client.xadd(outcomes, {"i": "x", "newer" if n in (2, 5) else "o": "[]"}, id=f"{n}-0")

    advance(fresh.client, fresh.lead, OPENING, Batch(keep_outcomes_from="7-0 2-0 5-0"))
    assert [id_ for id_, _ in fresh.client.xrange(outcomes)] == [b"2-0", b"5-0", b"7-0", b"8-0"]

    advance(fresh.client, fresh.lead, OPENING, Batch(keep_outcomes_from="9-0 5-0"))
    assert [id_ for id_, _ in fresh.client.xrange(outcomes)] == [b"5-0"]

    advance(fresh.client, fresh.lead, OPENING, Batch(keep_outcomes_from="9-0"))
    assert fresh.client.xlen(outcomes) == 0
