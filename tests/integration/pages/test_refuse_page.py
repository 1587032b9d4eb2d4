"""The page "Refuse a message": its app is run as shown, and its tickets say what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.nodes.process import ROOT
from bridge.testing.waiting import wait_until
from tests.integration.pages.reader import run_python

PAGE = ROOT / "docs" / "howto" / "refuse-messages.md"
HERE = "redis://localhost:6379/0"


def test_the_app_of_the_page(nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path) -> None:
    shop, push = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "shop.py").write_text(shop.replace(HERE, own_server.url))
    redis: Any = own_server.client(decode_responses=True)
    counts = "{ticket_stream}:concurrency_stream_group:counts"

    nodes.master("m1", app="shop", env={"PYTHONPATH": str(tmp_path)}, ready_text="leading")
    nodes.worker("w1", app="shop", arguments=("--concurrency=1", "--without-mingle"), env={"PYTHONPATH": str(tmp_path)})
    first = [("T1", {"account": "A1", "amount": amount}) for amount in (0, 2)] + [
        ("T2", {"account": "B9", "amount": 1})
    ]
    run_python(tmp_path, "-c", f"from shop import charge\ncharge.push_many({first!r})\n{push}")
    wait_until(lambda: int(redis.hget(counts, "nacked") or 0) >= 3, timeout_s=90, description="the refusals")

    def says_so() -> bool:
        shown = run_python(tmp_path, "-m", "bridge", "-A", "shop", "ticket", "show", "T1")
        wanted = r"attempt 1 of 5 is due (in|now).*: nacked [0-9]+ times? since \S+\+00:00: the bank is closed"
        return re.search(wanted, " ".join(shown.split())) is not None

    # Now and then it is in flight.
    wait_until(says_so, description="it to await its next attempt")
    redis.set("bank", "open")
    wait_until(lambda: redis.hget(counts, "done") == "2", timeout_s=90, description="the messages to be done")
    assert redis.hgetall("account:A1") == {"charged": "5"}
    assert redis.hget(counts, "dropped") == "1"
    [(_, letter)] = redis.xrange("{ticket_stream}:concurrency_stream_group:dead")
    assert (letter["error"], letter["attempts"]) == ("Dead: there is no account B9", "1")
