"""The page "Keep state between messages": its app and its prints, run as shown; a later version keeps the state."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.nodes.process import ROOT
from bridge.testing.waiting import wait_until
from tests.integration.pages.reader import run_python

PAGE = ROOT / "docs" / "howto" / "ticket-state.md"
HERE = "redis://localhost:6379/0"


def test_the_app_of_the_page_and_a_second_version_of_its_stream(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    shop, use = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    conf = "app.conf.update(bridge_default_task='shop.count')\n"
    (tmp_path / "shop.py").write_text(shop.replace(HERE, own_server.url) + conf)
    env = {"PYTHONPATH": str(tmp_path)}
    redis: Any = own_server.client(decode_responses=True)
    keys = "{ticket_stream}:concurrency_stream_group"

    def run(code: str) -> str:
        return run_python(tmp_path, "-c", code)

    first = [
        nodes.master("m1", app="shop", env=env, ready_text="leading"),
        nodes.worker("w1", app="shop", arguments=("--concurrency=1", "--without-mingle"), env=env),
    ]
    pushes, _, shows = use.partition("...\n")
    run(pushes)
    wait_until(lambda: redis.hget(f"{keys}:state:T42", "total") == "7", timeout_s=90, description="the state")
    assert run(f"import bridge, shop\n{shows}") == "{'total': 7, 'amounts': [3, 4]}\n"

    # The next version of the stream goes on with it, also after the old one is retired.
    for node in first:
        node.terminate()
    newer = "app.conf.update(bridge_stream='ticket_stream:v2', bridge_follows=['ticket_stream'])\n"
    (tmp_path / "shop.py").write_text(shop.replace(HERE, own_server.url) + conf + newer)
    nodes.master("m2", app="shop", env=env, ready_text="leading")
    nodes.worker("w2", app="shop", arguments=("--concurrency=1", "--without-mingle"), env=env)
    run("import shop\nshop.count.push('T42', {'amount': 5})")
    wait_until(lambda: redis.hget(f"{keys}:state:T42", "total") == "12", timeout_s=90, description="the state of v2")
    assert run(f"import bridge, shop\n{shows}") == "{'total': 12, 'amounts': [3, 4, 5]}\n"
    assert redis.get("{ticket_stream:v2}:concurrency_stream_group:state-home") == "ticket_stream"
