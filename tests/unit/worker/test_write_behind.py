"""While a write of outcomes is under way, messages of other tickets run: and no message whose turn depends on it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.app.installation import install
from bridge.consumer import writer as writers
from bridge.consumer.deadline import now_ns
from bridge.consumer.writer import OutcomeWriter
from bridge.protocol.names import BUNDLE_TASK, HEADER_BASE, HEADER_INCARNATION, HEADER_RUNS
from bridge.protocol.outcomes import Kind, Outcome
from bridge.worker.guard.shared_page import SharedPage
from bridge.worker.pool import bundles
from bridge.worker.pool.execute import Execution
from tests.unit.worker.faulty_server import Connection, Fault, Server
from tests.unit.worker.kept_outcomes import LIFE, heads

BASE = 1000
NAME = "shop.pay"
#: What happens, as the tests write it.
SENT, READ, START = "sent", "read", "start"
#: A message started before the outcome of the one before it was written.
EARLY = "early"


class Pool:
    """One pool process. Its tasks do what their payloads say."""

    def __init__(self) -> None:
        app: Any = install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False))
        self.server = Server()
        self.shared = SharedPage()

        @app.task(bind=True, name=NAME, ignore_result=True, lazy=False, shared=False)
        def pay(task: Any, ticket_id: str, payload: str) -> None:
            fence = task.ticket.fence
            self.server.log.append((START, fence))
            if fence % 10 and fence - 1 not in {written for written, _ in self.server.outcomes}:
                self.server.log.append((EARLY, fence))
            if payload == "effects":
                task.ticket.effects.incrby(f"sum:{ticket_id}", 1)
            elif payload == "fails":
                raise ValueError("as it was told")
            elif payload == "the lease ends":
                self.shared.end()
            elif payload == "the process is told to end":
                raise SystemExit(0)

        app.finalize()
        # However slow the machine is, the bundle gives nothing back.
        self.lane = app.bridge.settings.lane.model_copy(update={"bundle_ms": 10_000.0})
        self._app = app

    def begin(
        self, faults: Iterable[Fault | None] = (), *, stale: Collection[int] = (), wrong: Collection[int] = ()
    ) -> None:
        """A new server, lease and writer. ``stale``, ``wrong``: fences whose effects the server refuses."""
        self.server = Server(iter(faults), frozenset(stale), frozenset(wrong))
        self.shared.begin(LIFE, now_ns() + 600 * 10**9)
        self.writer = OutcomeWriter("redis://localhost:1/0", self.lane, self.shared)

    def run(self, runs: list[list[str]]) -> dict[str, str]:
        """Runs a bundle: a list for each ticket, with what its messages do. Returns message -> kind of its event.

        The fences of ticket n begin with ``BASE + 10 * n``.
        """
        execution = Execution(self._app, self.lane, self.shared, self.writer, "w1@here")
        body: list[Any] = [
            [f"T{t}", 10 * t, 1, [[f"{BASE + 10 * t + n}-0", NAME, does] for n, does in enumerate(messages)]]
            for t, messages in enumerate(runs)
        ]
        request = {
            "id": "b", HEADER_BASE: BASE, HEADER_RUNS: heads(body), HEADER_INCARNATION: LIFE, "task": BUNDLE_TASK,
        }  # fmt: skip
        failed, events, _ = bundles.run_bundle(execution, request, json.dumps(body))
        return {} if failed else {id_.partition("-")[0]: kind for id_, kind, *_ in events}

    @property
    def log(self) -> list[Any]:
        """What happened: what was sent, and which message started, by ticket and place."""
        return [(kind, [_name(f) for f in more[1]] if kind == SENT else _name(more[0])) if kind != READ else kind
                for kind, *more in self.server.log]  # fmt: skip


def _name(fence: int) -> str:
    return f"{(fence - BASE) // 10}:{fence % 10}"


@contextmanager
def pool_before_a_server() -> Iterator[Pool]:
    """A pool whose server is a `Server`. Rounds of two tickets are long ones."""
    pool = Pool()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writers, "Wire", lambda *_, **__: Connection(pool.server))
        patch.setattr(writers, "client", lambda *_, **__: Connection(pool.server))
        patch.setattr(writers, "RETRY_S", 0.0)
        patch.setattr(bundles, "SPLIT_FROM", 2)
        # No write is due by the clock.
        patch.setattr(bundles, "WRITE_AFTER_S", 600.0)
        yield pool


@pytest.fixture(name="pool", scope="module")
def _pool() -> Iterator[Pool]:
    with pool_before_a_server() as pool:
        yield pool


def starts(*messages: str) -> list[tuple[str, str]]:
    return [(START, message) for message in messages]


def test_tickets_of_the_other_half_run_while_a_write_is_under_way(pool: Pool) -> None:
    pool.begin()
    pool.run([["effects"] * 2] * 4)
    assert pool.log == [
        *starts("0:0", "1:0"), (SENT, ["0:0", "1:0"]),
        *starts("2:0", "3:0"), READ, (SENT, ["2:0", "3:0"]),
        *starts("0:1", "1:1"), READ, (SENT, ["0:1", "1:1"]),
        *starts("2:1", "3:1"), READ, (SENT, ["2:1", "3:1"]), READ,
    ]  # fmt: skip


def test_a_message_waits_for_the_write_of_the_one_before_it(pool: Pool) -> None:
    pool.begin()
    pool.run([["effects"] * 3])
    assert pool.log == [
        *starts("0:0"), (SENT, ["0:0"]), READ, *starts("0:1"), (SENT, ["0:1"]), READ, *starts("0:2"), (SENT, ["0:2"]),
        READ,
    ]  # fmt: skip


def test_a_write_that_is_due_waits_for_no_reply(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tickets go on, up to the end of the round."""
    monkeypatch.setattr(bundles, "WRITE_AFTER_S", -1.0)
    pool.begin([Fault.LATE])
    pool.run([["nothing"]] * 4)
    assert pool.log == [
        *starts("0:0"), (SENT, ["0:0"]), *starts("1:0", "2:0", "3:0"), READ, (SENT, ["1:0", "2:0", "3:0"]), READ,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "fault", [Fault.NOT_SENT, Fault.REPLY_LOST, Fault.LOST_ON_THE_WAY, Fault.NO_SCRIPT, Fault.REFUSED]
)
def test_a_write_that_failed_is_sent_again_before_its_tickets_go_on(pool: Pool, fault: Fault) -> None:
    pool.begin([fault])
    events = pool.run([["effects"] * 2] * 4)
    judge(pool, events, 4 * 2)
    assert set(pool.server.applied.values()) == {1}
    assert set(events.values()) == {"succeeded"}


@pytest.mark.parametrize("fault", [Fault.FULL, Fault.NO_STREAM, Fault.REPLY_LOST, Fault.LOST_ON_THE_WAY])
def test_outcomes_without_effects_reach_a_server_that_failed(pool: Pool, fault: Fault) -> None:
    pool.begin([fault])
    events = pool.run([["nothing"] * 2] * 4)
    judge(pool, events, 4 * 2)
    assert {fence for fence, _ in pool.server.outcomes} == {int(message) for message in events}


@pytest.mark.parametrize("fate", ["stale", "wrong"])
def test_a_ticket_that_was_refused_does_not_go_on_and_others_do(pool: Pool, fate: str) -> None:
    # It is known when half of the round has started behind it.
    pool.begin(stale={BASE} if fate == "stale" else (), wrong={BASE} if fate == "wrong" else ())
    events = pool.run([["effects"] * 2] * 4)
    judge(pool, events, 4 * 2 - 1)
    assert "0:1" not in [name for kind, name in (one for one in pool.log if one != READ) if kind == START]
    assert events.get(str(BASE)) == (None if fate == "stale" else "retried")
    assert [kind for fence, kind in pool.server.outcomes if fence == BASE] == ([] if fate == "stale" else ["F"])


@pytest.mark.parametrize("fault", [Fault.REPLY_LOST, Fault.LOST_ON_THE_WAY])
def test_after_the_lease_a_write_whose_reply_is_lost_is_void(pool: Pool, fault: Fault) -> None:
    """Another worker may have the ticket: it is not sent again, and nothing starts."""
    pool.begin([fault])
    # The lease ends while the last one of the round runs.
    assert pool.run([["effects"] * 2, ["the lease ends"] * 2]) == {}
    # What was not sent yet is sent once: its fence decides.
    assert pool.log == [*starts("0:0"), (SENT, ["0:0"]), *starts("1:0"), READ, (SENT, ["1:0"]), READ]


def test_after_the_lease_the_reply_under_way_is_not_waited_for(pool: Pool) -> None:
    pool.begin()
    assert pool.run([["effects"] * 2, ["effects"] * 2, ["the lease ends"] * 2, ["effects"] * 2]) == {}
    assert pool.log == [*starts("0:0", "1:0"), (SENT, ["0:0", "1:0"]), *starts("2:0")]


@pytest.mark.parametrize("way", ["a task ends its process", "a time limit strikes in the write"])
def test_a_bundle_that_ends_half_way_leaves_no_reply_to_the_next_one(pool: Pool, way: str) -> None:
    struck = way.startswith("a time")
    pool.begin([Fault.STRUCK if struck else Fault.LATE])
    last = "effects" if struck else "the process is told to end"
    with pytest.raises(SoftTimeLimitExceeded if struck else SystemExit):
        pool.run([["effects"], ["effects"], [last], ["effects"]])
    assert pool.writer.write(LIFE, [Outcome("9-0", 9, Kind.RETURNED)])
    (sent, last_sent, _), (read, last_read) = pool.server.log[-2:]
    assert (sent, read, last_sent) == (SENT, READ, last_read)


def test_a_write_that_is_due_by_the_clock_is_under_way_while_the_next_ticket_runs(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "WRITE_AFTER_S", -1.0)
    pool.begin()
    pool.run([["nothing"]] * 3)
    assert pool.log == [
        *starts("0:0"), (SENT, ["0:0"]), *starts("1:0"), READ, (SENT, ["1:0"]), *starts("2:0"), READ, (SENT, ["2:0"]),
        READ,
    ]  # fmt: skip


def judge(pool: Pool, events: dict[str, str], messages: int) -> None:
    """What holds with every order of replies and faults, while the lease holds."""
    under_way: dict[int, list[int]] = {}
    writes: Counter[int] = Counter()
    started = []
    last = ""
    for kind, *more in pool.server.log:
        if kind == SENT:
            number, fences = more
            # A write may have two parts, and one that failed is sent again.
            assert not under_way or last == SENT or set(fences) <= writes.keys(), "a write began before a reply"
            under_way[number] = fences
            writes.update(fences)
        elif kind == READ:
            under_way.pop(more[0], None)
        else:
            assert kind == START, f"{_name(more[0])} started too early"
            [fence] = more
            started.append(fence)
            before = fence - 1
            if fence % 10:
                assert not any(before in one for one in under_way.values()), f"{_name(fence)} did not wait for a reply"
        last = kind
    assert not under_way, "a reply was not read"
    assert len(started) == len(set(started)) == messages
    server = pool.server
    kinds: dict[int, set[str]] = {}
    for fence, kind in server.outcomes:
        kinds.setdefault(fence, set()).add(kind)
    assert all(times == 1 for times in server.applied.values()), "effects were applied twice"
    for fence in started:
        if fence in server.stale and fence not in kinds:
            assert str(fence) not in events
        else:
            assert len(kinds.get(fence, ())) == 1, f"{_name(fence)} has no outcome, or several"
            [kind] = kinds[fence]
            assert events[str(fence)] == ("succeeded" if kind == "S" else "retried"), _name(fence)


DOES = st.sampled_from(["effects", "effects", "nothing", "fails"])
#: A server that refuses by chance what it applied before is left out.
FAULTS = st.sampled_from([None, None, *(fault for fault in Fault if fault not in (Fault.STRUCK, Fault.REFUSED))])


@settings(max_examples=60)
@given(
    runs=st.lists(st.lists(DOES, min_size=1, max_size=3), min_size=1, max_size=5),
    faults=st.lists(FAULTS, max_size=8),
    refused=st.sets(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=2),
    stale=st.booleans(),
    by_clock=st.booleans(),
)
def test_in_any_order_of_replies_and_faults_tickets_keep_their_order(
    pool: Pool,
    runs: list[list[str]],
    faults: list[Fault | None],
    refused: set[tuple[int, int]],
    stale: bool,
    by_clock: bool,
) -> None:
    fences = {BASE + 10 * ticket + place for ticket, place in refused}
    pool.begin(faults, stale=fences if stale else (), wrong=() if stale else fences)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundles, "WRITE_AFTER_S", -1.0 if by_clock else 600.0)
        events = pool.run(runs)
    started = [fence for kind, *more in pool.server.log if kind == START for fence in more]
    for ticket, messages in enumerate(runs):
        own = [fence for fence in started if (fence - BASE) // 10 == ticket]
        assert own == [BASE + 10 * ticket + n for n in range(len(own))]
        succeeded = [str(fence) in events and events[str(fence)] == "succeeded" for fence in own]
        # It went on behind each success, and behind nothing else.
        assert all(succeeded[:-1])
        assert len(own) == len(messages) or not succeeded[-1]
    judge(pool, events, len(started))
