"""The limits of an acknowledgement over HTTP, and what one who exceeds them is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.protocol.outcome_limits import MOST_DELAY_S, MOST_ERROR_CHARS, MOST_ITEMS
from bridge.stack.embedded import EmbeddedServer
from tests.integration.http.http_port import Port, app_of, port_of

ITEM = {"consumer": "h1", "incarnation": "i", "message_id": "1-0", "fence": 1, "outcome": "failed"}


@pytest.fixture(scope="module")
def port(module_server: EmbeddedServer) -> Iterator[Port]:
    app = app_of(module_server.url)
    with port_of(app) as found:
        yield found
    app.bridge.client.close()


@pytest.mark.parametrize(
    ("body", "where", "limit"),
    [
        ([], "body", "at least 1 item"),
        ([ITEM] * (MOST_ITEMS + 1), "body", f"at most {MOST_ITEMS} items"),
        ({**ITEM, "error": "x" * (MOST_ERROR_CHARS + 1)}, "body.error", f"at most {MOST_ERROR_CHARS} characters"),
        (
            [ITEM, {**ITEM, "error": "x" * (MOST_ERROR_CHARS + 1)}],
            "body.1.error",
            f"at most {MOST_ERROR_CHARS} characters",
        ),
        ({**ITEM, "delay": -1}, "body.delay", "greater than or equal to 0"),
        ([{**ITEM, "delay": MOST_DELAY_S + 1}], "body.0.delay", f"less than or equal to {MOST_DELAY_S}"),
        ([ITEM, {**ITEM, "outcome": "well"}], "body.1.outcome", "'done', 'failed', 'refused' or 'dead'"),
        ({}, "body.consumer", "Field required"),
        ([{}], "body.0.consumer", "Field required"),
        ("done", "body", "dictionary"),
        # Older versions of FastAPI say that it is missing.
        (None, "body", ("dictionary", "Field required")),
    ],
    ids=range(11),
)
def test_an_acknowledgement_that_is_refused_is_told_the_limit(
    port: Port, body: Any, where: str, limit: str | tuple[str, ...]
) -> None:
    raw = json.dumps(body).encode()
    answer = port.post("/api/messages/acknowledge", raw=raw, headers={"Content-Type": "application/json"})
    assert answer.status == 400
    # The first error is the detail, and it is of the form that was sent.
    assert answer.body["detail"].startswith(f"{where}: "), answer.body
    assert any(one in answer.body["detail"] for one in ([limit] if isinstance(limit, str) else limit))
    assert all("valid list" not in one["message"] for one in answer.body["errors"])
