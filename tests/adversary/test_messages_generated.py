"""No message and no entry of the lane's streams ends a process. Each ends done or dead with a reason, and a healthy
ticket goes on.

One real master and one real worker handle all examples. ``ADVERSARY_EXAMPLES`` sets how many.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bridge.audit.audit import audit
from bridge.protocol.outcomes import Kind
from bridge.routing.history import What
from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes import preloaded
from bridge.testing.nodes.node import MasterNode, NodeYard, WorkerNode, broker_environment
from bridge.testing.nodes.process import ROOT, python_module
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until

APP = "tests.apps.anything"
SHORT = int(os.environ.get("ADVERSARY_EXAMPLES", "50"))
LONG = 25 * SHORT
#: Seconds that a batch of a few messages may take on a machine that pauses.
PATIENCE_S = 30.0
#: Failing examples are not shrunk: once the stack is broken, it stays broken.
TRIED: Any = {"phases": (Phase.generate,), "database": None, "suppress_health_check": list(HealthCheck)}
HEALTHY = "healthy"

# -- what may be in a message -----------------------------------------------------------------------------------------

TASKS = ["takes", "returns", "records", "commits", "raises", "asks"]
names = st.sampled_from([f"anything.{name}" for name in TASKS]) | st.sampled_from(
    [
        "bridge.bundle",
        "bridge.push",
        "celery.backend_cleanup",
        "celery.chord",
        "celery.ping",
        "",
        "anything.takes\0",
        "ü",
    ]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=30)
    | st.sampled_from(["\ud800", "@@BODY@@", '"],{}', "\0", "null", "{}", 10**400, -(2**63), 2**64, 1e308, -0.0])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=15,
)
#: JSON as Python writes it, with NaN, Infinity, lone surrogates, and numbers of any length.
payloads = values.map(lambda value: json.dumps(value).encode())
texts = (
    payloads
    | values.map(lambda value: json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass"))
    | st.binary(max_size=40)
    | st.builds(lambda n: b"[" * n + b"]" * n, st.integers(1, 1200))
    | st.builds(lambda n: b'"%b"' % (b"x" * n), st.sampled_from([0, 60_000, 65_534, 65_535, 200_000]))
    | st.builds(lambda n: b"9" * n, st.sampled_from([18, 19, 20, 300, 5000]))
)
tickets = (
    st.sampled_from(
        [b"", b" ", b"\0", b"\n", b"*", b"x" * 512, b"x" * 513, "ü".encode() * 256, b"\xff", b"{}", b'"', b"@@RUNS@@"]
    )
    | st.text(min_size=1, max_size=12).map(lambda text: text.encode(errors="surrogatepass"))
    | st.binary(max_size=12)
)
plausible = st.tuples(tickets, st.none() | names.map(str.encode) | st.binary(max_size=8), st.none() | texts).map(
    lambda parts: [
        *(b"ticket_id", parts[0]),
        *(() if parts[1] is None else (b"task", parts[1])),
        *(() if parts[2] is None else (b"payload", parts[2])),
    ]
)
any_fields = st.lists(
    st.tuples(st.sampled_from([b"ticket_id", b"task", b"payload", b"due", b"i", b"o"]) | st.binary(max_size=8), texts),
    min_size=1,
    max_size=6,
).map(lambda pairs: [word for pair in pairs for word in pair])
messages = plausible | plausible | any_fields

# -- what may lie beside them -----------------------------------------------------------------------------------------

ids = st.sampled_from(["1-0", "99999999999999-5", "0-0", "x", "-", "1"]) | st.text(max_size=6)
outcome = st.tuples(
    ids,
    st.integers() | scalars,
    st.sampled_from([k.value for k in Kind]) | scalars,
    scalars,
    scalars,
    values,
    values,
    values,
).map(list)
orders = st.fixed_dictionaries(
    {},
    optional={
        "do": st.sampled_from(["park", "release", "drain", "resume", "transfer", "replay", "dance"]) | scalars,
        # Tickets without messages, since a parked ticket would rightly stand still.
        "ticket": st.sampled_from(["parked a", "parked b"]) | st.integers() | st.lists(st.integers()),
        "consumer": st.sampled_from(["w9@nowhere", ""]) | st.integers(),
        "tickets": st.lists(st.integers()) | st.integers(),
        "letters": st.lists(ids) | ids,
        "to": st.text(max_size=5) | st.integers(),
        "reason": values,
    },
)
#: Not the worker's own incarnation, whose outcomes the leader would believe.
lives = st.sampled_from([b"0" * 32, b"", b"\xff"]) | st.binary(max_size=6)
outcomes = (
    st.tuples(lives, st.lists(outcome, max_size=4).map(json.dumps).map(str.encode) | texts).map(
        lambda parts: [b"i", parts[0], b"o", parts[1]]
    )
    | st.tuples(lives, st.sampled_from([b"leaving", b"gone", b"joined", b"died", b"newer"]), texts, texts).map(
        lambda parts: [b"i", parts[0], parts[1], parts[2], b"ran", parts[3]]
    )
    | st.tuples(orders.map(json.dumps).map(str.encode) | texts).map(
        lambda parts: [b"i", b"order-x", b"order", parts[0]]
    )
    | any_fields
)
row = st.tuples(
    ids,
    st.text(max_size=5) | scalars,
    values,
    values,
    scalars,
    scalars,
    scalars,
    scalars,
    scalars,
    st.sampled_from([what.value for what in What]) | scalars,
).map(list)
history = (
    st.lists(row, max_size=3).map(json.dumps).map(lambda text: [b"d", text.encode()])
    | texts.map(lambda text: [b"d", text])
    | any_fields
)
happenings = st.lists(
    st.tuples(st.just("message"), messages)
    | st.tuples(st.just("message"), messages)
    | st.tuples(st.just("outcome"), outcomes)
    | st.tuples(st.just("history"), history),
    min_size=1,
    max_size=14,
)


class SmallStack:
    """One server, one master and one worker for all examples."""

    def __init__(self, server: EmbeddedServer, yard: NodeYard) -> None:
        self.server = server
        self.redis: Any = server.client()
        self.keys = LaneKeys("ticket_stream", "concurrency_stream_group")
        self.worker: WorkerNode = yard.worker("w1", app=APP, arguments=("--concurrency=2", "--without-mingle", "-E"))
        self.master: MasterNode = yard.master("m1", app=APP, ready_text="standing by")
        self.pushed = 0
        self.healthy = 0
        self.push([b"ticket_id", HEALTHY.encode(), b"task", b"anything.counts", b"payload", b'{"n":0}'])
        self.healthy = 1
        self.wait("the first message")
        #: The worker's main process, its pool, its watcher.
        self.processes = self.living()

    def living(self) -> set[int]:
        return {self.worker.pid or 0, self.master.pid or 0, *(child.pid for child in self.worker.children())}

    def push(self, arguments: list[bytes]) -> bytes:
        self.pushed += 1
        id_: bytes = self.redis.execute_command("XADD", self.keys.stream, "*", *arguments)
        return id_

    def push_healthy(self) -> None:
        payload = orjson.dumps({"n": self.healthy})
        self.push([b"ticket_id", HEALTHY.encode(), b"task", b"anything.counts", b"payload", payload])
        self.healthy += 1

    def dead(self) -> int:
        return int(self.redis.hget(self.keys.counts, "dead") or 0)

    def ended(self) -> int:
        return int(self.redis.hget(self.keys.counts, "done") or 0) + self.dead()

    def wait(self, what: str) -> None:
        wait_until(
            lambda: self.ended() >= self.pushed or not self.alive,
            description=f"{what} to end: {self.pushed} messages were pushed",
            timeout_s=PATIENCE_S,
        )

    @property
    def alive(self) -> bool:
        return self.master.running and self.worker.running


@pytest.fixture(scope="module")
def stack(valkey_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallStack]:
    folder = tmp_path_factory.mktemp("generated")
    with EmbeddedServer(binary=valkey_binary, data_dir=folder / "server", append_only=False) as server:
        yard = ProcessYard(folder, server.url)
        try:
            yield SmallStack(server, yard)
        finally:
            yard.close()


def judge(stack: SmallStack, happened: list[tuple[str, list[bytes]]]) -> None:
    """Pushes all entries and a healthy message beside them, and checks the results."""
    pushed, dead_before = [], stack.dead()
    for where, arguments in happened:
        if where == "message":
            pushed.append(stack.push(arguments))
        else:
            key = stack.keys.outcomes if where == "outcome" else stack.keys.history
            stack.redis.execute_command("XADD", key, "*", *arguments)
    stack.push_healthy()
    stack.wait("whatever it was")

    assert stack.alive
    assert stack.living() == stack.processes
    assert stack.ended() == stack.pushed
    assert stack.redis.xpending(stack.keys.stream, stack.keys.group)["pending"] == 0
    assert [int(n) for n in stack.redis.lrange(f"log:{HEALTHY}", 0, -1)] == list(range(stack.healthy))
    letters = {}
    for _, fields in stack.redis.xrange(stack.keys.dead):
        letters[fields[b"message_id"]] = fields
    reasons = [letters[id_][b"reason"] for id_ in pushed if id_ in letters]
    assert len(reasons) == stack.dead() - dead_before
    assert all(reasons)
    # A reader of the history reads this.
    audit(stack.redis, stack.keys, since="0")
    stack.redis.delete(stack.keys.dead)


@pytest.mark.slow
@settings(max_examples=SHORT, **TRIED)
@given(happened=happenings)
def test_no_message_ends_a_process_or_holds_up_a_healthy_ticket(
    stack: SmallStack, happened: list[tuple[str, list[bytes]]]
) -> None:
    judge(stack, happened)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=LONG, **TRIED)
@given(happened=happenings)
def test_no_message_of_many_ends_a_process(stack: SmallStack, happened: list[tuple[str, list[bytes]]]) -> None:
    judge(stack, happened)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        *map(str.split, ("status --json", "audit --json", "dead list")),
        *(
            pytest.param(command.split(), marks=pytest.mark.long)
            for command in (
                "audit",
                "dead list --json",
                "ticket list --json",
                f"ticket show {HEALTHY} --json",
                "consumer list --json",
            )
        ),
    ],
    ids=" ".join,
)
def test_the_commands_read_any_data_that_lies_in_the_lane(stack: SmallStack, command: list[str]) -> None:
    """Runs after the examples, with some more entries of each kind that stay in the lane."""
    for arguments in (
        [b"d", b"{"],
        [b"d", b'[["x",1,2,3,4,5,6,7,8,"done"]]'],
        [b"d", b'[["1-0","T","t","w",null,{},[],"a",-1,"done"]]'],
        [b"foo", b"\xff"],
    ):
        stack.redis.execute_command("XADD", stack.keys.history, "*", *arguments)
    stack.redis.execute_command("XADD", stack.keys.dead, "*", b"foo", b"\xff")
    stack.redis.execute_command("XADD", stack.keys.dead, "*", b"message_id", b"x", b"attempts", b"many", b"at_ms", b"-")
    done = preloaded.run(
        python_module("bridge", "-A", APP, *command),
        cwd=ROOT,
        env={**os.environ, **broker_environment(stack.server.url)},
    )
    assert "Traceback" not in done.stderr + done.stdout, done.stderr[-2000:]
    assert done.returncode in (0, 1), done.stderr
    if "--json" in command and done.stdout:
        json.loads(done.stdout)
