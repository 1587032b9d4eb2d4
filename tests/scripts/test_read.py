"""read.lua: only the leader of the current term takes entries from the stream."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.routing.errors import NotLeading
from bridge.routing.groups import group_in
from bridge.routing.ids import younger_than
from bridge.routing.states import State
from bridge.routing.transitions import READ_BYTES, read
from tests.scripts.test_advance import deposed, without_a_leader
from tests.scripts.world import MASTER, World

pytestmark = pytest.mark.scripts

MB = 1024 * 1024


def test_new_entries_become_the_masters_in_stream_order(world: World) -> None:
    # Given unread entries
    keys = world.keys
    before = world.snapshot()
    assert [world.state(id_) for id_ in world.unread] == [State.UNREAD] * len(world.unread)
    # When the leader reads
    entries = read(world.client, world.lead, 100).entries
    # Then it has them in order, with their fields, and nothing else changed
    assert [id_.decode() for id_, _ in entries] == world.unread
    assert entries[0][1][:2] == [b"ticket_id", b"busy"]
    group = before[keys.stream]["value"]["groups"][keys.group]
    group["last"] = world.unread[-1]
    group["pending"].update(dict.fromkeys(world.unread, MASTER))
    assert world.snapshot() == before


def test_no_more_than_asked_for_is_read_and_nothing_twice(world: World) -> None:
    assert [id_.decode() for id_, _ in read(world.client, world.lead, 1).entries] == world.unread[:1]
    assert [id_.decode() for id_, _ in read(world.client, world.lead, 100).entries] == world.unread[1:]
    assert read(world.client, world.lead, 100).entries == []


@pytest.mark.parametrize("how", [deposed, without_a_leader])
def test_a_former_leader_takes_nothing_from_the_next_one(how: Any, world: World) -> None:
    how(world)
    before = world.snapshot()
    with pytest.raises(NotLeading):
        read(world.client, world.lead, 100)
    assert world.snapshot() == before


# -- bytes ---------------------------------------------------------------------------------------------------------


def add(world: World, count: int, size: int, **more: str) -> list[str]:
    """Ids of entries whose payloads have so many bytes."""
    text = '"' + "x" * (size - 2) + '"'
    return [
        world.client.xadd(world.keys.stream, {"ticket_id": "T", "payload": text, **more}).decode() for _ in range(count)
    ]


def bytes_of(entries: list[Any]) -> int:
    return sum(len(word) for entry in entries for word in entry[1])


@pytest.mark.parametrize("after", [">", "0-0"])
@pytest.mark.parametrize("first", [1, 16])
def test_a_read_ends_when_it_has_enough_bytes_and_the_next_one_goes_on(first: int, after: str, fresh: World) -> None:
    # Given more than a read may bring, of entries of any size, which wait already or do not
    ids = [*add(fresh, 40, 10), *add(fresh, 40, MB), *add(fresh, 40, 10)]
    if after != ">":
        fresh.client.xreadgroup(fresh.keys.group, MASTER, {fresh.keys.stream: ">"})
    # When all is read
    found: list[str] = []
    more = True
    while more:
        got = read(fresh.client, fresh.lead, 500, after=after, limit=2 * MB, first=first)
        found += [entry[0].decode() for entry in got.entries]
        after = after if after == ">" else found[-1]
        more = got.more
        # Then each read was about as large as it may be, also the one that did not know what would come
        assert bytes_of(got.entries) <= READ_BYTES + 8 * MB
        assert got.largest == max(sum(map(len, entry[1])) for entry in got.entries)
    assert found == ids


def test_of_a_large_entry_only_the_fields_of_a_message_are_returned(fresh: World) -> None:
    [id_] = add(fresh, 1, 100, task="a.task", image="x" * (3 * MB))
    [entry] = read(fresh.client, fresh.lead, 10, limit=MB).entries
    assert entry[0].decode() == id_
    assert dict(zip(entry[1][::2], entry[1][1::2], strict=True)).keys() == {b"ticket_id", b"payload", b"task"}


def test_a_large_entry_keeps_the_fields_that_a_filter_looks_at(fresh: World) -> None:
    add(fresh, 1, 100, region="eu", image="x" * (3 * MB))
    [entry] = read(fresh.client, fresh.lead, 10, limit=MB, names=[b"region", b"kind"]).entries
    fields = dict(zip(entry[1][::2], entry[1][1::2], strict=True))
    assert fields.keys() == {b"ticket_id", b"payload", b"region"}
    assert fields[b"region"] == b"eu"


@pytest.mark.parametrize("fields", [{"payload": "x" * (3 * MB)}, {"a": "x" * (2 * MB), "b": "y" * (2 * MB)}])
def test_only_the_beginnings_of_a_too_large_entry_are_returned(fields: dict[str, str], fresh: World) -> None:
    given = {"ticket_id": "T", **fields}
    fresh.client.xadd(fresh.keys.stream, given)
    [(_, shown, size, count)] = read(fresh.client, fresh.lead, 10, limit=MB).entries
    assert (size, count) == (sum(len(k) + len(v) for k, v in given.items()), len(given))
    assert dict(zip(shown[::2], shown[1::2], strict=True)) == {k.encode(): v[:1024].encode() for k, v in given.items()}


def test_only_a_few_of_a_million_fields_are_returned(fresh: World) -> None:
    arguments = [word for n in range(200_000) for word in (f"field{n}", "x")]
    fresh.client.execute_command("XADD", fresh.keys.stream, "*", *arguments)
    [(_, shown, size, count)] = read(fresh.client, fresh.lead, 10, limit=MB).entries
    assert (len(shown), size, count) == (32, sum(map(len, arguments)), 200_000)


# -- the number of unread entries ----------------------------------------------------------------------------------


class Counted:
    """A lane whose entries are added, read, done, deleted and trimmed. Compares the lag after each change."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.group = ("GROUP", world.keys.group)
        world.client.delete(world.keys.stream)
        world.client.xgroup_create(world.keys.stream, world.keys.group, "0", mkstream=True)

    def add(self, count: int) -> None:
        self.world.push("T", count=count)

    def read(self, count: int) -> None:
        """As a leader reads: it says up to where the group has read."""
        read(self.world.client, self.world.lead, count, read_to=self._seen().read_to)

    def end(self, place: int) -> None:
        """Of the entries that were read, one is done and removed."""
        self._remove(place, "-", self._seen().read_to)

    def delete(self, place: int) -> None:
        """Somebody deletes an unread entry."""
        self._remove(place, *younger_than(self._seen().read_to))

    def trim(self, kept: int) -> None:
        """A producer trims the stream, whether the entries were read or not."""
        self.world.client.xtrim(self.world.keys.stream, kept, approximate=False)

    def check(self, *, known: bool = False) -> None:
        group = self._seen()
        unread = len(self.world.client.xrange(self.world.keys.stream, *younger_than(group.read_to)))
        said = group.unread(self.world.client.xlen(self.world.keys.stream))
        assert said == unread or (said is None and not known)

    def _seen(self) -> Any:
        return group_in(self.world.client.xinfo_groups(self.world.keys.stream), self.world.keys.group)

    def _remove(self, place: int, start: str, end: str) -> None:
        found = [id_ for id_, _ in self.world.client.xrange(self.world.keys.stream, start, end)]
        if found:
            self.world.client.xack(self.world.keys.stream, self.world.keys.group, found[place % len(found)])
            self.world.client.xdel(self.world.keys.stream, found[place % len(found)])


def change(name: str, most: int) -> st.SearchStrategy[tuple[str, int]]:
    return st.tuples(st.just(name), st.integers(1, most))


CHANGES = st.one_of(change("add", 20), change("read", 8), change("end", 40), change("delete", 40), change("trim", 12))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(CHANGES, max_size=16))
def test_the_server_knows_how_many_are_unread_or_says_that_it_does_not(
    changes: list[tuple[str, int]], fresh: World
) -> None:
    lane = Counted(fresh)
    lane.add(5)
    for name, number in changes:
        getattr(lane, name)(number)
        lane.check()


def test_done_entries_that_were_removed_do_not_make_it_forget(fresh: World) -> None:
    # Given an entry that stays pending, and the last one that was read is removed, as it is done
    lane = Counted(fresh)
    lane.add(30)
    lane.read(10)
    lane.end(9)
    # When the next ones are read
    lane.read(10)
    # Then it still knows (Redis 6.2 never does)
    lane.check(known=int(fresh.client.info("server")["redis_version"].split(".")[0]) > 6)
