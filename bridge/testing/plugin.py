"""Fixtures and options for pytest. An installed bridge offers them by itself, and imports nothing before one is used.

The fixtures of nodes are apart, in `bridge.testing.nodes.plugin`, which a project names in its conftest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bridge.testing import Handled
    from bridge.testing.lane import Lane


def pytest_addoption(parser: pytest.Parser) -> None:
    """For `bridge.testing.nodes`."""
    parser.getgroup("ticket-bridge").addoption(
        "--bridge-nodes",
        choices=("processes", "containers"),
        default="processes",
        help="what the nodes of `celery_setup` are: processes of this machine, or containers of a Docker engine",
    )
    parser.addini("bridge_app", "the app of the nodes of `celery_setup`, as `celery -A` takes it", default="")


@pytest.fixture
def bridge_handled() -> Iterator[Callable[[Any], list[Handled]]]:
    """``bridge_handled(app)``: a list that gets every attempt that ``app`` handles eagerly, until the test ends."""
    from bridge.testing import recorded

    with ExitStack() as stack:
        yield lambda app: stack.enter_context(recorded(app))


@pytest.fixture
def bridge_lane() -> Iterator[Callable[..., Lane]]:
    """``bridge_lane(app)``: a server, a master and a worker of ``app`` in this process, until the test ends."""
    from bridge.testing.lane import Lane

    with ExitStack() as stack:
        yield lambda app, **options: stack.enter_context(Lane(app, **options))
