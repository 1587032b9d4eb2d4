"""What a test leaves in the environment does not keep the nodes of later tests from being forked."""

from __future__ import annotations

import os
import sys

from bridge.testing.nodes import preloaded
from tests.conftest import WRITTEN_BY_CELERY, pytest_runtest_teardown

NODE = [sys.executable, "-m", "bridge", "run"]


def can_fork(**more: str) -> bool:
    return preloaded.can_fork(NODE, {**preloaded.STARTED_WITH, "PYTHONUNBUFFERED": "1", **more})


def test_what_celery_writes_for_its_logging_is_gone_after_a_test() -> None:
    assert can_fork()
    for name in WRITTEN_BY_CELERY:
        os.environ[f"{name}LEVEL"] = "30"
        assert not can_fork(**{f"{name}LEVEL": "30"})
    pytest_runtest_teardown()
    assert not [name for name in os.environ if name.startswith(WRITTEN_BY_CELERY)]


def test_what_pyspark_writes_when_it_starts_does_not_matter() -> None:
    assert can_fork(JAVA_HOME="/java", PYSPARK_PYTHON="/python", SPARK_BUFFER_SIZE="65536")
