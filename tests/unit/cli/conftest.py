"""What most tests of commands begin with. A file whose app has other settings has a fixture of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, command_line


@pytest.fixture
def shell(server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with command_line(tmp_path, monkeypatch, server.url) as made:
        yield made
