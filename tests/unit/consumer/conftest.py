"""Masters that are stubs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.consumer.http_stub import Stub, serving


@pytest.fixture
def stub() -> Stub:
    return Stub()


@pytest.fixture
def url(stub: Stub) -> Iterator[str]:
    with serving(stub) as found:
        yield found
