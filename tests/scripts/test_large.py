"""survey.lua, oldest.lua and recall.lua are bounded in bytes in each call."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.routing.ids import LAST_ID
from bridge.routing.transitions import BEGINNING, READ_BYTES, SURVEY, oldest, recall, survey
from tests.scripts.world import World, changes

pytestmark = pytest.mark.scripts

MB = 1024 * 1024
#: Entries of which a look reads so many at once, when it does not know yet that they are large.
STEP = 16


def calls(world: World) -> int:
    """Scripts that the server ran since its statistics were reset."""
    stats = world.client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


def add(world: World, ticket: str, size: int, count: int) -> list[tuple[str, str]]:
    return [(id_, ticket) for id_ in world.push(ticket, "x" * size, count)]


def test_a_survey_names_all_entries_in_order_and_reads_few_bytes_at_once(fresh: World) -> None:
    # Given entries of all sizes
    parts = [("a", 10, 1500), ("b", MB, 40), ("a", 10, 40), ("ü {c}", MB, 1)]
    given = [entry for ticket, size, count in parts for entry in add(fresh, ticket, size, count)]
    size_of = {"a": 10, "b": MB, "ü {c}": MB}
    # When they are surveyed, then each page is of a bounded size
    found = []
    for page in survey(fresh.client, fresh.keys.stream, "-", "+"):
        assert len(page) <= SURVEY
        assert sum(size_of[ticket] for _, ticket in page) <= READ_BYTES + STEP * MB
        found += page
    assert found == given
    # And a part of them is that part
    [part] = survey(fresh.client, fresh.keys.stream, f"({given[3][0]}", given[7][0])
    assert part == given[4:8]
    assert list(survey(fresh.client, fresh.keys.stream, "(9999999-0", "+")) == []
    # Also where the last one has the largest id that there can be
    fresh.client.execute_command("XADD", fresh.keys.stream, LAST_ID, "ticket_id", "last")
    assert list(survey(fresh.client, fresh.keys.stream, f"({given[-1][0]}", LAST_ID)) == [[(LAST_ID, "last")]]


def test_a_survey_names_no_ticket_that_is_none_and_changes_nothing(fresh: World) -> None:
    stream = fresh.keys.stream
    for fields in ({"payload": "1"}, {"ticket_id": "x" * 513}, {"ticket_id": b"\xff"}, {"ticket_id": "T"}):
        fresh.client.xadd(stream, fields)
    # As a master reads it: of two tickets the last one counts
    fresh.client.execute_command("XADD", stream, "*", "ticket_id", "first", "ticket_id", "last")
    before = fresh.snapshot()
    [page] = survey(fresh.client, stream, "-", "+")
    assert [ticket for _, ticket in page] == ["", "", "\ufffd", "T", "last"]
    assert changes(before, fresh.snapshot()) == set()


def test_the_oldest_message_of_each_queue_is_returned_in_part_a_few_megabytes_at_a_time(fresh: World) -> None:
    # Given queues of large messages, small ones and none
    queues = [fresh.keys.queue(f"w{n}@a") for n in range(20)]
    for n, queue in enumerate(queues[:18]):
        fresh.client.lpush(queue, f"older {n} ".ljust(MB, "x"), f"newer {n}")
    fresh.client.lpush(queues[18], "small")
    fresh.client.config_resetstat()
    # When they are looked at
    found: list[Any] = oldest(fresh.client, queues)
    # Then each is known, of none more than its beginning comes, and no call had many of the large ones
    assert found == [*(f"older {n} ".ljust(BEGINNING, "x").encode() for n in range(18)), b"small", b""]
    assert calls(fresh) >= 18 * MB // (READ_BYTES + MB)


def test_large_messages_are_taken_back_a_few_at_a_time(fresh: World) -> None:
    queue = fresh.keys.queue("w1@a")
    given = [f"message {n} ".ljust(MB, "x").encode() for n in range(10)]
    for message in given:
        fresh.client.lpush(queue, message)
    found: list[bytes] = []
    while texts := recall(fresh.client, fresh.lead, "w1@a", 100):
        assert sum(map(len, texts)) <= READ_BYTES + MB
        found += texts
    assert found == given
