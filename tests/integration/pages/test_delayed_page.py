"""The page "Delayed messages": its app, its pushes and its commands are run as shown."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from typing import Any

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.nodes.process import ROOT
from bridge.testing.waiting import wait_until
from tests.integration.pages.reader import run_python

PAGE = ROOT / "docs" / "howto" / "delayed-messages.md"
HERE = "redis://localhost:6379/0"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_example_of_the_page(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> None:
    shop, pushes = blocks("python")
    (tmp_path / "shop.py").write_text(shop.replace(HERE, own_server.url))
    redis: Any = own_server.client(decode_responses=True)

    def run(*words: str) -> str:
        return run_python(tmp_path, *words)

    def log(ticket: str) -> list[str]:
        found: list[str] = redis.lrange(f"log:{ticket}", 0, -1)
        return found

    nodes.master("m1", app="shop", env={"PYTHONPATH": str(tmp_path)}, ready_text="leading")
    nodes.worker("w1", app="shop", arguments=("--concurrency=2", "--without-mingle"), env={"PYTHONPATH": str(tmp_path)})
    [id_] = run("-c", pushes).split()
    # The shell makes the arguments of the page's command; a client of ours sends them.
    [line] = blocks("sh")
    before_ms = time.time_ns() // 1_000_000
    shell = subprocess.run(
        ["bash", "-c", 'redis-cli() { printf "%s\\0" "$@"; }\n' + line], capture_output=True, check=True
    )
    after_ms = time.time_ns() // 1_000_000
    arguments = shell.stdout.decode().rstrip("\0").split("\0")
    redis.execute_command(*arguments)
    assert before_ms <= int(arguments[arguments.index("due") + 1]) - 2000 <= after_ms
    wait_until(lambda: len(log("T1")) == 3 and len(log("T2")) == 2, timeout_s=90, description="the messages to be due")
    assert log("T1") == ["opened", "note", "reminder"]
    assert log("T2") == ["held", "behind it"]
    wait_until(lambda: log("T4") == ["from a shell"], timeout_s=90, description="the message of the shell")

    [console] = blocks("console")
    assert [one.split()[1:4] for one in console.splitlines() if one.startswith("$ ")] == [["bridge", "-A", "shop"]] * 2
    listed = run("-m", "bridge", "-A", "shop", "delayed", "list").splitlines()
    assert listed[0].split() == console.splitlines()[1].split()
    assert [(row.split()[0], *row.split()[1:3], row.split()[-1]) for row in listed[1:]] == [
        (id_, "T3", "shop.update", "overtake")
    ]
    assert run("-m", "bridge", "-A", "shop", "delayed", "cancel", id_) == console.splitlines()[-1] + "\n"
    assert run("-m", "bridge", "-A", "shop", "delayed", "list") == "no delayed messages\n"
    assert redis.hget("{ticket_stream}:concurrency_stream_group:counts", "cancelled") == "1"
