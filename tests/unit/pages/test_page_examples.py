"""Code of a project that a page shows is in that project, whose tests run it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLE = re.compile(r"^<!-- from: (?P<file>\S+) -->\n```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if EXAMPLE.search(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_are_those_of_the_projects(page: Path) -> None:
    other = [found["file"] for found in EXAMPLE.finditer(page.read_text()) if not is_in(found["file"], found["code"])]
    assert not other, f"{page.name} differs from {other}"


@pytest.mark.parametrize("project", ["flask_shop", "fastapi_shop"])
def test_the_examples_of_a_page_are_the_whole_program(project: str) -> None:
    """So a reader who types one below the other has a program that runs."""
    file = f"tests/adopters/projects/{project}/shop.py"
    [page] = [page.read_text() for page in PAGES if file in page.read_text()]
    shown = [found["code"] for found in EXAMPLE.finditer(page) if found["file"] == file]
    # Both as the interpreter sees them: without blank lines between, and without the docstring of the file.
    program = ast.parse((ROOT / file).read_text())
    assert ast.dump(ast.parse("".join(shown))) == ast.dump(ast.Module(program.body[1:], []))


def test_each_framework_has_a_page_with_examples() -> None:
    assert {page.name for page in PAGES} == {"django.md", "fastapi.md", "flask.md"}


def test_an_example_that_differs_is_noticed() -> None:
    assert not is_in("tests/adopters/projects/flask_shop/shop.py", "app = create_another_app()\n")


def is_in(file: str, code: str) -> bool:
    return code.strip("\n") in (ROOT / file).read_text()
