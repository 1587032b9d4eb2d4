"""Celery shares tasks among all apps of a process. Tests do not see those of other tests."""

from __future__ import annotations

import pytest
from celery import Celery


def nothing() -> None:
    pass


@pytest.mark.parametrize("number", [1, 2])
def test_an_app_has_no_tasks_of_the_test_before(number: int) -> None:
    """The second of both is the test: the first one leaves a shared task, as many tests do."""
    assert [name for name in Celery("fresh").tasks if name.startswith("left.")] == []
    Celery("sharing").task(name=f"left.{number}")(nothing)
    assert f"left.{number}" in Celery("any other").tasks
