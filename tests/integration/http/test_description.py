"""The description of the interface (OpenAPI) is true: schemathesis calls in all ways that it allows, and in others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.http.application import describe
from bridge.http.problems import MEANINGS
from bridge.stack.ports import HOST, free_port
from bridge.testing.nodes.node import NodeYard
from tests.integration.http.http_port import secret_of, token_file
from tests.integration.lanes import APP

#: What schemathesis is told, and more of its configuration: for each test run few examples, of a seed that draws chains
#: of calls, and long polls that are short; for `make long` all that it has. A limit of time is not set: a busy machine
#: would leave calls out.
FEW = ("--phases", "fuzzing,stateful", "--max-examples", "5", "--seed", "6")
SHORT_POLLS = """
[[operations]]
include-name = "GET /api/messages/next"
parameters = { "query.wait" = 0.1 }
"""
RUNS = [
    pytest.param(FEW, SHORT_POLLS, id="short"),
    pytest.param((), "", id="long", marks=[pytest.mark.long, pytest.mark.timeout(900)]),
]
#: Fewest links (`bridge.http.description`, and what schemathesis concludes itself) that a run follows.
LINKS_COVERED = 3


@pytest.mark.slow
@pytest.mark.parametrize(("extent", "more"), RUNS)
def test_schemathesis_finds_nothing(nodes: NodeYard, tmp_path: Path, extent: tuple[str, ...], more: str) -> None:
    port = free_port()
    tokens = token_file(tmp_path, {"name": "all", "verbs": ["*"]})
    arguments = ("--http", f"{HOST}:{port}", "--http-tokens", str(tokens))
    master = nodes.master("m1", app=APP, arguments=arguments, ready_text="leading")
    config = tmp_path / "schemathesis.toml"
    config.write_text(Path(__file__).with_name("schemathesis.toml").read_text("utf-8") + more, "utf-8")
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            "--config-file",
            str(config),
            "run",
            f"http://{HOST}:{port}/api/openapi.json",
            "--header",
            f"Authorization: Bearer {secret_of('all')}",
            *extent,
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
        timeout=840 if extent == () else 200,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "No issues found" in done.stdout, done.stdout
    operations = sum(len(methods) for methods in describe().openapi()["paths"].values())
    assert f"Tested: {operations}\n" in done.stdout, done.stdout
    links = re.search(r"API Links: +(\d+) covered", done.stdout)
    assert links is not None, done.stdout
    assert int(links[1]) >= LINKS_COVERED, done.stdout
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


def test_every_status_that_the_page_explains_is_one_of_some_route() -> None:
    paths = describe().openapi()["paths"]
    said = {int(status) for path in paths.values() for operation in path.values() for status in operation["responses"]}
    # No route has it: the path has other methods.
    assert {*MEANINGS} == {status for status in said if status >= 400} | {405}
