"""The page "Publish and subscribe": its two apps, its results and its commands, run as they are shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.nodes.process import ROOT
from bridge.testing.waiting import wait_until
from tests.integration.pages.reader import run_python

PAGE = ROOT / "docs" / "howto" / "publish-and-subscribe.md"
HERE = "redis://localhost:6379/0"


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    return [shlex.split(line) for line in PAGE.read_text().splitlines() if line.startswith("bridge -A ")]


def test_the_apps_results_and_commands_of_the_page(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> None:
    shop, results, mail = (text.replace(HERE, own_server.url) for text in blocks())
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "mail.py").write_text(mail)
    env = {"PYTHONPATH": str(tmp_path)}
    redis: Any = own_server.client(decode_responses=True)

    def bridge(words: list[str]) -> str:
        return run_python(tmp_path, "-m", *words)

    add, listing, look, remove = commands()
    assert "added mail on ticket_stream" in bridge(add)
    assert "mail" in bridge(listing)

    # The app of the page, and what it prints
    master = nodes.master("m1", app="shop", env=env, ready_text="standing by")
    worker = nodes.worker("w1", app="shop", arguments=("--concurrency=1", "--without-mingle"), env=env)
    assert run_python(tmp_path, "-c", results).split() == ["billed", "indexed"]
    pushes = "import shop\nshop.bill.push('T42', {'kind': 'read'})\nshop.refund.push('T42', {'kind': 'changed'})"
    run_python(tmp_path, "-c", pushes)
    wait_until(lambda: redis.llen("billed:T42") == 3, timeout_s=90, description="billing")
    wait_until(lambda: redis.llen("indexed:T42") == 2, timeout_s=90, description="search")
    assert redis.lrange("billed:T42", 0, -1) == ["created", "read", "back changed"]
    assert redis.lrange("indexed:T42", 0, -1) == ["created", "changed"]

    # The other code base was away, and gets everything by its own task
    nodes.master("m2", app="mail", env=env, ready_text="standing by")
    nodes.worker("w2", app="mail", arguments=("--concurrency=1", "--without-mingle"), env=env)
    wait_until(lambda: redis.llen("sent:T42") == 3, timeout_s=90, description="mail")
    assert redis.lrange("sent:T42", 0, -1) == ["created", "read", "changed"]

    master.terminate()
    worker.terminate()
    assert "would remove search on ticket_stream" in bridge(look)
    assert "removed search on ticket_stream" in bridge(remove)
    assert {one["name"] for one in redis.xinfo_groups("ticket_stream")} == {"billing", "mail"}
