"""Operators' commands on a split stream: what crosses partitions adds up, and ids name their partition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bridge.routing.history import What
from bridge.routing.partitions import partition_of, stream_id
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard, broker_environment
from bridge.testing.waiting import wait_until
from tests.integration.app.test_partitions import Partitions
from tests.integration.servers import run_command

#: One ticket of each of four partitions, in their order.
TICKETS = [next(f"T{n}" for n in range(100) if partition_of(f"T{n}", 4) == p) for p in range(4)]


class Operated(Partitions):
    """The same with commands, which are processes."""

    def __init__(self, nodes: NodeYard, server: EmbeddedServer, folder: Path) -> None:
        super().__init__(nodes, server, folder, 4)
        self.env = {**self.lane.env, **broker_environment(server.url)}

    def command(self, *arguments: str, code: int = 0) -> str:
        done = run_command(self.env, *arguments)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.command(*arguments, "--json", code=code))


@pytest.fixture
def four(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> Operated:
    return Operated(nodes, own_server, tmp_path)


def dead_ones(four: Operated) -> list[str]:
    """A message of each partition that is dead. Returns their ids."""
    four.lane.worker("w1", wait=False)
    four.lane.master("m1", wait=False)
    ids = four.task("flaky").push_many([(ticket, {"n": n, "until": 99}) for n, ticket in enumerate(TICKETS)])
    wait_until(lambda: all(four.redis.xlen(keys.dead) for keys in four.keys), description="dead letters", timeout_s=90)
    return list(ids)


def test_dead_letters_of_all_partitions_are_listed_shown_replayed_and_dropped(four: Operated) -> None:
    ids = dead_ones(four)
    listed = four.json("dead", "list")
    assert listed["total"] == 4
    assert {letter["message_id"] for letter in listed["letters"]} == set(ids)
    at = [letter["at_ms"] for letter in listed["letters"]]
    assert at == sorted(at, reverse=True)
    assert [letter["ticket_id"] for letter in four.json("dead", "list", "--ticket", TICKETS[2])["letters"]] == [
        TICKETS[2]
    ]

    shown = four.json("dead", "show", ids[1])
    assert (shown["message_id"], shown["ticket_id"]) == (ids[1], TICKETS[1])
    said = four.command("dead", "show", stream_id(ids[1]), code=1)
    assert f"the stream has 4 partitions: name that of {stream_id(ids[1])} too, such as {stream_id(ids[1])}@p0" in said
    assert "names a partition that the stream does not have" in four.command("dead", "show", "1-0@p9", code=1)

    assert "dropped 1 dead letter" in four.command("dead", "drop", ids[0])
    four.redis.set("log:fixed", 1)
    assert "replayed 1 dead letter" in four.command("dead", "replay", ids[3])
    replayed = four.json("dead", "replay", "--all", "--yes")
    assert {letter["message_id"] for letter in replayed["letters"]} == {ids[1], ids[2]}
    four.wait_done(3)
    assert [four.lane.log(ticket) for ticket in TICKETS] == [[], [1], [2], [3]]
    assert four.json("dead", "list")["total"] == 0


def test_an_order_for_a_ticket_goes_to_its_partition(four: Operated) -> None:
    four.lane.worker("w1")
    four.lane.master("m1", wait=False)
    four.task("append").push_many([(ticket, {"n": 1}) for ticket in TICKETS])
    four.wait_done(4)
    for ticket, keys in zip(TICKETS, four.keys, strict=True):
        assert f"{ticket} is parked" in four.command("ticket", "park", ticket, "--reason", "the bank")
        assert four.redis.hkeys(keys.tickets) == [ticket]
    ids = four.task("append").push_many([(ticket, {"n": 2}) for ticket in TICKETS])
    four.task("append").push(TICKETS[0], {"n": 3})
    wait_until(
        lambda: four.json("ticket", "show", TICKETS[0])["waiting"]["count"] == 2, description="two messages to wait"
    )
    found = four.json("ticket", "list", "--parked")["tickets"]
    assert [one["ticket_id"] for one in found] == sorted(TICKETS)
    shown = four.json("ticket", "show", TICKETS[3])
    assert (shown["state"], shown["parked"]["reason"]) == ("parked", "the bank")
    for ticket in TICKETS[1:]:
        four.command("ticket", "release", ticket)
    four.wait_done(7)
    assert [four.lane.log(ticket) for ticket in TICKETS] == [[1], [1, 2], [1, 2], [1, 2]]
    assert ids[0].endswith("@p0")


def test_consumers_are_shown_once_and_drained_and_moved_in_all_partitions(four: Operated) -> None:
    first = four.lane.worker("w1")
    four.lane.master("m1", wait=False)
    held = four.task("held")
    ids = held.push_many([(ticket, {"n": 1, "gate": "open"}) for ticket in TICKETS[:2]])
    wait_until(lambda: len(list(four.lane.ledger.glob("held-*"))) == 2, description="two messages to run")
    [one] = four.json("consumer", "list")["consumers"]
    assert (one["name"], one["in_flight"], one["alive"]) == (first.hostname(), 2, True)
    shown = four.json("ticket", "show", TICKETS[1])
    assert shown["in_flight"]["message_ids"] == [ids[1]]
    second = four.lane.worker("w2")
    names = {second.hostname(), first.hostname()}
    wait_until(lambda: {one["name"] for one in four.json("consumer", "list")["consumers"]} == names, description="both")
    assert "takes nothing new; 2 messages in flight" in four.command("consumer", "drain", "w1", "--no-wait")
    held.push_many([(ticket, {"n": 2}) for ticket in TICKETS[2:]])
    four.wait_done(2)
    (four.lane.ledger / "open").touch()
    assert "w1" in four.command("consumer", "drain", "w1", "--timeout", "20")
    four.wait_done(4)
    assert "takes work again" in four.command("consumer", "resume", "w1")
    states = {one["state"] for one in four.json("consumer", "list")["consumers"]}
    assert states == {"open"}
    assert "moved 0 tickets" in four.command("consumer", "transfer", "w1", "--ticket", TICKETS[1], "--to", "w2")


def test_the_audit_adds_the_partitions_up(four: Operated) -> None:
    four.lane.worker("w1", wait=False)
    four.lane.master("m1", wait=False)
    four.task("append").push_many([(ticket, {"n": n}) for n in range(10) for ticket in TICKETS])
    four.wait_done(40)
    found = four.json("audit", "--from", "0")
    assert (found["ok"], found["rows"]["done"], found["tickets"]) == (True, 40, 4)
    # A bundle that takes too long gives back what it has not started, and that is delivered again.
    assert found["deliveries"] == sum(found["rows"].values()) >= 40
    life = four.json("audit", "--ticket", TICKETS[2])["life"]
    assert len(life) == 10
    assert all(row["message_id"].endswith("@p2") and row["ticket"] == TICKETS[2] for row in life)
    # A second attempt without a first one
    row = ["1-1", TICKETS[2], "counter.append", "w", 2, 5, 1, 1, 1, What.DONE.value]
    four.redis.xadd(four.keys[2].history, {"d": json.dumps([row])})
    broken = four.json("audit", code=1)
    assert broken["violations"] >= 1
    assert "1-1@p2" in {example["message_id"] for example in broken["examples"]}, broken["examples"]
    assert all(example["message_id"].endswith("@p2") for example in broken["examples"]), broken["examples"]


def test_rows_of_a_file_go_to_their_partitions(four: Operated) -> None:
    four.lane.worker("w1", wait=False)
    four.lane.master("m1", wait=False)
    rows = "".join(f'{{"ticket_id":"T{n % 9}","n":{n}}}\n' for n in range(360))
    file = four.lane.ledger / "rows.jsonl"
    file.write_text(rows)
    pushed = four.json("push", str(file), "--batch", "20")
    assert (pushed["pushed"], pushed["stream"]) == (360, "ticket_stream")
    assert pushed["first_id"].endswith(f"@p{partition_of('T0', 4)}")
    four.wait_done(360)
    assert all(four.lane.log(f"T{t}") == list(range(t, 360, 9)) for t in range(9))


def test_the_status_adds_the_partitions_up(four: Operated) -> None:
    four.lane.worker("w1", wait=False)
    four.lane.master("m1", wait=False)
    four.task("append").push_many([(ticket, {"n": n}) for n in range(5) for ticket in TICKETS])
    four.wait_done(20)
    [one] = four.json("status")["subscriptions"]
    assert one["counters"]["done"] == 20
    assert len(one["streams"]) == 4


def test_the_streams_and_their_layout_are_listed(four: Operated) -> None:
    assert four.json("stream", "info")["stored"] is False
    four.task("append").push_many([(ticket, {"n": n}) for n in range(3) for ticket in TICKETS])
    found = four.json("stream", "list")["streams"]
    assert [(one["stream"], one["partition"], one["entries"]) for one in found] == [
        (f"ticket_stream:p{n}", n, 3) for n in range(4)
    ]
    info = four.json("stream", "info")
    assert (info["partitions"], info["generation"], info["stored"], info["setting"]) == (4, 0, True, 4)
    assert info["streams"] == [one["stream"] for one in found]
    assert "4 partitions, since " in four.command("stream", "info")
    assert "ticket_stream:p3" in four.command("stream", "list")


def test_reasons_and_findings_name_the_partition(four: Operated) -> None:
    ids = four.task("append").push_many([(TICKETS[2], {"n": n}) for n in range(2)])
    shown = four.json("ticket", "show", TICKETS[2])
    assert shown["unread"]["ids"] == ids
    assert f"2 messages not read yet, the oldest is {ids[0]};" in shown["why"]
    # Two messages in the wrong order
    for id_, at in (("2-1", 1), ("1-1", 2)):
        row = [id_, TICKETS[2], "counter.append", "w", 1, at, at, at, 1, What.DONE.value]
        four.redis.xadd(four.keys[2].history, {"d": json.dumps([row])})
    for arguments in (("audit",), ("audit", "--ticket", TICKETS[2])):
        examples = four.json(*arguments, code=1)["examples"]
        assert [(one["message_id"], one["text"]) for one in examples if one["check"] == "reordered"] == [
            ("1-1@p2", "done after the younger message 2-1@p2 of its ticket: out of order, or repeated")
        ]


def test_a_start_names_a_time_and_no_partition_that_there_is_not(four: Operated) -> None:
    def push(n: int, id_: str = "*") -> None:
        four.redis.xadd(four.keys[n].stream, {"ticket_id": TICKETS[n]}, id=id_)

    for n in range(3):
        push(n, f"{n + 1}000-0")
    assert "2000-0@p9 names a partition that the stream does not have" in four.command(
        "audit", "--from", "2000-0@p9", code=1
    )
    assert "nothing to audit" in four.command("audit", "--from", "2000-0@p1", code=1)
    assert four.command("subscription", "add", "mail", "--from", "2000-0@p1", code=2) == (
        "Error: --from 2000-0@p1: this message is the start in its own partition only; give its time 2000-0, which is "
        "one in all partitions\n"
    )
    assert "has no message 4000-0 yet (its last message is 3000-0)" in four.command(
        "subscription", "add", "mail", "--from", "4000-0", code=1
    )
    assert not any(four.redis.xinfo_groups(keys.stream) for keys in four.keys[:3])
    assert "2 messages to read" in four.command("subscription", "add", "mail", "--from", "2000-0")
    # In the partitions that had none of that time, the next one
    push(0)
    push(3)
    read = [four.redis.xreadgroup("mail", "m", {keys.stream: ">"})[0][1] for keys in four.keys]
    assert [len(entries) for entries in read] == [1, 1, 1, 1]
    assert [entries[0][0] for entries in read[1:3]] == ["2000-0", "3000-0"]
