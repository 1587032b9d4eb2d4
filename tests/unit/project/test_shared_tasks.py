"""Celery shares tasks among all apps of a process. Tests do not see those of other tests."""

from __future__ import annotations

import pytest
from celery import Celery

#: Their tasks are every app's: Celery's own, and those of pytest-celery once a test has imported them.
LIBRARIES = ("celery.", "pytest_celery.")


def nothing() -> None:
    pass


@pytest.mark.parametrize("number", [1, 2])
def test_an_app_has_no_tasks_of_the_test_before(number: int) -> None:
    """The second of both is the test: the first one leaves a shared task, as many tests do."""
    assert [name for name in Celery("fresh").tasks if not name.startswith(LIBRARIES)] == []
    Celery("sharing").task(name=f"shared.{number}")(nothing)
    assert f"shared.{number}" in Celery("any other").tasks
