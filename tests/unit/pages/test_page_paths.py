"""Files and folders that the pages name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
#: A path from the root of the repository, in code marks.
PATH = re.compile(r"`((?:bridge|routing|spark|tasks|tests|benchmarks|docs)/[\w/.*-]*)`")
#: What a run writes, so that a checkout has none.
WRITTEN = {"benchmarks/runs/"}
INTERNALS = ROOT / "docs" / "explanation" / "internals.md"


def paths(text: str) -> list[str]:
    return sorted(set(PATH.findall(text)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_a_page_names_is_there(page: Path) -> None:
    missing = [name for name in paths(page.read_text()) if name not in WRITTEN and not any(ROOT.glob(name.rstrip("/")))]
    assert not missing, f"{page.relative_to(ROOT)} names {missing}"


def test_internals_say_where_things_are() -> None:
    text = INTERNALS.read_text()
    table = text.partition("## Where is …?")[2].partition("\n## ")[0]
    assert len(paths(table)) > 30
    # The paths are in one place, where a move of files finds them.
    assert len(paths(text)) == len(paths(table))


def test_a_path_that_is_gone_is_noticed() -> None:
    assert not any(ROOT.glob(paths("see `bridge/no_such_file.py`")[0]))


def test_what_a_run_writes_stands_beside_no_module_of_that_name() -> None:
    """Else mypy takes the folder for the module, and after a benchmark `make test` fails."""
    written = [line.strip("/") for line in (ROOT / ".gitignore").read_text().split() if line.startswith("/")]
    assert {f"{name}/" for name in written} >= WRITTEN
    assert not [name for name in written if (ROOT / f"{name}.py").exists()]
