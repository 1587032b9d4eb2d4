"""`bridge stream retire`: --dry-run writes nothing, and what goes is said before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bridge.inspect.advice import Advice
from bridge.inspect.streams import read_retired, retired_problems
from bridge.operate.deleting import LanesOfStream
from bridge.operate.retiring import Retirement, undo_retirement
from bridge.routing.errors import InputError
from bridge.routing.keys import LaneKeys, layout_key, retired_key, schedule_key
from bridge.routing.layouts import claim_layout
from bridge.routing.versions import left_behind
from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, command_line


@pytest.fixture
def shell(valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with command_line(tmp_path, monkeypatch, valkey.url, bridge_stream="orders:v2") as made:
        yield made


@pytest.fixture
def redis(valkey: EmbeddedServer) -> Iterator[Any]:
    with valkey.client() as connected:
        yield connected


def test_a_dry_run_does_not_undo_a_retirement(shell: CommandLine, redis: Any) -> None:
    redis.xdel("orders", redis.xadd("orders", {"ticket_id": "A", "payload": "{}"}))
    assert shell("stream", "retire", "orders", "--yes").exit_code == 0
    before = {key: redis.dump(key) for key in redis.scan_iter()}
    looked = shell("stream", "retire", "orders", "--undo", "--dry-run")
    assert looked.stdout == "would let the name orders be used again\n"
    assert {key: redis.dump(key) for key in redis.scan_iter()} == before
    undone = shell("stream", "retire", "orders", "--undo", "--json")
    assert json.loads(undone.stdout) == {"dry_run": False, "stream": "orders", "undo": True}
    assert "was not retired" in shell("stream", "retire", "orders", "--undo", "--dry-run").stderr


def test_the_app_of_a_retired_stream_takes_the_retirement_back(
    shell: CommandLine, redis: Any, valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis.xdel("orders", redis.xadd("orders", {"ticket_id": "A", "payload": "{}"}))
    assert shell("stream", "retire", "orders", "--yes").exit_code == 0
    (tmp_path / "old").mkdir()
    with command_line(tmp_path / "old", monkeypatch, valkey.url, bridge_stream="orders") as old:
        row = '{"ticket_id": "A", "payload": {}}'
        assert "was retired" in old("push", "-", "--format", "json", stdin=row).stderr
        assert "is the stream of this app" in old("stream", "retire", "orders", "--yes").stderr
        looked = old("stream", "retire", "orders", "--undo", "--dry-run")
        assert (looked.exit_code, looked.stdout) == (0, "would let the name orders be used again\n")
        undone = old("stream", "retire", "orders", "--undo")
        assert (undone.exit_code, undone.stdout) == (0, "the name orders can be used again\n")
        assert old("push", "-", "--format", "json", stdin=row).exit_code == 0
        assert redis.hgetall(retired_key("orders:v2")) == {}
        assert "was not retired" in old("stream", "retire", "orders", "--undo").stderr


@pytest.mark.parametrize("how", ["--dry-run", "--yes", "ask", "--json"])
@pytest.mark.parametrize("command", ["retire", "repartition"])
def test_what_deletes_a_history_says_so_before(shell: CommandLine, redis: Any, command: str, how: str) -> None:
    stream = {"retire": "orders", "repartition": "orders:v2"}[command]
    redis.xdel(stream, redis.xadd(stream, {"ticket_id": "A", "payload": "{}"}))
    words = {"retire": ("retire", "orders"), "repartition": ("repartition", "2", "--timeout", "0")}[command]
    option = {"--yes": ("--yes",) if command == "retire" else (), "ask": ()}.get(how, (how,))
    said = shell("stream", *words, *option)
    told = said.stdout + said.stderr
    assert told.count("the history and the counters of ") == (how != "--json")
    assert how == "--json" or "audit` before" in told


@pytest.mark.parametrize("partitions", [1, 2])
def test_the_states_of_tickets_outlive_the_version_that_had_them_first(
    shell: CommandLine, redis: Any, partitions: int
) -> None:
    keys = LaneKeys("orders", "concurrency_stream_group")
    redis.hset(keys.state("T:1"), "total", "3")
    layout = claim_layout(redis, "orders", partitions)
    for stream in layout.streams("orders"):
        redis.xgroup_create(stream, keys.group, "0", mkstream=True)
        redis.set(LaneKeys(stream, keys.group).fence, "1")
    redis.hset(schedule_key("orders"), "shop/nightly", "1 1")
    retired = shell("stream", "retire", "orders", "--yes")
    assert retired.exit_code == 0, retired.stderr
    left = {key.decode() for key in redis.scan_iter()}
    assert left == {keys.state("T:1"), layout_key("orders"), retired_key("orders:v2")}


class Killed(BaseException):
    """The process ends."""


def retirement(redis: Any) -> Retirement:
    return Retirement(redis, "orders", "orders:v2", letters=False)


def made(redis: Any, partitions: int) -> tuple[str, ...]:
    """The partitions of `orders`, each with a group that is done, and a message that it keeps."""
    streams = claim_layout(redis, "orders", partitions).streams("orders")
    for stream in streams:
        redis.xadd(stream, {"ticket_id": "T0"})
        redis.xgroup_create(stream, "g", "$")
    return streams


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_message_that_came_while_a_retirement_was_cut_off_is_no_dead_end(redis: Any, partitions: int) -> None:
    streams = made(redis, partitions)
    cut_off = retirement(redis)
    cut_off.check()
    # By XADD
    redis.xadd(streams[-1], {"ticket_id": "T1"})
    cut_off._write_note()
    undo = "`bridge stream retire --undo orders`"
    with pytest.raises(InputError, match=f"{streams[-1]} cannot be retired: .*; .*{undo}"):
        retirement(redis).carry_out()
    said = left_behind(redis, "orders", "orders:v2", "g")
    assert "`bridge stream retire --undo` for it, then name it in bridge_follows" in said
    undo_retirement(redis, "orders", "orders:v2")
    assert "--undo" not in left_behind(redis, "orders", "orders:v2", "g")
    with pytest.raises(InputError, match="nothing was changed"):
        retirement(redis).carry_out()


def test_a_retirement_that_was_killed_anywhere_is_finished_by_the_next_run(
    redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = redis.execute_command
    calls, last, cut_off = 0, 0, set[bool]()

    def killed(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= last:
            # Nothing is done any more, not even what an error leads to.
            raise Killed
        return original(*arguments, **options)

    while calls >= last:
        redis.flushdb()
        made(redis, 2)
        redis.hset(schedule_key("orders"), "shop/nightly", "1 1")
        calls, last = 0, last + 1
        monkeypatch.setattr(redis, "execute_command", killed)
        with suppress(Killed):
            retirement(redis).carry_out()
        monkeypatch.undo()
        advised = retired_problems(read_retired(redis, ["orders:v2"]), Advice())
        assert advised in ([], ["the retirement of orders was cut off: run `bridge stream retire orders` again"])
        cut_off.add(bool(advised))
        with suppress(InputError):
            # Nothing may be left
            retirement(redis).carry_out()
        assert {key.decode() for key in redis.scan_iter()} == {layout_key("orders"), retired_key("orders:v2")}, last
        [one] = read_retired(redis, ["orders:v2"])
        assert (one.stream, one.groups, retired_problems([one], Advice())) == ("orders", (), []), last
    assert last > 15
    assert cut_off == {False, True}


def test_a_retirement_that_stops_in_between_says_so(redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, last = made(redis, 2)
    original = LanesOfStream.delete

    def used_meanwhile(lanes: LanesOfStream, *, look: bool = False, keep: Any = ()) -> int:
        if not look and not redis.exists("orders:p0"):
            redis.set(LaneKeys(last, "g").leader, "7 m1")
        return original(lanes, look=look, keep=keep)

    monkeypatch.setattr(LanesOfStream, "delete", used_meanwhile)
    with pytest.raises(InputError, match=r"; the stream is retired, and 1 key deleted: run this again for the rest$"):
        retirement(redis).carry_out()
    # And a run that is refused leaves the note
    with pytest.raises(InputError, match=r"is led by the master m1.*; nothing was changed$"):
        retirement(redis).carry_out()
    assert [one.stream for one in read_retired(redis, ["orders:v2"])] == ["orders"]
    redis.delete(LaneKeys(last, "g").leader)
    monkeypatch.undo()
    assert retirement(redis).carry_out() == 1


def test_dead_letters_of_an_app_are_not_dropped_by_one_without_a_name(
    redis: Any, valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = LaneKeys("orders", "g")
    redis.xgroup_create("orders", "g", "0", mkstream=True)
    redis.xadd(keys.dead, {"message_id": "1-1"})
    redis.hset(keys.about, mapping={"format": 1, "app": "bakery"})
    with command_line(tmp_path, monkeypatch, valkey.url, bridge_stream="orders:v2") as shell:
        shell.write_app((tmp_path / f"{shell.app}.py").read_text().replace('Celery("shop", ', "Celery("))
        said = shell("stream", "retire", "orders", "--drop-dead", "--yes")
    assert said.exit_code == 2
    assert "belongs to the app 'bakery', and this has no name: " in said.stderr
    assert redis.xlen(keys.dead) == 1


#: Names of groups of another program.
FOREIGN = [b"foreign\xff", b"\xc3", "\xfcn\xef:%FF".encode(), b"a b\n\x00", b"%s{}"]


@pytest.mark.parametrize("group", FOREIGN, ids=ascii)
def test_a_stream_is_retired_with_a_group_of_any_name(shell: CommandLine, redis: Any, group: bytes) -> None:
    redis.xadd("orders", {"ticket_id": "A", "payload": "{}"})
    redis.xgroup_create("orders", group, "0")
    redis.set(b"{orders}:" + group, "of this program")
    refused = shell("stream", "retire", "orders", "--yes")
    assert "has not read all its messages" in refused.stderr
    redis.xgroup_setid("orders", group, "$")
    looked = shell.json("stream", "retire", "orders", "--dry-run")
    assert group.decode(errors="replace") in looked["groups"]
    retired = shell("stream", "retire", "orders", "--yes")
    assert (retired.exit_code, redis.keys(b"*" + group)) == (0, []), retired.stderr
    assert not redis.exists("orders")


@pytest.mark.parametrize("group", FOREIGN, ids=ascii)
def test_a_stream_is_split_with_a_group_of_any_name(shell: CommandLine, redis: Any, group: bytes) -> None:
    redis.xadd("orders:v2", {"ticket_id": "A", "payload": "{}"})
    redis.xgroup_create("orders:v2", "concurrency_stream_group", "$")
    redis.xgroup_create("orders:v2", group, "0")
    waits = shell("stream", "repartition", "2", "--timeout", "0")
    assert "has messages that group " in waits.stderr
    redis.xgroup_setid("orders:v2", group, "$")
    split = shell("stream", "repartition", "2", "--timeout", "20")
    assert (split.exit_code, redis.exists("orders:v2")) == (0, 0), split.stderr
    streams = shell.json("stream", "info")["streams"]
    assert [group in [one["name"] for one in redis.xinfo_groups(stream)] for stream in streams] == [True, True]


@pytest.mark.parametrize(("partitions", "done"), [("1", True), ("2", False)])
def test_a_dry_run_of_a_repartition_is_done_if_there_is_nothing_to_do(
    shell: CommandLine, redis: Any, partitions: str, done: bool
) -> None:
    redis.xgroup_create("orders:v2", "concurrency_stream_group", "0", mkstream=True)
    assert shell.json("stream", "repartition", partitions, "--dry-run")["done"] is done
