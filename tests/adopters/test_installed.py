"""The wheel with its runtime dependencies only. It must work with the oldest versions that pyproject.toml allows, and
with the newest ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.adopters.conftest import MakeStand
from tests.adopters.environments import make_environment, requirements_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("resolution", ["lowest-direct", pytest.param("highest", marks=pytest.mark.long)])
def test_an_empty_environment_needs_nothing_but_the_wheel(
    resolution: Literal["lowest-direct", "highest"],
    wheel: Path,
    stand: MakeStand,
    tmp_path: Path,
) -> None:
    environment = make_environment(tmp_path / "environment", wheel, resolution=resolution)

    if resolution == "lowest-direct":
        for requirement in map(Requirement, requirements_of(wheel)):
            [bound] = [Version(one.version) for one in requirement.specifier if one.operator == ">="]
            assert environment.version(requirement.name).release[:2] == (*bound.release, 0)[:2], requirement
    imported = environment.run(str(Path(__file__).parent / "import_all.py"), cwd=tmp_path)
    assert int(imported) > 100

    plain = stand("plain", environment)
    plain.start("shop")
    assert plain.run("produce.py") == ["7"]
    plain.wait_done(31)
    assert [plain.log(ticket) for ticket in ("T0", "T1", "T2")] == [[str(n) for n in range(10)]] * 3
    assert plain.redis.get("sum:T0") == "7"
    # The commands, too: they have dependencies that neither masters nor workers load.
    plain.run("-m", "bridge", "-A", "shop", "status")
    plain.run("-m", "bridge", "-A", "shop", "audit")
