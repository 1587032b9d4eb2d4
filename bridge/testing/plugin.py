"""Fixtures for pytest. An installed bridge offers them by itself; nothing is imported before one is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bridge.testing import Handled
    from bridge.testing.lane import Lane


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
