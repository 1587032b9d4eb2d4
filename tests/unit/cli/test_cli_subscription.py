"""`bridge subscription`: adds, lists and removes the logical consumers of a stream, or says in one line why not."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.routing.keys import LaneKeys
from bridge.routing.membership import register
from bridge.stack.embedded import EmbeddedServer
from tests.commands import APP, CommandLine, Lane, command_line
from tests.operators import park
from tests.script_calls import lead
from tests.unit.cli.subscriptions import SUBSCRIPTIONS, full_lane, pushed, raw, shell_of


@pytest.fixture
def shell(valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with shell_of(valkey, tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def redis(valkey: EmbeddedServer) -> Iterator[Any]:
    with valkey.client(decode_responses=True) as connected:
        yield connected


def group(redis: Any, name: str) -> dict[str, Any] | None:
    return next((one for one in redis.xinfo_groups("ticket_stream") if one["name"] == name), None)


@pytest.mark.parametrize(
    ("position", "unread"), [("start", 3), ("now", 0), ("second", 2), ("0", 3), ("0-0", 3)], ids=str
)
def test_a_subscription_begins_where_it_was_told(shell: CommandLine, redis: Any, position: str, unread: int) -> None:
    ids = pushed(redis, 3)
    said = shell("subscription", "add", "billing", "--from", ids[1] if position == "second" else position)
    assert said.exit_code == 0, said.stderr
    assert said.stdout.startswith(f"added billing on ticket_stream: {unread} message")
    # What it has not read yet
    reply = redis.xreadgroup("billing", "anybody", {"ticket_stream": ">"})
    assert len(reply[0][1] if reply else []) == unread
    assert redis.hgetall(LaneKeys("ticket_stream", "billing").about) == {"format": "1", "app": "shop"}


def unread_of(shell: CommandLine, name: str) -> tuple[int, bool, int]:
    """(unread, whether that is exact, undone) as `bridge subscription list` has it."""
    found = json.loads(shell("subscription", "list", "--json").stdout)["subscriptions"]
    one = next(one for one in found if one["name"] == name)
    return one["unread"], one["unread_exact"], one["undone"]


def test_before_anything_is_read_the_count_is_that_of_the_messages_after_its_beginning(
    shell: CommandLine, redis: Any
) -> None:
    # Done messages leave the stream. Since one did, the server does not know how much a new group has not read.
    redis.xdel("ticket_stream", *pushed(redis, 2))
    ids = pushed(redis, 5)
    for name, position in (("billing", "start"), ("search", "now"), ("mail", ids[3])):
        assert shell("subscription", "add", name, "--from", position).exit_code == 0
    pushed(redis, 4)
    assert unread_of(shell, "billing") == (9, True, 9)
    assert unread_of(shell, "search") == (4, True, 4)
    assert unread_of(shell, "mail") == (6, True, 6)
    said = shell("subscription", "remove", "mail", "--dry-run").stdout
    assert "with 6 undone messages (6 unread)" in said


def test_what_is_too_much_to_count_is_said_to_be_an_upper_bound(
    shell: CommandLine, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.inspect.stream_status.COUNTED", 3)
    ids = pushed(redis, 6)
    assert "at most 6 messages to read" in shell("subscription", "add", "billing", "--from", ids[2]).stdout
    assert unread_of(shell, "billing") == (6, False, 6)
    assert (
        "at most 6 undone messages (at most 6 unread)" in shell("subscription", "remove", "billing", "--dry-run").stdout
    )
    listed = shell("subscription", "list").stdout
    assert listed.count("at most 6") == 2


def test_an_addition_says_what_had_left_the_stream_and_a_removal_that_messages_leave(
    shell: CommandLine, redis: Any
) -> None:
    ids = pushed(redis, 5)
    assert "had left" not in shell("subscription", "add", "search").stdout
    assert "added again, it misses them" in shell("subscription", "remove", "search", "--yes").stdout
    redis.xdel("ticket_stream", *ids[:2])
    lines = {"start": "2 earlier messages had left", ids[0]: "at most 2 earlier", ids[1]: "at most 2 earlier"}
    for position in ("start", "now", *ids):
        shown = shell("subscription", "add", "search", "--from", position).stdout
        if position in lines:
            assert shown.splitlines()[1].startswith(lines[position]), position
        else:
            assert "had left the stream" not in shown, position
        redis.xgroup_destroy("ticket_stream", "search")


def test_without_a_stream_it_begins_with_the_first_message(shell: CommandLine, redis: Any) -> None:
    assert shell("subscription", "add", "billing").exit_code == 0
    pushed(redis, 2)
    assert len(redis.xreadgroup("billing", "anybody", {"ticket_stream": ">"})[0][1]) == 2


def test_the_name_of_another_code_base_is_added_and_its_app_is_not_decided(shell: CommandLine, redis: Any) -> None:
    pushed(redis, 1)
    said = shell("subscription", "add", "mail").stdout
    assert "no subscription of this app has this name (billing, search)" in said
    assert group(redis, "mail") is not None
    assert not redis.exists(LaneKeys("ticket_stream", "mail").about)


REFUSED = [
    (("add", "a b"), 2, "the subscription: 'a b' cannot name a subscription"),
    (("add", "billing", "--from", "yesterday"), 2, "--from yesterday: it must be start, now, or the id of a message"),
    (("add", "billing", "--from", "9999999999999-0"), 1, "ticket_stream has no message 9999999999999-0 yet"),
    (("add", "theirs"), 2, "belongs to the app 'depot', and this is 'shop'"),
    (("add", "search"), 1, "there is a subscription search on ticket_stream already"),
    (("add", "future"), 2, "is kept by a newer Ticket Bridge, in format 99"),
    (("remove", "nobody", "--yes"), 1, "there is no subscription nobody on ticket_stream"),
    (("remove", "theirs", "--yes"), 2, "belongs to the app 'depot', and this is 'shop'"),
    (("remove", "future", "--yes"), 2, "is kept by a newer Ticket Bridge, in format 99"),
    (("remove", "search"), 2, "this would remove search on ticket_stream with 1 undone message (1 unread)"),
]


@pytest.mark.parametrize(("arguments", "code", "line"), REFUSED, ids=[" ".join(words) for words, *_ in REFUSED])
def test_what_cannot_be_is_refused_in_one_line_and_nothing_is_changed(
    shell: CommandLine, redis: Any, valkey: EmbeddedServer, arguments: tuple[str, ...], code: int, line: str
) -> None:
    pushed(redis, 1)
    redis.xgroup_create("ticket_stream", "search", "0")
    redis.hset(LaneKeys("ticket_stream", "theirs").about, mapping={"format": 1, "app": "depot"})
    redis.hset(LaneKeys("ticket_stream", "future").about, mapping={"format": 99})
    before = raw(valkey)
    said = shell("subscription", *arguments)
    assert said.exit_code == code
    (error,) = [one for one in said.stderr.splitlines() if one.startswith("Error: ")]
    assert line in error
    assert raw(valkey) == before


def test_the_list_has_all_groups_of_the_stream(shell: CommandLine, redis: Any, valkey: EmbeddedServer) -> None:
    lane = full_lane(valkey, redis)
    redis.xgroup_create("ticket_stream", "stranger", "$")
    redis.xgroup_create("ticket_stream", "theirs", "0")
    redis.hset(LaneKeys("ticket_stream", "theirs").about, mapping={"format": 1, "app": "depot"})
    found = {one["name"]: one for one in shell.json("subscription", "list")["subscriptions"]}
    assert list(found) == ["billing", "search", "stranger", "theirs"]
    facts = {name: (one["declared"], one["exists"], one["app"], one["undone"]) for name, one in found.items()}
    assert facts == {
        "billing": (True, True, "shop", 3),
        "search": (True, False, None, 3),
        "stranger": (False, True, None, 0),
        "theirs": (False, True, "depot", 3),
    }
    billing = found["billing"]
    assert (billing["unread"], billing["in_flight"], billing["awaiting_retry"], billing["waiting"]) == (1, 1, 1, 0)
    assert (billing["dead"], billing["led"], billing["consumers"]) == (1, 1, 1)
    assert billing["held_bytes"] > 0
    shown = shell("subscription", "list").stdout.splitlines()
    assert [line.split()[0] for line in shown] == ["subscription", *found]
    lane.redis.close()


def test_the_status_of_several_subscriptions_has_a_row_for_each(
    shell: CommandLine, redis: Any, valkey: EmbeddedServer
) -> None:
    lane = full_lane(valkey, redis)
    redis.hset(lane.keys.counts, "done", 1234)
    found = shell.json("status")["subscriptions"]
    assert [(one["name"], one["undone"], one["led"]) for one in found] == [("billing", 3, 1), ("search", 3, 0)]
    assert found[0]["counters"]["done"] == 1234
    assert 0 <= found[0]["oldest_undone_ms"] < 60_000
    head, billing, search, *rest = shell("status").stdout.splitlines()
    assert head.split()[0] == "subscription"
    assert billing.split()[:10] == ["billing", "yes", "1", "0", "1", "1", "0", "0", "1", "1,234"]
    assert search.split()[:3] == ["search", "no", "3"]
    add = f"`bridge -A {shell.app} subscription add search`"
    assert rest[0] == f"! search has no consumer group yet: the first master makes it, or {add}"
    # With -s: the state of one
    assert shell.json("status", "-s", "billing")["in_flight"] == 1
    lane.redis.close()


def test_a_subscription_that_alone_holds_memory_is_named_with_messages_and_bytes(
    shell: CommandLine, redis: Any
) -> None:
    redis.xgroup_create("ticket_stream", "billing", "0", mkstream=True)
    with redis.pipeline() as pipe:
        for n in range(1500):
            pipe.xadd("ticket_stream", {"ticket_id": f"T{n}", "payload": "x" * 200})
        pipe.execute()
    redis.xgroup_create("ticket_stream", "search", "0")
    # As long as both are behind, none of them holds anything alone
    assert not any("alone" in problem for one in shell.json("status")["subscriptions"] for problem in one["problems"])
    redis.xreadgroup("search", "anybody", {"ticket_stream": ">"}, count=1200, noack=True)
    billing, search = shell.json("status")["subscriptions"]
    assert (billing["held_alone"], search["held_alone"]) == (1200, 0)
    # Bytes of the messages, and not much more
    assert 1200 * 200 < billing["held_alone_bytes"] < 1200 * 400
    assert 1500 * 200 < billing["held_bytes"] < 1500 * 400
    (line,) = [line for line in shell("status").stdout.splitlines() if "alone" in line]
    assert "billing alone holds 1,200 messages of ticket_stream, about" in line


def test_dead_letters_that_hold_memory_are_named(
    shell: CommandLine, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.inspect.stream_status.HOLDS_MESSAGES", 3)
    ids = pushed(redis, 4)
    for name, letters in (("billing", 2), ("search", 3)):
        redis.xgroup_create("ticket_stream", name, "$")
        for id_ in ids[:letters]:
            redis.xadd(LaneKeys("ticket_stream", name).dead, {"message_id": id_})
    (line,) = [line for line in shell("status").stdout.splitlines() if "dead letter" in line]
    assert line.startswith("! search has 3 dead letters: their messages stay in ticket_stream, about ")
    assert line.endswith(f"; replay or drop them (`bridge -A {shell.app} dead list -s search`)")
    assert shell("dead", "list", "-s", "search").exit_code == 0


def test_an_undeclared_subscription_that_holds_memory_is_named(
    valkey: EmbeddedServer, redis: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.inspect.stream_status.HOLDS_MESSAGES", 3)
    pushed(redis, 5)
    # Two that nobody serves any more hold the same messages.
    for name in ("forgotten", "lost"):
        redis.xgroup_create("ticket_stream", name, "0")
    for name in ("billing", "search", "concurrency_stream_group"):
        redis.xgroup_create("ticket_stream", name, "$")
    sentence = "forgotten, a subscription that this app does not name, holds 5 messages of ticket_stream, about "
    for settings in ({}, {"bridge_subscriptions": SUBSCRIPTIONS, "bridge_default_task": None}):
        with command_line(tmp_path, monkeypatch, valkey.url, **settings) as shell:
            named = json.loads(shell("status", "--json").stdout)["problems"]
            assert any(problem.startswith(sentence) for problem in named)
            assert any(problem.startswith("lost, a subscription") for problem in named)
            said = " ".join(shell("status").stdout.split())
            assert "! forgotten, a subscription that this app does not name" in said
            assert f"`bridge -A {shell.app} subscription remove forgotten`" in said
    # What all have undone is held by nobody alone.
    redis.xgroup_setid("ticket_stream", "concurrency_stream_group", "0")
    with command_line(tmp_path, monkeypatch, valkey.url) as shell:
        assert "does not name" not in shell("status").stdout


def test_a_lane_of_a_newer_format_is_named_in_the_status_of_all(shell: CommandLine, redis: Any) -> None:
    redis.hset(LaneKeys("ticket_stream", "search").about, "format", "2")
    said = shell("status")
    assert said.exit_code == 0
    assert "! search is kept by a newer Ticket Bridge, in format 2: upgrade this one" in said.stdout.splitlines()


OTHER = """
@app.task(bind=True, name="shop.other", shared=False)
def other(self, ticket_id, payload):
    pass
"""


def test_a_file_is_pushed_for_tasks_of_subscriptions_only(shell: CommandLine, redis: Any, tmp_path: Path) -> None:
    text = (tmp_path / f"{shell.app}.py").read_text()
    shell.write_app(text + OTHER)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"ticket_id": "T", "n": 1}\n')
    said = shell("push", str(rows), "--task", "shop.other")
    assert said.exit_code == 2
    assert "--task shop.other: it belongs to no subscription; this app's tasks: shop.once, shop.update" in said.stderr
    assert not redis.exists("ticket_stream")
    # A row without a task is for the subscriptions' own tasks
    assert shell("push", str(rows)).exit_code == 0
    rows.write_text('{"ticket_id": "T", "n": 1, "task": "shop.update"}\n')
    assert shell("push", str(rows)).exit_code == 0
    assert [fields.get("task") for _, fields in redis.xrange("ticket_stream")] == [None, "shop.update"]


def test_all_partitions_of_a_split_stream_add_up(
    valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis: Any
) -> None:
    with command_line(tmp_path, monkeypatch, valkey.url, bridge_partitions=3, bridge_group="all") as shell:
        assert shell("subscription", "add", "all").exit_code == 0
        streams = [f"ticket_stream:p{n}" for n in range(3)]
        for n, stream in enumerate(streams):
            for _ in range(n + 1):
                redis.xadd(stream, {"ticket_id": "T", "payload": "{}"})
        (row,) = shell.json("status")["subscriptions"]
        assert (row["name"], row["unread"], row["led"], row["lanes"]) == ("all", 6, 0, 3)
        assert shell("subscription", "remove", "all", "--yes").stdout.startswith(
            "removed all on ticket_stream:p0, ticket_stream:p1, ticket_stream:p2 with 6 undone messages (6 unread)"
        )
        assert [redis.xinfo_groups(stream) for stream in streams] == [[], [], []]


def test_a_parked_ticket_without_messages_is_named_in_the_status_of_all(
    shell: CommandLine, redis: Any, valkey: EmbeddedServer
) -> None:
    lane = Lane(valkey)
    for name in SUBSCRIPTIONS:
        redis.xgroup_create("ticket_stream", name, "0", mkstream=True)
        lane.keys = LaneKeys("ticket_stream", name)
        lane.lead()
        lane.join("w1@here")
    assert shell.json("status")["problems"] == []
    park(lane, "A", [], "r")
    [problem] = shell.json("status")["problems"]
    assert problem.startswith("search on ticket_stream: 1 ticket parked: ")
    lane.redis.close()


def test_a_subscription_that_reads_nothing_new_is_named(
    valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis: Any
) -> None:
    limited = {"task": "shop.update", "max_lag": {"count": 2, "then": "park"}}
    subscriptions = {"billing": limited, "search": {"task": "shop.once"}}
    with command_line(tmp_path, monkeypatch, valkey.url, bridge_subscriptions=subscriptions) as shell:
        for number, stopped in ((2, 0), (1, 1)):
            pushed(redis, number)
            billing, search = shell.json("status")["subscriptions"]
            assert (billing["stopped"], search["stopped"]) == (stopped, 0)
            one = shell.json("status", "-s", "billing")["problems"]
            assert ("the lane reads nothing new" in " ".join(one)) is bool(stopped)
        assert any("billing reads nothing new" in line for line in shell("status").stdout.splitlines())


@pytest.mark.parametrize("limit", [{"count": 2}, {"bytes": 20_000}, {"age": 1}], ids=str)
@pytest.mark.parametrize(("read", "unread"), [(9, 0), (9, 1), (9, 9), (0, 1), (0, 9)])
def test_what_is_read_stops_no_lane_and_both_texts_of_status_say_the_same(
    valkey: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    redis: Any,
    limit: dict[str, Any],
    read: int,
    unread: int,
) -> None:
    # All are old; the bytes are those of three and more.
    ids = [f"{n}-1" for n in range(1, read + unread + 1)]
    for id_ in ids:
        redis.xadd("ticket_stream", {"ticket_id": "T", "payload": '"' + "x" * 8000 + '"'}, id=id_)
    names = {"billing": {"task": "shop.update", "max_lag": {**limit, "then": "park"}}, "search": {"task": "shop.once"}}
    with command_line(tmp_path, monkeypatch, valkey.url, bridge_subscriptions=names) as shell:
        assert shell("subscription", "add", "billing", "--from", "start").exit_code == 0
        if read:
            redis.xreadgroup("billing", "m1", {"ticket_stream": ">"}, count=read)
        stopped = unread > 2 or ("age" in limit and unread > 0)
        lane = shell.json("status", "-s", "billing")
        texts = (shell.json("status")["subscriptions"][0]["problems"], lane["problems"])
        told = [[one.partition(" reads ")[2] for one in text if " reads " in one] for text in texts]
        assert told[0] == told[1]
        assert len(told[0]) == lane["stopped"] == stopped
        assert not any("start workers" in one for one in told[0])


@pytest.mark.parametrize("words", [("status",), ("ticket", "list"), ("dead", "list"), ("consumer", "list"), ("audit",)])
def test_an_unknown_subscription_is_named_with_those_that_there_are(
    shell: CommandLine, valkey: EmbeddedServer, words: tuple[str, ...]
) -> None:
    said = shell(*words, "-s", "nobody")
    assert said.exit_code == 2
    assert said.stderr == "Error: there is no subscription 'nobody'; this app has: billing, search\n"
    assert raw(valkey) == {}


def test_a_message_that_names_the_task_of_another_subscription_waits_for_the_default_task(
    shell: CommandLine, redis: Any, valkey: EmbeddedServer
) -> None:
    redis.xadd("ticket_stream", {"ticket_id": "A", "task": "shop.update", "payload": "{}"})
    keys = LaneKeys("ticket_stream", "search")
    redis.xgroup_create("ticket_stream", "search", "0")
    with valkey.client() as raw:
        lead(raw, keys, "host:1:abc", 60_000)
        registration = {"queue": keys.queue("w1@a"), "incarnation": "i1", "slots": 1, "tasks": ["other"], "since": 1}
        register(raw, keys, "w1@a", "i1", 60_000, json.dumps(registration), None)
    redis.xreadgroup("search", "master", {"ticket_stream": ">"})
    seen = shell.json("ticket", "show", "A", "-s", "search")
    assert seen["state"] == "waiting"
    assert "no consumer that is alive can run its task shop.once" in seen["why"]


def test_an_operator_without_permission_for_the_group_of_another_app_gets_the_list(
    shell: CommandLine, redis: Any, valkey: EmbeddedServer
) -> None:
    pushed(redis, 3)
    for name in ("billing", "theirs", "later"):
        redis.xgroup_create("ticket_stream", name, "0")
    # Given a group with delayed messages, which is looked at more closely where that is permitted
    redis.xreadgroup("later", LaneKeys("ticket_stream", "later").delayed_consumer("master"), {"ticket_stream": ">"})
    redis.execute_command(*shell("acl", "operator").stdout.split(), ">secret")
    url = valkey.url.replace("redis://", "redis://bridge-operator:secret@")
    shell.write_app(APP.format(url=url, settings={"bridge_subscriptions": SUBSCRIPTIONS}))
    sys.modules.pop(shell.app)
    found = {one["name"]: one for one in shell.json("subscription", "list")["subscriptions"]}
    assert (found["billing"]["permitted"], found["billing"]["unread"]) == (True, 3)
    assert (found["theirs"]["permitted"], found["theirs"]["unread"]) == (False, 3)
    assert (found["later"]["permitted"], found["later"]["unread"]) == (False, 0)
    [row] = [line.split() for line in shell("subscription", "list").stdout.splitlines() if line.startswith("theirs")]
    assert row[:7] == ["theirs", "no", "permission", "ticket_stream", "there", "3", "3"]
    assert row[7] == "?"
    # Of its own subscriptions it must be told.
    keys = ("~ticket_stream", "~{ticket_stream}/layout", "~{ticket_stream}:search:*")
    redis.execute_command("ACL", "SETUSER", "bridge-operator", "resetkeys", *keys)
    assert "this Redis user may not do that" in shell("subscription", "list").stderr
    redis.execute_command("ACL", "DELUSER", "bridge-operator")


def test_a_user_without_permission_to_look_gets_one_line(
    shell: CommandLine, redis: Any, valkey: EmbeddedServer
) -> None:
    pushed(redis, 1)
    rules = ["+@all", "~*", "&*", ">secret", "on"]
    url = valkey.url.replace("redis://", "redis://looker:secret@")
    shell.write_app(APP.format(url=url, settings={"bridge_subscriptions": SUBSCRIPTIONS}))
    for refused in ("time", "xinfo|groups", "xlen", "hlen", "xrange"):
        redis.execute_command("ACL", "SETUSER", "looker", "reset", *rules, f"-{refused}")
        for command in (["status"], ["subscription", "list"]):
            said = shell(*command)
            assert said.exit_code == 1, (refused, command)
            assert said.stderr.startswith("Error: this Redis user may not do that")
            assert said.stderr.count("\n") == 1
    redis.execute_command("ACL", "DELUSER", "looker")


def test_what_a_status_advises_keeps_to_its_stream_and_names_a_worker_that_no_other_subscription_has(
    valkey: EmbeddedServer, redis: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"bridge_subscriptions": SUBSCRIPTIONS, "bridge_default_task": None, "bridge_follows": ["old"]}
    for stream in ("old", "ticket_stream"):
        for name in SUBSCRIPTIONS:
            redis.xgroup_create(stream, name, "0", mkstream=True)
    redis.xadd("old", {"ticket_id": "T", "payload": "{}"})
    with command_line(tmp_path, monkeypatch, valkey.url, **settings) as shell:
        advised = shell("status", "--stream", "old").stdout
        assert "status -s billing --stream old` shows one of them" in " ".join(advised.split())
        assert "--stream" not in shell("status").stdout.rpartition("shows one of them")[0].rpartition("`bridge")[2]
        # w1 may serve the other one: of two workers with one name the second one ends.
        said = " ".join(shell("status", "-s", "search", "--stream", "old").stdout.split())
        assert "worker -n w1-search@%h" in said


@pytest.mark.parametrize(
    "command",
    [
        ["subscription", "add", "billing"],
        ["subscription", "remove", "search", "--yes"],
        ["stream", "retire", "old", "--yes"],
        ["stream", "repartition", "3"],
    ],
    ids=" ".join,
)
def test_who_may_not_change_lanes_is_told_who_may_in_one_line(
    valkey: EmbeddedServer, redis: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    for stream in ("old", "ticket_stream"):
        redis.xgroup_create(stream, "search", "0", mkstream=True)
    redis.execute_command("ACL", "SETUSER", "reader", "reset", "on", ">pw", "+@all", "-@write", "~*")
    settings = {"bridge_subscriptions": SUBSCRIPTIONS, "bridge_default_task": None}
    url = valkey.url.replace("redis://", "redis://reader:pw@")
    with command_line(tmp_path, monkeypatch, url, **settings) as shell:
        refused = shell(*command)
    redis.execute_command("ACL", "DELUSER", "reader")
    assert refused.exit_code == 1
    assert len(refused.stderr.splitlines()) == 1
    assert "this Redis user may not do that: " in refused.stderr
    assert "use the URL of an administrator" in refused.stderr
