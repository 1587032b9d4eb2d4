"""The commands as a user types them, as processes, with a real master and a real worker."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from redis import Redis

from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes import preloaded
from bridge.testing.nodes.node import Node, NodeYard, broker_environment
from bridge.testing.nodes.process import python_module
from bridge.testing.waiting import wait_until
from tests.commands import letter

APP = """
import os, time
from celery import Celery
import bridge

app = Celery("shop", broker=os.environ["CELERY_BROKER_URL"])
bridge.install(app)
app.conf.update(bridge_default_task="shop.work", bridge_lease=2, bridge_backoff={"base": 600})

@app.task(bind=True, name="shop.work")
def work(self, ticket_id, payload):
    while "gate" in payload and not os.path.exists(payload["gate"]):
        time.sleep(0.02)
    if "fail" in payload:
        raise ValueError(payload["fail"])

@app.task(bind=True, name="shop.once", bridge_max_attempts=1)
def once(self, ticket_id, payload):
    raise ValueError("once only")
"""

KEYS = LaneKeys("ticket_stream", "concurrency_stream_group")
QUICK = ("--concurrency=1", "--without-mingle", "--without-gossip")


class Shell:
    """Runs commands in the folder of the app."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        # Without PYTHONPATH: the commands are those of the installed distribution.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.env = {**kept, **broker_environment(url), "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        done = preloaded.run(python_module(*arguments), cwd=self.folder, env=self.env, stdin=stdin)
        assert "Traceback" not in done.stderr
        return done

    def bridge(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return self.run("bridge", "-A", "shop", *arguments, stdin=stdin)

    def json(self, *arguments: str) -> Any:
        return json.loads(self.bridge(*arguments, "--json").stdout)

    def watch(self, nodes: NodeYard, *arguments: str) -> Node:
        """Starts to watch the status."""
        command = python_module("bridge", "-A", "shop", "status", "--watch", "--interval", "0.1", *arguments)
        return nodes.process("watch", command, cwd=self.folder, env={**self.env, "PYTHONPATH": ""}, wait=False)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            python_module("bridge", "-A", "shop", *arguments),
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )


@pytest.fixture
def shell(own_server: EmbeddedServer, tmp_path: Path) -> Shell:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "shop.py").write_text(APP)
    return Shell(folder, own_server.url)


@pytest.fixture
def redis(own_server: EmbeddedServer) -> Iterator[Redis]:
    with own_server.client(protocol=2) as client:
        yield client


@pytest.mark.slow
def test_a_file_is_followed_from_the_push_to_the_end_of_its_tickets(
    shell: Shell, nodes: NodeYard, redis: Redis, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    rows = [
        {"ticket_id": "SLOW", "gate": str(gate)},
        {"ticket_id": "SLOW", "n": 2},
        {"ticket_id": "RETRY", "fail": "no good"},
        {"ticket_id": "DEAD", "task": "shop.once"},
        {"ticket_id": "BEHIND", "n": 1},
    ]
    (shell.folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "no master leads" in shell.bridge("status").stdout
    pushed = shell.json("push", "log.jsonl")
    assert pushed["pushed"] == 5
    assert shell.json("status")["unread"] == 5
    assert shell.json("ticket", "show", "SLOW")["state"] == "unread"

    nodes.master("m1", app="shop", cwd=shell.folder, ready_text="leading")
    wait_until(lambda: redis.xpending(KEYS.stream, KEYS.group)["pending"] == 5, description="the master to read")
    assert shell.json("status")["unread"] == 0
    stuck = shell.json("ticket", "show", "SLOW")
    assert stuck["state"] == "waiting"
    assert "no consumer is alive" in stuck["why"]

    # Two processes: the gate holds one, and the other handles the rest.
    worker = nodes.worker("w1", app="shop", cwd=shell.folder, arguments=("--concurrency=2", *QUICK[1:]))
    wait_until(lambda: redis.hget(KEYS.counts, "done") == b"1", description="BEHIND to be done")
    wait_until(lambda: redis.hget(KEYS.counts, "failed") == b"2", description="two failures")

    flight = shell.json("ticket", "show", "SLOW")
    assert flight["state"] == "in flight"
    assert flight["in_flight"]["consumer"] == worker.hostname()
    assert flight["in_flight"]["message_ids"][0] == pushed["first_id"]
    assert flight["in_flight"]["consumer_alive"] is True
    retry = shell.json("ticket", "show", "RETRY")
    assert retry["state"] == "awaiting retry"
    assert (retry["retry"]["attempt"], retry["retry"]["max_attempts"]) == (2, 5)
    assert "ValueError: no good" in retry["why"]
    dead = shell.json("ticket", "show", "DEAD")
    assert dead["state"] == "dead"
    assert shell.json("ticket", "show", "BEHIND")["state"] == "done"

    seen = shell.json("status")
    assert seen["awaiting_retry"] == 1
    assert seen["dead"] == 1
    assert seen["in_flight"] + seen["waiting"] == 2
    assert [(one["name"], one["alive"], one["slots"]) for one in seen["consumers"]] == [(worker.hostname(), True, 2)]
    listed = shell.json("dead", "list")["letters"]
    assert [one["ticket_id"] for one in listed] == ["DEAD"]
    shown = shell.bridge("dead", "show", listed[0]["message_id"]).stdout
    assert "once only" in shown
    assert "Traceback (most recent call last)" in shown

    gate.touch()
    wait_until(lambda: redis.hget(KEYS.counts, "done") == b"3", description="SLOW to be done")
    assert shell.json("ticket", "show", "SLOW")["state"] == "done"
    worker.vanish()
    wait_until(lambda: not list(redis.scan_iter(match=KEYS.lease("*"))), description="the lease of w1 to end")
    assert not any(one["alive"] for one in shell.json("status")["consumers"])


@pytest.mark.slow
def test_the_commands_work_as_a_plugin_of_celery(shell: Shell, redis: Redis) -> None:
    redis.xadd(KEYS.stream, {"ticket_id": "A"})
    seen = json.loads(shell.run("celery", "-A", "shop", "bridge", "status", "--json").stdout)
    assert seen["unread"] == 1
    assert shell.run("celery", "-A", "shop", "bridge", "ticket", "show", "A").returncode == 0
    assert shell.run("celery", "bridge", "-A", "shop", "status").returncode == 0
    for arguments in (["celery", "bridge", "status"], ["bridge", "status"]):
        missing = shell.run(*arguments)
        assert missing.returncode == 2
        assert "cannot load the Celery app 'tasks'" in missing.stderr


@pytest.mark.slow
def test_watching_outlives_the_server_and_ends_with_ctrl_c(
    shell: Shell, nodes: NodeYard, own_server: EmbeddedServer
) -> None:
    watch = shell.watch(nodes)
    watch.wait_for_log("no leader")
    own_server.kill()
    watch.wait_for_log("lost Redis")
    own_server.start()
    wait_until(
        lambda: "no leader" in watch.logs().rpartition("lost Redis")[2], description="it to see the server again"
    )
    watch.send(signal.SIGINT)
    assert watch.wait() == 0
    assert "Traceback" not in watch.logs()


@pytest.mark.slow
def test_watching_as_json_is_a_line_each_time(shell: Shell, nodes: NodeYard) -> None:
    watch = shell.watch(nodes, "--json")
    wait_until(lambda: watch.logs().count("\n") > 2, description="three looks")
    watch.send(signal.SIGINT)
    assert watch.wait() == 0
    looks = [json.loads(line) for line in watch.logs().splitlines()[:3]]
    assert all(look["stream"] == "ticket_stream" for look in looks)


@pytest.mark.slow
def test_ctrl_c_while_pushing_says_how_many_rows_are_in(shell: Shell, redis: Redis) -> None:
    push = shell.start("push", "-", "--format", "json", "--batch", "10", stdin=subprocess.PIPE)
    assert push.stdin is not None
    push.stdin.write('{"ticket_id":"T"}\n' * 25)
    push.stdin.flush()
    wait_until(lambda: redis.xlen(KEYS.stream) == 20, description="two batches to be in", timeout_s=90)
    # It reads on only after the reply to the second batch.
    push.stdin.write('{"ticket_id":"T"}\n')
    push.stdin.flush()
    wait_until(lambda: unread(push.stdin) == 0, description="the next row to be read", timeout_s=90)
    push.send_signal(signal.SIGINT)
    _, errors = push.communicate(timeout=60)
    assert push.returncode == 1
    assert errors == "Error: interrupted; 20 rows before it were pushed\n"


def unread(pipe: IO[str] | None) -> int:
    """How many bytes of a pipe nobody has read yet."""
    assert pipe is not None
    [count] = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(count)


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_ends_the_list_quietly(shell: Shell, redis: Redis) -> None:
    redis.xgroup_create(KEYS.stream, KEYS.group, "0", mkstream=True)
    words = letter("A", error="x" * 150)
    with redis.pipeline() as pipe:
        for n in range(600):
            fields: dict[Any, Any] = {"message_id": f"{n + 1}-1", **dict(zip(words[::2], words[1::2], strict=True))}
            pipe.xadd(KEYS.dead, fields)
        pipe.execute()
    listing = shell.start("dead", "list", "--limit", "600")
    assert listing.stdout is not None
    assert listing.stderr is not None
    listing.stdout.readline()
    listing.stdout.close()
    errors = listing.stderr.read()
    assert listing.wait(timeout=60) in (0, 1)
    assert errors == ""


@pytest.mark.slow
def test_a_large_file_is_pushed_in_bounded_memory(shell: Shell, redis: Redis) -> None:
    with (shell.folder / "log.csv").open("w") as file:
        file.write("ticket_id,text\n")
        for n in range(10_000):
            file.write(f"T{n},{'x' * 2000}\n")
    script = (
        "import resource, sys\nfrom bridge.cli.main import cli\n"
        "try:\n    cli(['-A', 'shop', 'push', sys.argv[1], '--json', *sys.argv[2:]])\nfinally:\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )

    def peak_kib(*arguments: str) -> int:
        command = [sys.executable, "-c", script, *arguments]
        done = subprocess.run(
            command, cwd=shell.folder, env=shell.env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return int(done.stderr)

    (shell.folder / "one.csv").write_text("ticket_id,text\nT,x\n")
    small, large = peak_kib("one.csv"), peak_kib("log.csv")
    assert redis.xlen(KEYS.stream) == 10_001
    assert large - small < 15 * 1024, "of the 20 MB of the file only a batch or two is in memory"
