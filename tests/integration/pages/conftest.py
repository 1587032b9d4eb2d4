"""Fixtures of tests that follow a page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from tests.integration.pages.reader import Reader


@pytest.fixture
def reader(own_server: EmbeddedServer, tmp_path: Path) -> Iterator[Reader]:
    folder = tmp_path / "shop"
    folder.mkdir()
    made = Reader(folder, own_server.url)
    with closing(made.yard):
        yield made
