"""Links between pages lead somewhere, as GitHub and editors follow them: to a file, and to a heading in it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / ".github").rglob("*.md"))]


def without_code(text: str) -> str:
    """The page without its code blocks, whose brackets are no links."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def links(text: str) -> list[str]:
    """The targets of links and pictures that stay within the repository."""
    prose = without_code(text)
    found = re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r"(?:src|srcset|href)=\"([^\"]+)\"", prose)
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def slug(heading: str) -> str:
    """The anchor that GitHub, and MyST, make of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    return frozenset(slug(line) for line in re.findall(r"^#+ (.+)$", without_code(page.read_text()), re.MULTILINE))


def leads_nowhere(target: str, page: Path) -> bool:
    name, _, anchor = target.partition("#")
    file = (page.parent / name).resolve() if name else page
    if not file.exists():
        return True
    return bool(anchor) and file.suffix == ".md" and anchor not in anchors(file)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    dead = [target for target in links(page.read_text()) if leads_nowhere(target, page)]
    assert not dead, f"{page.relative_to(ROOT)} links to {dead}"


def test_every_page_of_the_docs_is_in_a_table_of_contents() -> None:
    docs = ROOT / "docs"
    listed = {docs / "index.md"}
    for page in PAGES:
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            entries = [line for line in block.splitlines() if line and not line.startswith(":")]
            listed |= {(page.parent / f"{entry}.md").resolve() for entry in entries}
    assert sorted(set(docs.rglob("*.md")) - listed) == []


def test_a_dead_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One heading\n[a](page.md) [b](#one-heading) [c](gone.md) [d](page.md#no-heading)\n```\n[e](f)\n```\n"
    )
    assert [one for one in links(page.read_text()) if leads_nowhere(one, page)] == ["gone.md", "page.md#no-heading"]
