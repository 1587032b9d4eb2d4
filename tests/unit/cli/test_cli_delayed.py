"""``bridge delayed``: what is listed, shown, and ordered from the leader; without one that carries it out."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.cli.refusals import NOT_BEGUN
from bridge.inspect.delayed import Mode
from bridge.operate.deleting import LanesOfStream, StillUsed
from bridge.protocol.orders import DELAYED_IDS
from bridge.routing.ids import member_of
from bridge.routing.numbers import moment
from bridge.routing.records import HELD
from bridge.stack.embedded import EmbeddedServer
from tests.commands import MASTER, CommandLine, Lane, calls_of, command_line, letter
from tests.operators import FakeLeader, fake_leader, park

HOUR_MS = 3_600_000


@pytest.fixture
def shell(valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with command_line(tmp_path, monkeypatch, valkey.url) as made:
        yield made


@pytest.fixture
def lane(valkey: EmbeddedServer) -> Iterator[Lane]:
    made = Lane(valkey)
    made.make_group()
    made.lead()
    yield made
    made.redis.close()


def delay(lane: Lane, id_: str, due_ms: int, mode: Mode = Mode.OVERTAKE) -> None:
    """A message that was read is delayed."""
    keys = lane.keys
    if mode is Mode.OVERTAKE:
        name = keys.delayed_consumer(MASTER)
        lane.redis.xclaim(keys.stream, keys.group, name, 0, list[Any]([id_]), justid=True)
    lane.redis.zadd(keys.delayed if mode is Mode.OVERTAKE else keys.holding, {member_of(id_): due_ms})


def delayed_ones(lane: Lane, *tickets: str, after_ms: int = HOUR_MS, **options: Any) -> list[str]:
    """A delayed message for each of ``tickets``, each due a minute after the one before. Returns their ids."""
    ids = lane.add(*tickets, **options)
    lane.read()
    first = int(time.time() * 1000) + after_ms
    for at, id_ in enumerate(ids):
        delay(lane, id_, first + at * 60_000)
    return ids


def ids_of(document: Any) -> list[str]:
    return [one["message_id"] for one in document["messages"]]


# -- reading -------------------------------------------------------------------------------------------------------


def test_what_is_due_next_comes_first(shell: CommandLine, lane: Lane) -> None:
    assert shell("delayed", "list").stdout == "no delayed messages\n"
    overtaking = delayed_ones(lane, "A", "B", "C")
    [held] = lane.add("D", task="shop.once")
    lane.read()
    delay(lane, held, int(time.time() * 1000) + 60_000, Mode.HOLD)
    found = shell.json("delayed", "list")
    assert ids_of(found) == [held, *overtaking]
    assert (found["total"], found["more"]) == (4, False)
    first = found["messages"][0]
    assert (first["ticket_id"], first["task"], first["mode"]) == ("D", "shop.once", "hold")
    assert 50_000 < first["due_in_ms"] <= 60_000
    shown = shell("delayed", "list").stdout.splitlines()
    assert [line.split()[0] for line in shown] == ["message", held, *overtaking]
    assert shown[2].split()[1:3] == ["A", "shop.update"]


def test_a_list_is_bounded_and_says_so(shell: CommandLine, lane: Lane) -> None:
    ids = delayed_ones(lane, *"ABCDE")
    said = shell("delayed", "list", "--limit", "2").stdout
    assert "the next 2 are shown, there are 5: --limit N shows more" in said
    found = shell.json("delayed", "list", "--limit", "2")
    assert (ids_of(found), found["more"], found["total"]) == (ids[:2], True, 5)


def test_filters_choose(shell: CommandLine, lane: Lane) -> None:
    ids = delayed_ones(lane, "A", "B", "A")
    [once] = delayed_ones(lane, "B", after_ms=9 * HOUR_MS, task="shop.once")
    [held] = lane.add("C")
    lane.read()
    delay(lane, held, int(time.time() * 1000) + HOUR_MS // 2, Mode.HOLD)
    for arguments, wanted in (
        (["--ticket", "A"], [ids[0], ids[2]]),
        (["--task", "shop.once"], [once]),
        (["--task", "shop.update", "--overtake"], ids),
        (["--hold"], [held]),
        (["--overtake"], [*ids, once]),
        (["--before", "+3500"], [held]),
        (["--after", "+3500", "--before", "+7200"], ids),
        (["--after", "2090-01-01T00:00:00Z"], []),
    ):
        assert ids_of(shell.json("delayed", "list", *arguments)) == wanted, arguments
    assert shell("delayed", "list", "--ticket", "Z").stdout == "none of 5 delayed messages matches\n"


@pytest.mark.parametrize("text", ["tomorrow", "+x", "+inf", "+nan", "2030-01-01T00:00:00", "1" * 50])
def test_a_time_that_is_none_is_one_line(shell: CommandLine, lane: Lane, text: str) -> None:
    assert lane.redis.ping()
    said = shell("delayed", "list", "--before", text)
    assert (said.exit_code, len(said.stderr.splitlines())) == (2, 1)
    assert "--before" in said.stderr


def test_show_has_the_payload(shell: CommandLine, lane: Lane) -> None:
    [id_] = delayed_ones(lane, "A", payload='{"amount": 3}')
    found = shell.json("delayed", "show", id_)
    assert (found["message_id"], found["payload"], found["mode"]) == (id_, {"amount": 3}, "overtake")
    said = shell("delayed", "show", id_).stdout
    assert '{"amount": 3}' in said
    assert "overtake: later ones overtake it" in said


def test_show_says_when_a_message_expires(shell: CommandLine, lane: Lane) -> None:
    at_ms = 4_000_000_000_000
    fields: Any = {"ticket_id": "A", "payload": "1", "due": at_ms - 1}
    added: list[Any] = [lane.redis.xadd(lane.keys.stream, one) for one in ({**fields, "expires": at_ms}, fields)]
    ids = [id_.decode() for id_ in added]
    assert [shell.json("delayed", "show", id_)["expires_ms"] for id_ in ids] == [at_ms, None]
    [line] = [line for line in shell("delayed", "show", ids[0]).stdout.splitlines() if line.startswith("expires")]
    assert line == f"expires   {moment(at_ms)}"
    assert "expires" not in shell("delayed", "show", ids[1]).stdout


def test_long_numbers_of_a_payload_are_shown_as_they_came(shell: CommandLine, lane: Lane) -> None:
    [id_] = delayed_ones(lane, "A", payload='{"n":12345678901234567890123}')
    assert shell.json("delayed", "show", id_)["payload"] == {"n": 12345678901234567890123}


def test_show_finds_a_message_that_was_not_read(shell: CommandLine, lane: Lane) -> None:
    due_ms = int(time.time() * 1000) + HOUR_MS
    added: Any = lane.redis.xadd(lane.keys.stream, {"ticket_id": "A", "payload": "1", "due": due_ms, "hold": "1"})
    id_ = added.decode()
    found = shell.json("delayed", "show", id_)
    assert (found["due_ms"], found["mode"], found["ticket_id"]) == (due_ms, "hold", "A")


def test_what_is_not_delayed_is_one_line(shell: CommandLine, lane: Lane) -> None:
    [id_] = lane.add("A")
    [late] = lane.add("A")
    lane.read()
    lane.redis.zadd(lane.keys.late, {member_of(late): 1})
    for command in ("show", "cancel", "now"):
        for name, why in (
            ("1-1", "there is no message 1-1: it was never pushed, or it is done and has left the stream"),
            ("1-1@p3", "1-1@p3 names a partition that the stream does not have"),
            (id_, f"message {id_} is not delayed: it was due at once, or has begun, or is done"),
            (late, f"message {late} is not delayed any more: it was due, and waits or runs"),
        ):
            said = shell("delayed", command, name)
            assert (said.exit_code, said.stderr) == (1, f"Error: {why}\n"), command


def test_the_next_of_many_cost_as_much_as_the_next_of_few(
    shell: CommandLine, lane: Lane, valkey: EmbeddedServer
) -> None:
    def cost() -> dict[str, int]:
        lane.redis.config_resetstat()
        shell("delayed", "list")
        return {name: calls for name, calls in calls_of(valkey).items() if "range" in name}

    delayed_ones(lane, *(f"T{n}" for n in range(100)))
    few = cost()
    with lane.redis.pipeline(transaction=False) as pipe:
        pipe.zadd(lane.keys.delayed, {member_of(f"{n}-0"): 2 * 10**12 + n for n in range(1, 20_001)})
        pipe.execute()
    assert cost() == few


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dues=st.lists(st.tuples(st.integers(1, 4), st.sampled_from(list(Mode)), st.sampled_from("AB")), max_size=60),
    limit=st.integers(1, 70),
)
def test_any_delayed_messages_are_listed_once_in_their_order(
    shell: CommandLine, lane: Lane, dues: list[tuple[int, Mode, str]], limit: int
) -> None:
    for key in (lane.keys.delayed, lane.keys.holding):
        lane.redis.delete(key)
    first = int(time.time() * 1000) + HOUR_MS
    ids = lane.add(*(ticket for _, _, ticket in dues)) if dues else []
    lane.read()
    for id_, (due, mode, _) in zip(ids, dues, strict=True):
        delay(lane, id_, first + due, mode)
    # Several are due at one time: the first page ends among them.
    by_place = [id_ for _, id_ in sorted(zip([due for due, _, _ in dues], ids, strict=True), key=lambda one: one[0])]
    found = shell.json("delayed", "list", "--limit", str(limit))
    assert ids_of(found) == by_place[:limit]
    assert (found["total"], found["more"]) == (len(ids), len(ids) > limit)


def test_the_status_counts_them_apart(shell: CommandLine, lane: Lane) -> None:
    assert "delayed    0" in " ".join(shell("status").stdout.split("\n"))
    delayed_ones(lane, "A", "B")
    seen = shell.json("status")
    assert (seen["delayed"], seen["in_flight"], seen["waiting"], seen["oldest_undone_ms"]) == (2, 0, 0, None)
    assert HOUR_MS - 60_000 < seen["next_due_in_ms"] <= HOUR_MS
    said = shell("status").stdout
    assert "2 (the next is due in" in said
    assert f"`bridge -A {shell.app} delayed list`" in said
    # A message that was due counts from then: its id is older.
    [held, late] = lane.add("A", "B")
    lane.read()
    now_ms = int(time.time() * 1000)
    delay(lane, held, now_ms + HOUR_MS, Mode.HOLD)
    lane.redis.zadd(lane.keys.late, {member_of(late): now_ms - 5000})
    seen = shell.json("status")
    assert (seen["delayed"], seen["holding"], seen["waiting"]) == (3, 1, 1)
    assert 5000 <= seen["oldest_undone_ms"] < 65_000


def test_a_ticket_says_that_it_is_delayed(shell: CommandLine, lane: Lane) -> None:
    lane.join("w1@host")
    first, _, _ = delayed_ones(lane, "A", "A", "B")
    found = shell.json("ticket", "show", "A")
    assert (found["state"], found["delayed"]["count"], found["delayed"]["ids"][0]) == ("delayed", 2, first)
    assert found["why"].startswith("delayed until 20")
    assert f": message {first}; later messages go first; 2 messages delayed in all; no other message" in found["why"]
    [waiting] = lane.add("A")
    lane.read()
    assert shell.json("ticket", "show", "A")["state"] == "waiting"
    lane.hold_back("A", waiting, 2, 60_000, "ValueError: no")
    found = shell.json("ticket", "show", "A")
    assert found["state"] == "awaiting retry"
    assert (
        found["why"].endswith("(2 messages delayed, the next is due in 60 min)") or "delayed, the next" in found["why"]
    )


def test_a_ticket_says_that_it_is_held(shell: CommandLine, lane: Lane) -> None:
    lane.join("w1@host")
    first, _ = lane.add("A", "A")
    lane.read()
    delay(lane, first, int(time.time() * 1000) + 30_000, Mode.HOLD)
    lane.hold_back("A", first, 1, 30_000, HELD)
    found = shell.json("ticket", "show", "A")
    assert (found["state"], found["retry"]["is_held"]) == ("delayed", True)
    assert found["why"].startswith(f"message {first} is delayed and holds its ticket: it is due in ")
    assert found["why"].endswith("(1 message waiting behind)")
    assert (found["waiting"]["count"], found["delayed"]["count"]) == (1, 1)
    assert "delayed   1" in shell("ticket", "show", "A").stdout


@pytest.mark.parametrize(("due_in_ms", "state"), [(HOUR_MS, "delayed"), (-1000, "waiting")])
def test_a_ticket_that_is_held_is_delayed_until_its_message_is_due(
    shell: CommandLine, lane: Lane, due_in_ms: int, state: str
) -> None:
    lane.join("w1@host")
    [first] = lane.add("A")
    lane.read()
    delay(lane, first, int(time.time() * 1000) + due_in_ms, Mode.HOLD)
    lane.hold_back("A", first, 1, due_in_ms, HELD)
    [listed] = shell.json("ticket", "list")["tickets"]
    assert listed["state"] == shell.json("ticket", "show", "A")["state"] == state


def test_a_ticket_that_was_held_and_lost_its_consumer_awaits_a_retry(shell: CommandLine, lane: Lane) -> None:
    """Its message was sent to a consumer that left before it began. No record says that it is held any more."""
    lane.join("w1@host")
    [first] = lane.add("A")
    lane.read()
    delay(lane, first, int(time.time() * 1000) - 1000, Mode.HOLD)
    lane.hold_back("A", first, 1, 0, "")
    [listed] = shell.json("ticket", "list")["tickets"]
    [row] = shell.json("pending", "--limit", "1")["messages"]
    assert listed["state"] == row["state"] == shell.json("ticket", "show", "A")["state"] == "awaiting retry"


@pytest.mark.parametrize("running", [True, False])
def test_a_message_that_is_due_and_behind_others_is_not_delayed(shell: CommandLine, lane: Lane, running: bool) -> None:
    lane.join("w1@host")
    first, due, waiting, held = lane.add("A", "A", "A", "A")
    lane.read()
    now_ms = int(time.time() * 1000)
    delay(lane, due, now_ms - 1000, Mode.HOLD)
    delay(lane, held, now_ms + HOUR_MS, Mode.HOLD)
    if running:
        lane.dispatch("w1@host", "A", [first])
    else:
        lane.finish(first)
    assert ids_of(shell.json("delayed", "list")) == [held]
    assert shell.json("delayed", "list")["total"] == 1
    assert ids_of(shell.json("delayed", "cancel", "--all", "--dry-run")) == [held]
    assert f"message {due} is not delayed any more" in shell("delayed", "show", due).stderr
    assert f"message {due} is not delayed any more" in shell("delayed", "cancel", due, "--dry-run").stderr
    assert shell.json("delayed", "show", held)["mode"] == "hold"
    seen = shell.json("ticket", "show", "A")
    assert (seen["waiting"]["ids"], seen["waiting"]["count"]) == ([due, waiting], 2)
    assert (seen["delayed"]["ids"], seen["delayed"]["count"]) == ([held], 1)
    states = {one["message_id"]: one["state"] for one in shell.json("pending", "--limit", "9")["messages"]}
    states.pop(first, None)
    assert states == {due: "waiting", waiting: "waiting", held: "delayed"}
    status = shell.json("status")
    assert (status["waiting"], status["delayed"]) == (2, 1)


def test_a_delayed_ticket_that_is_due_says_what_it_waits_for(
    lane: Lane, valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [due] = delayed_ones(lane, "A", after_ms=-1000)
    with command_line(tmp_path, monkeypatch, valkey.url, bridge_dead_max=1) as shell:

        def why() -> str:
            return str(shell.json("ticket", "show", "A")["why"])

        assert f"message {due} was delayed, and is due now; no consumer is alive" in why()
        lane.join("w1@host")
        assert f"message {due} was delayed, and is due now; the leader takes it in when it has room" in why()
        [dead] = lane.add("B")
        lane.read()
        lane.bury(dead, *letter("B"))
        assert "dead letter" not in why(), "nothing unread is before it"
        lane.add("B")
        assert "1 dead letter, and bridge_dead_max is 1" in why()
        lane.depose()
        assert "no master leads" in why()


def test_a_stream_with_delayed_messages_is_not_deleted(lane: Lane) -> None:
    delayed_ones(lane, "A", "B")
    held, due = lane.add("C", "D")
    lane.read()
    now_ms = int(time.time() * 1000)
    delay(lane, held, now_ms + HOUR_MS, Mode.HOLD)
    delay(lane, due, now_ms - 1000, Mode.HOLD)
    lane.depose()
    with pytest.raises(StillUsed, match=r"has messages that are not done, 3 of them delayed$"):
        LanesOfStream(lane.redis, "ticket_stream", letters=True).delete()
    assert lane.redis.xlen("ticket_stream") == 4


# -- changing ------------------------------------------------------------------------------------------------------


@pytest.fixture
def leader(valkey: EmbeddedServer, lane: Lane) -> Iterator[FakeLeader]:
    """It refuses each third message."""

    def answer(order: dict[str, Any]) -> dict[str, Any]:
        refused = [[id_, f"message {id_} has begun"] for id_ in order["ids"][2::3]]
        bad = {id_ for id_, _ in refused}
        return {"ok": True, "changed": [id_ for id_ in order["ids"] if id_ not in bad], "refused": refused}

    with fake_leader(valkey, lane, answer) as made:
        yield made


def test_messages_are_cancelled_by_id(shell: CommandLine, lane: Lane, leader: FakeLeader) -> None:
    ids = delayed_ones(lane, "A", "B", "C")
    said = shell("delayed", "cancel", ids[1], ids[0])
    assert (said.exit_code, said.stdout) == (0, "cancelled 2 delayed messages\n")
    assert leader.orders == [{"do": "delayed", "act": "cancel", "ids": [ids[1], ids[0]], "due_ms": None}]


def test_refused_messages_are_named(shell: CommandLine, lane: Lane, leader: FakeLeader) -> None:
    ids = delayed_ones(lane, "A", "A", "A")
    said = shell("delayed", "now", "--ticket", "A", "--yes")
    assert said.exit_code == 1
    assert said.stdout.splitlines() == [f"not made due: {ids[2]}: has begun", "made due 2 delayed messages"]
    assert said.stderr == "Error: 1 of 3 delayed messages was not made due\n"
    found = shell.json("delayed", "now", *ids)
    assert (found["made_due"], found["refused"], found["messages"][2]["why"]) == (2, 1, "has begun")
    assert [order["act"] for order in leader.orders] == ["now", "now"]


@pytest.mark.parametrize(("verb", "participle"), [("now", "made due"), ("cancel", "cancelled")])
def test_where_nothing_was_changed_there_is_only_an_error(
    shell: CommandLine, lane: Lane, valkey: EmbeddedServer, verb: str, participle: str
) -> None:
    ids = delayed_ones(lane, "A", "B")
    with fake_leader(valkey, lane, lambda order: {"ok": True, "refused": [[id_, "it is due"] for id_ in order["ids"]]}):
        said = shell("delayed", verb, ids[0])
        assert (said.exit_code, said.stdout) == (1, "")
        assert said.stderr == f"Error: {ids[0]} was not {participle}: it is due\n"
        assert shell("delayed", verb, *ids).stderr == f"Error: no delayed message was {participle}\n"


@pytest.mark.parametrize(
    ("arguments", "due_in_ms"),
    [(["--delay", "90.5"], 90_500), (["--eta", "2090-01-01T00:00:00Z"], None), (["--delay", "0"], 0)],
    ids=["delay", "eta", "none"],
)
def test_messages_are_rescheduled(
    shell: CommandLine, lane: Lane, leader: FakeLeader, arguments: list[str], due_in_ms: int | None
) -> None:
    ids = delayed_ones(lane, "A", "B")
    before = int(time.time() * 1000)
    assert "rescheduled 2 delayed messages to 20" in shell("delayed", "reschedule", *ids, *arguments).stdout
    [order] = leader.orders
    assert (order["act"], order["ids"]) == ("reschedule", ids)
    if due_in_ms is None:
        assert order["due_ms"] == 3_786_912_000_000
    else:
        assert before + due_in_ms - 1 <= order["due_ms"] <= int(time.time() * 1000) + due_in_ms + 1


def test_many_messages_go_in_several_orders(shell: CommandLine, lane: Lane, leader: FakeLeader) -> None:
    ids = delayed_ones(lane, *(f"T{n}" for n in range(1001)))
    said = shell("delayed", "cancel", "--all", "--limit", "1000", "--yes")
    assert [len(order["ids"]) for order in leader.orders] == [500, 500]
    assert [id_ for order in leader.orders for id_ in order["ids"]] == ids[:1000]
    assert said.stdout.splitlines()[-2:] == ["… and 282 more that were not cancelled", "cancelled 668 delayed messages"]


def test_a_change_that_breaks_off_says_how_many_it_had_made(
    shell: CommandLine, lane: Lane, valkey: EmbeddedServer
) -> None:
    ids = delayed_ones(lane, *["A"] * (DELAYED_IDS + 3))

    def answer(order: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True, "refused": []} if len(order["ids"]) == DELAYED_IDS else {"error": "no more today"}

    with fake_leader(valkey, lane, answer):
        result = shell("delayed", "cancel", "--all", "--yes")
        document = shell("delayed", "cancel", "--all", "--yes", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    said = f"no more today ({DELAYED_IDS:,} of {len(ids):,} were cancelled before)"
    assert result.stderr == document.stderr == f"Error: {said}\n"
    found = json.loads(document.stdout)
    assert (document.exit_code, found["cancelled"], found["refused"]) == (1, DELAYED_IDS, 3)
    assert [one["message_id"] for one in found["messages"] if not one["cancelled"]] == ids[-3:]


def test_of_a_change_that_breaks_off_each_message_says_whether_it_was_ordered(
    shell: CommandLine, lane: Lane, valkey: EmbeddedServer
) -> None:
    ids = delayed_ones(lane, *["A"] * (2 * DELAYED_IDS + 3))
    orders = itertools.count()
    with fake_leader(
        valkey, lane, lambda _: {"error": "no more today"} if next(orders) else {"ok": True, "refused": []}
    ):
        document = shell("delayed", "cancel", "--all", "--yes", "--json")
    found = {one["message_id"]: one["why"] for one in json.loads(document.stdout)["messages"]}
    said = [None] * DELAYED_IDS + ["no more today"] * DELAYED_IDS + [NOT_BEGUN] * 3
    assert found == dict(zip(ids, said, strict=True))


def test_a_dry_run_changes_nothing(shell: CommandLine, lane: Lane, leader: FakeLeader) -> None:
    ids = delayed_ones(lane, "A", "B")
    said = shell("delayed", "cancel", "--all", "--dry-run")
    assert said.stdout.splitlines()[-1] == "would cancel 2 delayed messages"
    assert [line.split()[0] for line in said.stdout.splitlines()[1:3]] == ids
    found = shell.json("delayed", "reschedule", ids[0], "--delay", "5", "--dry-run")
    assert (found["dry_run"], ids_of(found), found["rescheduled"], found["refused"]) == (True, ids[:1], 1, 0)
    assert [(one["rescheduled"], one["why"]) for one in found["messages"]] == [(True, None)]
    assert shell("delayed", "now", ids[0], "--dry-run").stdout.splitlines()[-1] == "would make due 1 delayed message"
    assert leader.orders == []


def test_a_choice_is_confirmed(shell: CommandLine, lane: Lane, leader: FakeLeader) -> None:
    delayed_ones(lane, "A", "B")
    said = shell("delayed", "cancel", "--ticket", "A")
    assert said.exit_code == 2
    assert "this would cancel 1 delayed message: add --yes, or look first with --dry-run" in said.stderr
    assert leader.orders == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cancel"], "name messages by ID, or choose them with --all"),
        (["cancel", "1-1", "--all"], "name messages by ID, or choose them with --all"),
        (["reschedule", "1-1"], "say when the messages are due, with either --delay or --eta"),
        (["reschedule", "1-1", "--delay", "1", "--eta", "2090-01-01T00:00:00Z"], "say when the messages are due"),
        (["reschedule", "1-1", "--delay", "-1"], "-1.0 is not in the range x>=0"),
        (["reschedule", "1-1", "--delay", "nan"], "is not a number"),
        (["reschedule", "1-1", "--delay", "4e9"], "delay must be at most 100 years"),
        (["reschedule", "1-1", "--eta", "2001-01-01T00:00:00Z"], "is past; nothing was changed"),
        (["reschedule", "1-1", "--eta", "2090-01-01T00:00:00"], "has no time zone"),
        (["reschedule", "1-1", "--eta", "soon"], "eta must be a time such as"),
        (["list", "--hold", "--overtake"], "--hold and --overtake exclude each other"),
        (["now", "--overtake", "--hold", "--yes"], "--hold and --overtake exclude each other"),
    ],
    ids=range(12),
)
def test_wrong_usage(shell: CommandLine, lane: Lane, arguments: list[str], said: str) -> None:
    assert lane.redis.ping()
    result = shell("delayed", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_without_a_leader_nothing_is_changed(shell: CommandLine, lane: Lane) -> None:
    [id_] = delayed_ones(lane, "A")
    lane.depose()
    said = shell("delayed", "cancel", id_)
    assert said.exit_code == 1
    assert "no master leads the lane, so the order cannot be carried out" in said.stderr


# -- what a list is not about --------------------------------------------------------------------------------------


def test_a_bounded_list_says_how_many_match(shell: CommandLine, lane: Lane) -> None:
    delayed_ones(lane, *"ABCDE")
    held = lane.add("F", "G", "H")
    lane.read()
    for id_ in held:
        delay(lane, id_, int(time.time() * 1000) + HOUR_MS, Mode.HOLD)
    assert "the next 2 are shown, there are 3: " in shell("delayed", "list", "--hold", "--limit", "2").stdout
    assert "the next 2 are shown, there are 5: " in shell("delayed", "list", "--overtake", "--limit", "2").stdout
    assert "the next 2 are shown, there are 8: " in shell("delayed", "list", "--limit", "2").stdout


def test_a_list_says_how_many_messages_are_not_read_yet(shell: CommandLine, lane: Lane) -> None:
    lane.add("A", "A")
    unread = "2 messages not read yet, which are not in this list\n"
    assert shell("delayed", "list").stdout == f"no delayed messages\n{unread}"
    assert shell.json("delayed", "list")["total"] == 0


def test_a_list_says_where_the_messages_of_an_older_version_are(
    lane: Lane, valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delayed_ones(lane, "A", "B")
    [held] = lane.add("C")
    lane.read()
    delay(lane, held, int(time.time() * 1000) + HOUR_MS, Mode.HOLD)
    settings = {"bridge_stream": "v2", "bridge_follows": ["ticket_stream"]}
    with command_line(tmp_path, monkeypatch, valkey.url, **settings) as shell:
        for command, thing, none in (
            (["delayed", "list"], "delayed", "no delayed messages"),
            (["pending"], "pending", "nothing is pending"),
        ):
            words = f"`bridge -A {shell.app} {' '.join(command)} --stream ticket_stream`"
            assert shell(*command).stdout == f"{none}\n3 {thing} messages of an older version: {words}\n"
            assert "older version" not in shell(*command, "--stream", "ticket_stream").stdout
        assert "no such message is pending\n3 pending" in shell("pending", "--state", "waiting").stdout


def test_of_a_parked_ticket_a_message_that_holds_it_counts_once(shell: CommandLine, lane: Lane) -> None:
    held, behind = lane.add("A", "A")
    lane.read()
    delay(lane, held, int(time.time() * 1000) + HOUR_MS, Mode.HOLD)
    park(lane, "A", [held, behind], "why")
    found = shell.json("ticket", "show", "A")
    assert (found["delayed"]["ids"], found["waiting"]["ids"]) == ([held], [behind])
    assert (found["delayed"]["count"], found["waiting"]["count"]) == (1, 1)
