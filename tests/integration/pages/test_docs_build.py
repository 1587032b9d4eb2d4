"""The pages build, and the build is strict: a link that leads nowhere ends it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytest.importorskip("sphinx", reason="the extra `docs` is not installed")


def build(source: Path, out: Path, builder: str = "html") -> subprocess.CompletedProcess[str]:
    """What ``make docs`` runs. The builder "dummy" reads all pages and resolves all links as "html" does, and writes
    nothing, which takes most of the time.
    """
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "--nitpicky", "-b", builder,
         str(source), str(out)],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def test_the_makefile_builds_as_this_test_does() -> None:
    assert (
        "-m sphinx --quiet --fail-on-warning --keep-going --nitpicky -b html docs " in (ROOT / "Makefile").read_text()
    )


def test_all_pages_are_read_without_a_warning_and_all_links_lead_somewhere(tmp_path: Path) -> None:
    done = build(ROOT / "docs", tmp_path / "none", "dummy")
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_all_pages_build_without_a_warning(tmp_path: Path) -> None:
    done = build(ROOT / "docs", tmp_path / "html")
    assert done.returncode == 0, done.stderr
    for page in (ROOT / "docs").rglob("*.md"):
        assert (tmp_path / "html" / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file()


@pytest.mark.parametrize("builder", ["dummy", pytest.param("html", marks=pytest.mark.long)])
def test_a_dead_link_fails_the_build(builder: str, tmp_path: Path) -> None:
    source = tmp_path / "docs"
    source.mkdir()
    (tmp_path / "pyproject.toml").symlink_to(ROOT / "pyproject.toml")
    shutil.copy(ROOT / "docs" / "conf.py", source)
    (source / "index.md").write_text("# Pages\n\nSee [this one](gone.md).\n")
    done = build(source, tmp_path / "built", builder)
    assert done.returncode != 0
    assert "gone.md" in done.stderr
