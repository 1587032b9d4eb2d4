"""Random pushes, outcomes and operators' commands on a live lane: every figure agrees with every other one and with
what was pushed and ordered, and in the end every message has ended once.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
)

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import wait_until
from tests.commands import command_line
from tests.conftest import emptied
from tests.integration.http.http_consumers import call
from tests.integration.operate.machine_runs import run_machine
from tests.integration.operate.operators_world import GROUP, HOUR_S, SETTINGS, SHORT_S, World

TICKETS = ["T1", "T2", "-dash", "a b", "x\ny $(z)", "ü'\"*?[]", "1-0@p0"]
TICKET = st.sampled_from(TICKETS)
TASK = st.sampled_from(["shop.update", "shop.update", "shop.once"])
DELAY = st.sampled_from([None, None, SHORT_S, HOUR_S, 2 * HOUR_S])
#: They choose among what there is: what a machine draws must not depend on a server.
NUMBER = st.integers(0, 99)
NUMBERS = st.lists(NUMBER, min_size=1, max_size=3)
CONSUMERS = ["w0@h", "w1@h", "w2.x@h:1"]


def picked(among: list[Any], numbers: list[int]) -> list[Any]:
    """Some of ``among``, each once."""
    return list({one.id: one for one in (among[n % len(among)] for n in numbers)}.values())


def selected(among: list[Any], numbers: list[int], by: str) -> tuple[list[Any], list[str]]:
    """Some of these messages, and the arguments of a command that name them."""
    if by == "id":
        chosen = picked(among, numbers)
        return chosen, [one.id for one in chosen]
    if by == "ticket":
        ticket = TICKETS[numbers[0] % len(TICKETS)]
        return [one for one in among if one.ticket == ticket], [f"--ticket={ticket}", "--yes"]
    if by == "mode":
        mode = ["hold", "overtake"][numbers[0] % 2]
        return [one for one in among if one.mode == mode], [f"--{mode}", "--yes"]
    return among, ["--all", "--yes"]


class OperatorsMachine(RuleBasedStateMachine):
    """``world`` is made by `begin`. The class's attributes are set for each run."""

    valkey: EmbeddedServer
    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()

    @initialize(
        partitions=st.sampled_from([1, 1, 2]), on_dead=st.sampled_from(["skip", "park"]), slots=st.integers(1, 3)
    )
    def begin(self, partitions: int, on_dead: str, slots: int) -> None:
        emptied(self.valkey)
        conf = {**SETTINGS, "bridge_partitions": partitions, "bridge_on_dead": on_dead}
        shell = self.stack.enter_context(command_line(self.folder, self.monkeypatch, self.valkey.url, **conf))
        self.world = World(self.valkey, shell, self.stack)
        self.world.start_master()
        self.world.join(CONSUMERS[0], slots)

    def quiet(self) -> None:
        """Waits until the leader has done what it has to do, and compares all figures."""
        self.world.settle()
        if self.world.step % 2:
            self.compare()

    # -- pushes --------------------------------------------------------------------------------------------------------

    @rule(
        ticket=TICKET,
        task=TASK,
        delay=DELAY,
        hold=st.booleans(),
        count=st.integers(1, 4),
        attempts=st.none() | st.integers(1, 3),
    )
    def push(self, ticket: str, task: str, delay: float | None, hold: bool, count: int, attempts: int | None) -> None:
        more = {} if attempts is None else {"max_attempts": attempts}
        for _ in range(count):
            self.world.push(ticket, task, delay, hold, **more)
        self.quiet()

    @rule(ticket=TICKET, times=st.integers(1, 3))
    def push_with_a_key(self, ticket: str, times: int) -> None:
        world = self.world
        key = f"key {world.step}"
        ids = {world.tasks["shop.update"].push(ticket, {}, idempotency_key=key) for _ in range(times)}
        [id_] = ids
        world.pushed(id_, ticket)
        self.quiet()

    @rule(
        fields=st.sampled_from(
            [{"payload": "{}"}, {"ticket_id": "T1", "payload": "{"}, {"ticket_id": "T1", "due": "x"}]
        )
    )
    def push_broken(self, fields: dict[str, str]) -> None:
        world = self.world
        if len(world.streams) > 1:
            return
        id_ = world.redis.xadd(world.streams[0], fields).decode()
        message = world.pushed(id_, fields.get("ticket_id"), broken=True)
        world.died(message)
        self.quiet()

    @rule(rows=st.lists(st.tuples(TICKET, DELAY, st.booleans()), max_size=4))
    def push_a_file(self, rows: list[tuple[str, float | None, bool]]) -> None:
        world = self.world
        lines = []
        for ticket, delay, hold in rows:
            row: dict[str, Any] = {"ticket_id": ticket}
            if delay is not None:
                row |= {"delay": delay, "hold": hold}
            lines.append(json.dumps(row))
        before = {stream: world.last_id(stream) for stream in world.streams}
        said = world.json("push", "--format", "json", "-", stdin="\n".join(lines))
        assert (said["pushed"], said["delayed"]) == (len(rows), sum(1 for _, delay, _ in rows if delay is not None))
        for stream in world.streams:
            suffix = f"@{stream.rpartition(':')[2]}" if len(world.streams) > 1 else ""
            found: Any = world.redis.xrange(stream, f"({before[stream]}")
            for id_, fields in found:
                facts: dict[str, Any] = {}
                if b"due" in fields:
                    facts["mode"] = "hold" if fields.get(b"hold") == b"1" else "overtake"
                    facts["due_ms"] = int(fields[b"due"])
                world.pushed(id_.decode() + suffix, fields[b"ticket_id"].decode(), **facts)
        self.quiet()

    # -- consumers -----------------------------------------------------------------------------------------------------

    @rule(n=NUMBER, most=st.integers(1, 3))
    def take(self, n: int, most: int) -> None:
        names = sorted(self.world.consumers)
        if names:
            self.world.take(names[n % len(names)], most)
            self.quiet()

    @rule(
        n=NUMBER,
        outcome=st.sampled_from(["done", "done", "failed", "refused", "dead"]),
        delay=st.sampled_from([0, HOUR_S]),
    )
    def end(self, n: int, outcome: str, delay: int) -> None:
        if not self.world.held:
            return
        id_ = sorted(self.world.held)[n % len(self.world.held)]
        more = {"delay": delay} if outcome in ("failed", "refused") else {}
        self.world.end(id_, outcome, **more)
        self.quiet()

    @rule(name=st.sampled_from(CONSUMERS), slots=st.integers(1, 3))
    def join_or_leave(self, name: str, slots: int) -> None:
        if name in self.world.consumers:
            self.world.leave(name)
        else:
            self.world.join(name, slots)
        self.quiet()

    @rule(often=st.integers(0, 3))
    def another_master(self, often: int) -> None:
        if often < 3:
            return
        self.world.stop_master()
        self.world.start_master()
        self.quiet()

    @rule(often=st.integers(0, 3))
    def the_lead_is_lost(self, often: int) -> None:
        # It takes a second.
        if often < 3:
            return
        for stream in self.world.streams:
            self.world.redis.delete(f"{{{stream}}}:{GROUP}:leader")
        self.quiet()

    # -- tickets and consumers -----------------------------------------------------------------------------------------

    @rule(ticket=TICKET, reason=st.sampled_from(["why", "a\nb `c`"]))
    def park(self, ticket: str, reason: str) -> None:
        # One that is to be parked when its run has ended may be ordered again.
        codes = (0, 1) if ticket in self.world.parked else (0,)
        self.world.run("ticket", "park", "--reason", reason, "--", ticket, codes=codes)
        self.world.parked.add(ticket)
        self.quiet()

    @rule(ticket=TICKET)
    def release(self, ticket: str) -> None:
        self.do_release(ticket)
        self.quiet()

    def do_release(self, ticket: str) -> None:
        world = self.world
        world.run("ticket", "release", "--", ticket, codes=(0,) if ticket in world.parked else (1,))
        world.parked.discard(ticket)
        for one in world.undone_of(ticket):
            one.rests = False

    @rule(name=st.sampled_from(CONSUMERS))
    def drain(self, name: str) -> None:
        world = self.world
        world.run("consumer", "drain", "--no-wait", "--", name, codes=(0,) if name in world.consumers else (1,))
        if name in world.consumers:
            world.draining.add(name)
        self.quiet()

    @rule(name=st.sampled_from(CONSUMERS))
    def resume(self, name: str) -> None:
        world = self.world
        world.run("consumer", "resume", "--", name, codes=(0,) if name in world.draining else (0, 1))
        world.draining.discard(name)
        self.quiet()

    @rule(name=st.sampled_from(CONSUMERS), other=st.sampled_from([None, *CONSUMERS]))
    def transfer(self, name: str, other: str | None) -> None:
        world = self.world
        there = name in world.consumers and (other is None or other in world.consumers)
        to = [] if other is None else [f"--to={other}"]
        codes = ((2,) if other == name else (0, 1)) if there else (1,)
        world.run("consumer", "transfer", *to, "--", name, codes=codes)
        self.quiet()

    # -- dead letters --------------------------------------------------------------------------------------------------

    @rule(ns=NUMBERS, verb=st.sampled_from(["replay", "drop"]), by=st.sampled_from(["id", "ticket", "all"]))
    def change_letters(self, ns: list[int], verb: str, by: str) -> None:
        world = self.world
        dead = sorted(world.of("dead"), key=lambda one: one.id)
        if not dead:
            return
        self.do_letters(verb, *selected(dead, ns, by))
        self.quiet()

    def do_letters(self, verb: str, chosen: list[Any], words: list[str]) -> None:
        world = self.world
        good = [one for one in chosen if verb == "drop" or not one.broken]
        participle = {"replay": "replayed", "drop": "dropped"}[verb]
        codes = (0,) if len(good) == len(chosen) else (1,)
        before = world.dump()
        said = world.json("dead", verb, "--dry-run", *words, codes=codes)
        assert world.dump() == before, "a dry run changed something"
        assert (said["dry_run"], said[participle], said["refused"]) == (True, len(good), len(chosen) - len(good))
        world.run("dead", verb, "--dry-run", *words, codes=codes)
        said = world.json("dead", verb, *words, codes=codes)
        assert (said["dry_run"], said[participle], said["refused"]) == (False, len(good), len(chosen) - len(good))
        assert {one["message_id"] for one in said["letters"] if one[participle]} == {one.id for one in good}
        for one in good:
            if verb == "drop":
                one.state = "dropped"
            else:
                one.state, one.failures, one.changed_at, one.replayed = "undone", 0, world.step, True
                one.mode, one.due_ms = None, 0
                world.replayed_total += 1

    # -- delayed -------------------------------------------------------------------------------------------------------

    @rule(
        ns=NUMBERS,
        act=st.sampled_from(["cancel", "now", "reschedule"]),
        by=st.sampled_from(["id", "id", "ticket", "mode", "all"]),
        delay=st.sampled_from([0, SHORT_S, HOUR_S, 3 * HOUR_S]),
    )
    def change_delayed(self, ns: list[int], act: str, by: str, delay: float) -> None:
        world = self.world
        now = world.now_ms()
        all_ = sorted((one for one in world.of("undone") if one.is_delayed(now)), key=lambda one: one.id)
        if not all_:
            return
        self.do_delayed(act, *selected(all_, ns, by), delay)
        self.quiet()

    def do_delayed(self, act: str, chosen: list[Any], words: list[str], delay: float = 0) -> None:
        world = self.world
        participle = {"cancel": "cancelled", "now": "made_due", "reschedule": "rescheduled"}[act]
        if act == "reschedule":
            words = [f"--delay={delay}", *words]
        before = world.dump()
        said = world.json("delayed", act, "--dry-run", *words)
        assert world.dump() == before, "a dry run changed something"
        assert (said["dry_run"], said[participle], said["refused"]) == (True, len(chosen), 0)
        world.run("delayed", act, "--dry-run", *words)
        said = world.json("delayed", act, *words)
        assert (said["dry_run"], said[participle], said["refused"]) == (False, len(chosen), 0), said
        assert {one["message_id"] for one in said["messages"] if one[participle]} == {one.id for one in chosen}
        for one in chosen:
            one.changed_at = world.step
            if act == "cancel":
                one.state = "cancelled"
                world.cancelled_total += 1
            else:
                one.due_ms = said["due_ms"] if act == "reschedule" else world.now_ms()

    # -- figures -------------------------------------------------------------------------------------------------------

    def compare(self) -> None:
        world = self.world
        now = world.now_ms()
        status = world.status()
        rows = world.pending()
        kinds = {
            "waiting": "waiting",
            "in flight": "in_flight",
            "awaiting retry": "awaiting_retry",
            "delayed": "delayed",
        }
        number = {state: sum(1 for row in rows if row["state"] == state) for state in (*kinds, "parked", "stray")}
        assert number["stray"] == 0
        for state, name in kinds.items():
            assert status[name] == number[state], (name, status, rows)
        parked = status["parked_messages" if "parked_messages" in status else "parked"]
        assert parked == number["parked"], (parked, rows)
        assert status["unread"] == 0
        assert status["dead"] == len(world.of("dead"))
        undone = world.of("undone")
        for row in rows:
            assert row["ticket_id"] == world.messages[row["message_id"]].ticket
            if row["state"] == "in flight":
                world.flying.setdefault(row["message_id"], world.step)
        flying = {row["message_id"]: row["consumer"] for row in rows if row["state"] == "in flight"}
        for id_ in set(world.flying) - set(flying):
            del world.flying[id_]
        assert set(world.held) <= set(flying)
        assert all(flying[id_] == one.consumer.name for id_, one in world.held.items())
        for row in rows:
            held_ticket = row["ticket_id"] in world.parked
            if held_ticket:
                assert row["state"] in ("parked", "in flight", "delayed", "waiting"), row

        # Pending, by name and by filter.
        names = world.json("pending")
        assert names["total"] == len(rows)
        assert sum(one["pending"] for one in names["consumers"]) == len(rows)
        world.run("pending")
        world.run("pending", "--limit", "3")
        for state in kinds:
            found = world.json("pending", "--state", state.replace(" ", "-"))["messages"]
            assert [one["message_id"] for one in found] == [r["message_id"] for r in rows if r["state"] == state]

        # Delayed.
        listed = world.json("delayed", "list", "--limit", "1000")
        delayed = {one.id: one for one in undone if one.is_delayed(now)}
        assert {one["message_id"] for one in listed["messages"]} == set(delayed), (listed, delayed)
        assert listed["total"] == len(delayed)
        dues = [one["due_ms"] for one in listed["messages"]]
        assert dues == sorted(dues)
        for one in listed["messages"]:
            of = delayed[one["message_id"]]
            assert (one["mode"], one["due_ms"], one["ticket_id"], one["task"]) == (
                of.mode,
                of.due_ms,
                of.ticket,
                of.task,
            )
        assert all(id_ in world.run("delayed", "list", "--limit", "1000").stdout for id_ in delayed)
        for id_ in list(delayed)[:1]:
            assert world.json("delayed", "show", id_)["message_id"] == id_

        # Dead.
        letters = world.json("dead", "list", "--limit", "1000")
        assert {one["message_id"] for one in letters["letters"]} == {one.id for one in world.of("dead")}
        text = world.run("dead", "list", "--limit", "1000").stdout
        assert all(one.id in text for one in world.of("dead"))
        for one in world.of("dead")[:1]:
            assert world.json("dead", "show", one.id)["message_id"] == one.id
            world.run("dead", "show", one.id)

        # Tickets.
        listed = world.json("ticket", "list")
        states: dict[str, str] = {}
        for one in listed["tickets"]:
            assert one["ticket_id"] not in states
            states[one["ticket_id"]] = one["state"]
        flying_tickets = {world.messages[id_].ticket for id_ in flying}
        assert {ticket for ticket, state in states.items() if state == "in flight"} == flying_tickets
        assert {ticket for ticket, state in states.items() if state == "parked"} == world.parked - flying_tickets
        assert {one["ticket_id"] for one in world.json("ticket", "list", "--parked")["tickets"]} == {
            ticket for ticket, state in states.items() if state == "parked"
        }
        world.run("ticket", "list")
        looked_at = {TICKETS[world.step % len(TICKETS)], *sorted(states)[:3]}
        for ticket in sorted(looked_at):
            self.compare_ticket(ticket, rows, now)

        # Consumers.
        listed = world.json("consumer", "list")
        there = {one["name"]: one for one in (listed["consumers"] if isinstance(listed, dict) else listed)}
        assert {name for name, one in there.items() if one["alive"]} == set(world.consumers)
        for name in world.consumers:
            assert there[name]["in_flight"] == sum(1 for one in flying.values() if one == name)
            assert there[name]["draining"] == (name in world.draining), there[name]
        world.run("consumer", "list")

        # Subscriptions, and the views of the port.
        [subscription] = world.json("subscription", "list")["subscriptions"]
        for name in ("waiting", "in_flight", "awaiting_retry", "delayed", "holding", "dead", "unread"):
            assert subscription[name] == status[name], name
        assert subscription["parked"] == number["parked"]
        overtaking = sum(1 for one in rows if one["state"] == "delayed") - subscription["holding"]
        assert subscription["undone"] == len(rows) - overtaking
        world.run("subscription", "list")
        world.run("status")
        [same] = call(world.port, "GET", "/api/status").body["subscriptions"]
        for name in (
            "waiting",
            "in_flight",
            "awaiting_retry",
            "delayed",
            "holding",
            "dead",
            "unread",
            "undone",
            "parked",
        ):
            assert same[name] == subscription[name], name
        streams = world.json("stream", "list")["streams"]
        assert [one["stream"] for one in streams] == world.streams
        world.run("stream", "list")
        world.run("stream", "info")

        # What was counted.
        counts = world.counts()
        assert counts.get("dead", 0) == world.dead_total, (counts, world.dead_total)
        assert counts.get("cancelled", 0) == world.cancelled_total
        assert counts.get("replayed", 0) == world.replayed_total
        assert counts.get("done", 0) == len(world.of("done"))

    def compare_ticket(self, ticket: str, rows: list[dict[str, Any]], now: int) -> None:
        world = self.world
        own = [row for row in rows if row["ticket_id"] == ticket]
        # The history does not name the ticket of an entry that was refused. Its letter does.
        forgotten = [one.id for one in world.of("dropped") if one.broken]
        known = any(one.ticket == ticket and one.id not in forgotten for one in world.messages.values())
        known = known or ticket in world.parked
        world.run("ticket", "show", "--", ticket, codes=(0,) if known else (0, 1))
        shown = world.json("ticket", "show", "--", ticket, codes=(0,) if known else (0, 1))
        in_flight = [row["message_id"] for row in own if row["state"] == "in flight"]
        found = shown["in_flight"]
        assert (found["message_ids"] if found else []) == in_flight, (shown, own)
        delayed = [row for row in own if world.messages[row["message_id"]].is_delayed(now)]
        assert shown["delayed"]["count"] == len(delayed), (shown, own)
        retry = [row for row in own if row["state"] == "awaiting retry"]
        # One that was held until it was due has a record while it waits for room.
        named = shown["retry"]["message_id"] if shown["retry"] else None
        assert not retry or [row["message_id"] for row in retry] == [named]
        retried = {named} - {row["message_id"] for row in delayed} - {None}
        waiting = len(own) - len(in_flight) - len(delayed) - len(retried)
        assert shown["waiting"]["count"] == waiting, (shown, own)
        assert shown["unread"]["count"] == 0
        assert (shown["parked"] is not None) == (ticket in world.parked and not in_flight), shown
        if in_flight:
            expected: set[str | None] = {"in flight"}
        elif ticket in world.parked:
            expected = {"parked"}
        elif retry:
            expected = {"awaiting retry"}
        elif own:
            first = min((world.messages[row["message_id"]] for row in own), key=lambda one: one.place)
            only_delayed = len(delayed) == len(own)
            expected = {"delayed"} if only_delayed or (first.is_delayed(now) and first.mode == "hold") else {"waiting"}
        else:
            expected = {"done", "dead", None}
        assert shown["state"] in expected, (expected, shown, own)
        dead = [one.id for one in world.of("dead") if one.ticket == ticket]
        assert {one["message_id"] for one in shown["dead"]} <= set(dead)
        assert len(shown["dead"]) == min(3, len(dead)), (shown, dead)

    # -- the end -------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        with self.stack:
            if hasattr(self, "world") and not self.world.why:
                self.finish()

    def finish(self) -> None:
        world = self.world
        for ticket in sorted(world.parked):
            self.do_release(ticket)
        for name in sorted(world.draining):
            world.run("consumer", "resume", "--", name)
        world.draining.clear()
        if "last@h" not in world.consumers:
            world.join("last@h", 3)
        world.settle()
        self.compare()
        while any(one.state == "undone" for one in world.messages.values()):
            now = world.now_ms()
            if delayed := [one for one in world.of("undone") if one.is_delayed(now)]:
                self.do_delayed("now", delayed, ["--all", "--yes"])
            for ticket in sorted({str(one.ticket) for one in world.of("undone") if one.rests}):
                world.run("ticket", "park", "--", ticket)
                world.parked.add(ticket)
                self.do_release(ticket)
            for name in sorted(world.consumers):
                world.take(name, 3)
            for id_ in sorted(world.held):
                world.end(id_, "done")
            world.settle()
            rows = world.pending()
            for row in rows:
                if row["state"] == "in flight":
                    world.flying.setdefault(row["message_id"], world.step)
        self.compare()
        if world.of("dead"):
            self.do_letters("drop", world.of("dead"), ["--all", "--yes"])
        world.settle()
        self.compare()
        said = world.run("audit", codes=(0,) if world.of("done") or world.dead_total else (0, 1))
        assert said.exit_code == 0 or "nothing to audit" in said.stdout + said.stderr, said.stdout
        for name in sorted(world.consumers):
            world.leave(name)
        registered = [f"{{{stream}}}:{GROUP}:consumers" for stream in world.streams]
        wait_until(lambda: not world.outcomes() and not world.redis.exists(*registered), description="all to be gone")
        world.stop_master()
        self.check_what_is_left()

    def check_what_is_left(self) -> None:
        world = self.world
        # An order to drain a consumer that left lasts an hour.
        lasting = ("term", "fence", "counts", "history", "about", "known", "floor", "agreed", "drains")
        allowed = set(world.streams)
        for stream in world.streams:
            allowed |= {f"{{{stream}}}:{GROUP}:{name}" for name in lasting}
        left = {key.decode(errors="replace") for key in world.redis.scan_iter()} - allowed
        left = {key for key in left if not key.startswith("{ticket_stream}/")}
        left = {key for key in left if ":reply:" not in key and not key.startswith("_kombu.")}
        left = {key for key in left if not key.endswith((":outcomes", ":dead")) or world.redis.xlen(key)}
        assert not left, left


@pytest.mark.parametrize(
    ("examples", "steps"),
    [(2, 6), pytest.param(60, 25, marks=[pytest.mark.long, pytest.mark.timeout(1800)])],
)
def test_figures_and_orders_agree(
    examples: int, steps: int, valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_machine(OperatorsMachine, examples, steps, valkey=valkey, folder=tmp_path, monkeypatch=monkeypatch)
