"""What a test leaves in the environment does not keep the nodes of later tests from being forked."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from bridge.testing.nodes import preloaded
from tests.conftest import WRITTEN_BY_CELERY, pytest_runtest_teardown

APPS = Path(__file__).parents[2] / "apps"
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


def test_the_variables_of_the_apps_of_tests_do_not_matter() -> None:
    names = {
        name for path in APPS.glob("*.py") for name in re.findall(r'environ(?:\.get\(|\[)\s*"(\w+)"', path.read_text())
    }
    assert len(names) > 20
    assert [name for name in sorted(names) if not can_fork(**{name: "as a test sets it"})] == []
