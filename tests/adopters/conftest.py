"""What the projects of adopters need: the wheel, environments that have it installed, and servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.yard import ProcessYard
from tests.adopters.environments import FRAMEWORKS, Environment, make_environment
from tests.adopters.stand import Stand
from tests.wheel import build_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


#: The tests of a project run in its own environment.
collect_ignore = ["projects"]


class MakeStand(Protocol):
    """Makes the `Stand` of a project."""

    def __call__(self, project: str, environment: Environment, stream: str = "ticket_stream", **env: str) -> Stand: ...


@pytest.fixture(scope="session")
def frameworks(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """One environment for all projects: the wheel and the frameworks, in the versions of the lock."""
    return make_environment(tmp_path_factory.mktemp("frameworks") / "environment", wheel, *FRAMEWORKS, locked=True)


@pytest.fixture
def stand(own_server: EmbeddedServer, tmp_path: Path) -> Iterator[MakeStand]:
    """Ends all processes of the stands when the test is over."""
    yard = ProcessYard(tmp_path, own_server.url)

    def make(project: str, environment: Environment, stream: str = "ticket_stream", **env: str) -> Stand:
        return Stand(project, environment, yard, own_server, stream, **env)

    yield make
    yard.close()
