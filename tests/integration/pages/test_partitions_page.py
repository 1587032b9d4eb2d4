"""The page "Split a stream into partitions": its app and its foreign producer, run as they are shown."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from bridge.routing.partitions import partition_of
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes import preloaded
from bridge.testing.nodes.node import NodeYard
from bridge.testing.nodes.process import ROOT
from bridge.testing.waiting import wait_until
from tests.integration.pages.reader import run_python

PAGE = ROOT / "docs" / "howto" / "partitions.md"
HERE = "redis://localhost:6379/0"


def blocks(url: str) -> list[str]:
    """The Python blocks of the page, for the server at ``url``."""
    found = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [text.replace(HERE, url).replace("Redis()", f"Redis.from_url({url!r})") for text in found]


def test_the_app_and_the_foreign_producer_of_the_page_meet(
    nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    shop, foreign, again = blocks(own_server.url)
    (tmp_path / "shop.py").write_text(shop)
    env = {"PYTHONPATH": str(tmp_path)}
    nodes.master("m1", app="shop", env=env, ready_text="standing by")
    nodes.worker("w1", app="shop", arguments=("--concurrency=1",), env=env)
    redis: Any = own_server.client(decode_responses=True)
    fields = "dict(ticket_id='T{0}', task='shop.apply_update', payload='{{\"amount\": 1}}')"
    more = "".join(f"redis.xadd(stream_of('T{n}'), {fields.format(n)})\n" for n in range(12))
    # Messages that nobody reads
    more += "".join(f"redis.xadd('ticket_stream:p9', {fields.format(n)})\n" for n in range(12, 16)) + again
    pushed = "import shop\nprint(shop.apply_update.push('T42', {'amount': 4}))"
    run_python(tmp_path, "-c", foreign + more)
    id_ = run_python(tmp_path, "-c", pushed).strip()
    wait_until(lambda: redis.lrange("amounts:T42", 0, -1) == ["3", "4"], description="T42 to be handled")
    wait_until(lambda: len(redis.keys("amounts:*")) == 17, description="the other tickets to be handled")
    assert not redis.exists("ticket_stream:p9")
    assert id_.endswith(f"@p{partition_of('T42', 4)}")
    # A result is stored after the effects.
    found = wait_until(lambda: redis.get(f"celery-task-meta-{id_}"), description="the result of T42")
    assert f'"result": "{id_}"' in found


def test_a_stream_that_is_read_is_not_pushed_again(own_server: EmbeddedServer) -> None:
    # Given no layout: then the page's function finds the stream itself to be each ticket's
    _, foreign, again = blocks(own_server.url)
    redis: Any = own_server.client(decode_responses=True)
    code = foreign + again.replace("ticket_stream:p9", "ticket_stream")
    done = preloaded.run([sys.executable, "-c", code], cwd=ROOT, env=os.environ)
    assert done.stderr == "ticket_stream is read: its messages stay where they are\n"
    assert [fields["ticket_id"] for _, fields in redis.xrange("ticket_stream")] == ["T42"]
