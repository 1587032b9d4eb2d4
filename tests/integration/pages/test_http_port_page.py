"""The page "Open the HTTP port": its commands, its tokens and its nginx lines, as they are shown."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from bridge.http.access import Access, Verb
from bridge.stack.embedded import EmbeddedServer
from bridge.stack.ports import HOST, free_port
from bridge.testing.nodes.node import NodeYard
from bridge.testing.nodes.process import ROOT
from tests.integration.lanes import APP

PAGE = (ROOT / "docs" / "howto" / "http-port.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_first_calls_of_the_page_work(nodes: NodeYard, own_server: EmbeddedServer) -> None:
    port = free_port()
    master = nodes.master("m1", app=APP, arguments=("--http", f"{HOST}:{port}"), ready_text="leading")
    [said] = [line for line in blocks("console")[0].splitlines() if line.startswith("http:")]
    master.wait_for_log(said.replace("8080", str(port)))
    script = blocks("sh")[0].replace("8080", str(port))
    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, check=True, timeout=30)
    pushed, ticket = (json.loads(text) for text in done.stdout.replace("}{", "}\n{").splitlines())
    [id_] = pushed["message_ids"]
    assert own_server.client(decode_responses=True).xrange("ticket_stream", id_, id_)
    assert ticket["ticket_id"] == "T42"


def test_the_tokens_of_the_page_are_ones(tmp_path: Path) -> None:
    [text] = blocks("json")
    file = tmp_path / "tokens.json"
    file.write_text(text, encoding="utf-8")
    access = Access(file)
    [orders, billing, _] = json.loads(text)
    caller = access.caller(orders["token"])
    assert caller is not None
    assert caller.may(Verb.PUSH, "stock")
    caller = access.caller(billing["token"])
    assert caller is not None
    assert (caller.may(Verb.CONSUME, "billing"), caller.may(Verb.CONSUME, "stock")) == (True, False)
