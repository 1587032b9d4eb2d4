from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from bridge.routing.errors import ConfigurationError
from bridge.settings.lane import LaneSettings
from bridge.stack.ports import HOST
from bridge.stack.stack import Plan, Stack
from bridge.stack.stopping import StopRequest


def test_without_flower_a_stack_says_how_to_get_it_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This makes Python's import of the module fail.
    monkeypatch.setitem(sys.modules, "flower", None)
    folder = tmp_path / "stack"
    stack = Stack(Plan("tasks", folder), [LaneSettings()], StopRequest(), print)
    with pytest.raises(ConfigurationError, match=r"^Flower is not installed: pip install 'ticket-bridge\[flower\]'"):
        stack.start()
    assert not folder.exists()


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Says nothing."""


def test_flower_is_asked_directly_where_the_environment_names_a_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    # Nothing listens there.
    monkeypatch.setenv("http_proxy", f"http://{HOST}:1")
    with HTTPServer((HOST, 0), Healthy) as flower:
        threading.Thread(target=flower.serve_forever, daemon=True).start()
        plan = Plan("tasks", tmp_path, flower_port=flower.server_port)
        try:
            assert Stack(plan, [LaneSettings()], StopRequest(), print)._flower_answers()
        finally:
            flower.shutdown()
