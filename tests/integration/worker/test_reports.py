"""Error trackers and tracers that hook into Celery see each delivery of a message as a run of its task, with its end.

Sentry and OpenTelemetry themselves run in the workers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import QUICK, WITH_AND_WITHOUT_BUNDLES, LaneUnderTest
from tests.integration.worker.test_refused_messages import MAX_ATTEMPTS, MODULE, TASKS, drawn

#: In the words of each library: the task ended well, its message comes again, it is dead.
ENDS = {"sentry": ("ok", "aborted", "internal_error"), "opentelemetry": ("SUCCESS", "RETRY", "FAILURE")}
TICKETS, EACH, SEED = 10, 4, 7
#: What a dead message's last delivery raised.
ERRORS = {"fail": "on purpose", "nack": "not yet", "dead": "no such account"}


def ends_of(words: list[str]) -> Iterator[tuple[int, str | None]]:
    """For each delivery of a message: which of `ENDS` it is, and the error that is to be reported."""
    attempt = 1
    for how in [*words, "done"]:
        word = how.partition(" ")[0]
        if word == "dead" or (word in ("nack", "fail") and attempt == MAX_ATTEMPTS):
            yield 2, ERRORS[word]
            return
        if word not in ("nack", "fail", "free"):
            yield 0, None
            return
        attempt += word != "free"
        yield 1, None


@pytest.mark.parametrize("bundle_ms", WITH_AND_WITHOUT_BUNDLES)
@pytest.mark.parametrize("library", sorted(ENDS))
def test_each_delivery_is_reported_once_and_an_error_only_if_it_is_the_last(
    library: str, bundle_ms: str, nodes: NodeYard, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    lane = LaneUnderTest(nodes, own_server, tmp_path, REFUSING_BUNDLE_MS=bundle_ms, REFUSING_REPORTED_BY=library)
    expected: Counter[tuple[str, str, str]] = Counter()
    errors: Counter[tuple[str, str]] = Counter()
    for ticket, messages in drawn(SEED, TICKETS, EACH).items():
        for n, words in enumerate(messages):
            task = TASKS[n % len(TASKS)]
            id_ = lane.push(ticket, {"n": n, "ends": words}, task)
            for end, error in ends_of(words):
                expected[task, id_, ENDS[library][end]] += 1
                if error:
                    errors[id_, error] += 1
    assert errors
    lane.nodes.master("m1", app=MODULE, env=lane.env, ready_text="standing by")
    include = "--include=tests.apps.reporting"
    lane.nodes.worker("w1", app=MODULE, arguments=("--concurrency=2", include, *QUICK), env=lane.env)
    wait_until(
        lambda: sum(lane.count(name) for name in ("done", "dropped", "dead")) == TICKETS * EACH,
        description="all messages to end",
        timeout_s=180,
    )

    def reports() -> list[Any]:
        return [json.loads(line) for line in (lane.ledger / "reports").read_text().splitlines()]

    def runs() -> Counter[tuple[str, str, str]]:
        return Counter((each["task"], each["id"], each["ended"]) for each in reports() if each["kind"] == "run")

    # A library may report after the outcome was written.
    wait_until(lambda: runs().total() >= expected.total(), description="the reports")
    assert runs() == expected
    assert Counter((each["id"], error) for each in reports() for error in each["errors"]) == errors
