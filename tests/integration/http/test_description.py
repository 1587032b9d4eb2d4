"""The description of the interface (OpenAPI) is true: schemathesis calls in all ways that it allows, and in others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.http.application import describe
from bridge.stack.ports import HOST, free_port
from bridge.testing.nodes.node import NodeYard
from tests.integration.http.http_port import secret_of, token_file
from tests.integration.lanes import APP

#: Seconds of a run: one for each test run, and one for `make long`.
RUNS = [pytest.param(10, id="short"), pytest.param(300, id="long", marks=[pytest.mark.long, pytest.mark.timeout(500)])]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", RUNS)
def test_schemathesis_finds_nothing(nodes: NodeYard, tmp_path: Path, seconds: int) -> None:
    port = free_port()
    tokens = token_file(tmp_path, {"name": "all", "verbs": ["*"]})
    arguments = ("--http", f"{HOST}:{port}", "--http-tokens", str(tokens))
    master = nodes.master("m1", app=APP, arguments=arguments, ready_text="leading")
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            "--config-file",
            str(Path(__file__).with_name("schemathesis.toml")),
            "run",
            f"http://{HOST}:{port}/api/openapi.json",
            "--header",
            f"Authorization: Bearer {secret_of('all')}",
            "--max-time",
            str(seconds),
            "--max-examples",
            str(seconds),
            "--request-timeout",
            "60",
            "--warnings",
            "off",
            "--no-color",
        ],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds * 2 + 200,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "No issues found" in done.stdout, done.stdout
    assert "Traceback" not in master.logs()


def test_every_answer_of_the_framework_is_described() -> None:
    document = describe().openapi()
    text = json.dumps(document)
    assert "HTTPValidationError" not in text
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            statuses = set(operation["responses"])
            assert "422" not in statuses, (method, path)
            assert {"400", "401", "403", "413", "500", "503"} <= statuses, (method, path)
            for status, response in operation["responses"].items():
                if status >= "400":
                    assert list(response["content"]) == ["application/problem+json"], (method, path, status)


def test_without_tokens_the_description_asks_for_none() -> None:
    assert "security" not in json.dumps(describe(is_open=True).openapi())
    assert "securitySchemes" in describe().openapi()["components"]
