"""The page "Consumers in any language": its programs in Python, Node and shell, run as they are shown."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import Node, NodeYard
from bridge.testing.nodes.process import ROOT
from bridge.testing.waiting import wait_until
from tests.integration.http.http_consumers import SHORT_LEASE, HttpLane

PAGE = ROOT / "docs" / "howto" / "consumers.md"
PORT = "127.0.0.1:8080"
#: Language of the block on the page -> the program that runs it, the end of its file's name, the consumer's name.
PROGRAMS = {
    "python": (sys.executable, ".py", "python-1"),
    "javascript": ("node", ".mjs", "node-1"),
    "sh": ("sh", ".sh", "shell-1"),
}


@pytest.fixture
def lane(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> HttpLane:
    """A lane with a master. No lease ends during a test: the program in shell renews it once in a second."""
    lane = HttpLane(nodes, own_server, tmp_path)
    lane.master("m1")
    return lane


def start(lane: HttpLane, language: str, folder: Path) -> Node:
    program, ending, _ = PROGRAMS[language]
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here")
    [text] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert PORT in text
    file = folder / f"consumer{ending}"
    file.write_text(text.replace(PORT, f"127.0.0.1:{lane.ports['m1']}"))
    return lane.nodes.process(language, [program, str(file)], env={"PYTHONPATH": str(ROOT)}, cwd=folder, wait=False)


@pytest.mark.parametrize("language", ["python", "javascript"])
def test_a_program_handles_messages_and_leaves(lane: HttpLane, language: str, tmp_path: Path) -> None:
    consumer = start(lane, language, tmp_path)
    for n in range(3):
        lane.push("T1", {"n": n})
    lane.wait_done(3)
    seen = [line for line in consumer.logs().splitlines() if line.startswith("T1")]
    assert [re.sub(r"[^0-9]", "", line.removeprefix("T1")) for line in seen] == ["0", "1", "2"]
    consumer.kill("SIGTERM")
    assert consumer.wait() == 0
    wait_until(lambda: lane.redis.hlen(lane.keys.consumers) == 0, description="it to be gone")
    lane.assert_at_rest()


def test_the_python_program_gives_up_and_refuses(lane: HttpLane, tmp_path: Path) -> None:
    start(lane, "python", tmp_path)
    lane.push("T1", {"amount": -1})
    lane.wait_done(1)
    assert [letter["error"] for letter in lane.dead_letters()] == ["a negative amount"]
    lane.push("T1", {"embargo": True})
    wait_until(lambda: lane.count("nacked") == 1, description="the refusal")


def test_the_node_program_ends_itself_when_its_lease_is_over(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = HttpLane(nodes, own_server, tmp_path, **SHORT_LEASE)
    lane.master("m1")
    consumer = start(lane, "javascript", tmp_path)
    lane.wait_consumers(1)
    consumer.pause()
    wait_until(lambda: lane.redis.hlen(lane.keys.consumers) == 0, description="it to be taken for lost")
    consumer.resume()
    assert consumer.wait() == 75


def test_the_shell_program_handles_messages(lane: HttpLane, tmp_path: Path) -> None:
    for n in range(2):
        lane.push(f"T{n}", {"n": n})
    consumer = start(lane, "sh", tmp_path)
    lane.wait_done(2)
    assert consumer.wait() == 0
    assert sorted(consumer.logs().split()) == ["T0", "T1"]
    wait_until(lambda: lane.redis.hlen(lane.keys.consumers) == 0, description="it to be gone")
