"""The pages name tests for their claims. Each named test exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.protocol.test_protocol import ESSENTIAL
from tests.reference.lane import RULES
from tests.scripts.test_lane_rules_notice import MUTATIONS

ROOT = Path(__file__).parents[3]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
#: The folder of tests that the page names without a folder.
HERE = ROOT / "tests" / "integration"
GUARANTEES = ROOT / "docs" / "explanation" / "guarantees.md"


def named(page: Path) -> list[str]:
    """Quoted names of tests, of test files, and of folders or patterns of them."""
    quoted = re.findall(r"`([^`\n]+)`", page.read_text())
    return sorted({text for text in quoted if re.fullmatch(r"(tests/[\w/.*]+|test_[\w*]+(\.py)?)", text)})


@cache
def functions(folder: Path) -> frozenset[str]:
    """The names of the tests in a folder and those below it, those in classes too."""
    found = (re.findall(r"^ *def (test_\w+)\(", path.read_text(), re.MULTILINE) for path in folder.rglob("test_*.py"))
    return frozenset(name for names in found for name in names)


def is_there(name: str, folder: Path = HERE) -> bool:
    """Whether the test, file, folder or pattern exists. ``folder``: where to look if the name has no folder."""
    if name.startswith("tests/"):
        return any(ROOT.glob(name.rstrip("/")))
    return any(folder.rglob(name)) if name.endswith(".py") else name in functions(folder)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    folder = HERE if page == GUARANTEES else ROOT / "tests"
    missing = [name for name in named(page) if not is_there(name, folder)]
    assert not missing, f"{page.name} names {missing}"


def test_every_promise_and_every_fault_of_the_guarantees_names_a_test() -> None:
    rows = [line for line in GUARANTEES.read_text().splitlines() if line.startswith("| ")]
    promises = {
        row: row.rstrip("| ").rpartition(" | ")[2] for row in rows if not row.startswith(("| fault |", "| promise |"))
    }
    assert len(promises) > 60
    # "The same": as the row above it.
    bare = [row for row, tests in promises.items() if not re.search(r"`(tests/|test_)", tests) and tests != "the same"]
    assert not bare


def test_the_documented_numbers_of_tests_are_true() -> None:
    text = " ".join(GUARANTEES.read_text().split())
    assert re.findall(r"each of (\d+) guards", text) == [str(len(ESSENTIAL))]
    assert re.findall(r"any of (\d+) pieces", text) == [str(len(MUTATIONS))]
    assert re.findall(r"any of (\d+) rules", text) == [str(len(RULES))]


def test_a_name_that_nothing_has_is_noticed() -> None:
    assert not is_there("test_there_is_no_such_test")
    assert not is_there("test_no_such_file.py")
    assert not is_there("tests/nowhere/")
    assert len(named(GUARANTEES)) > 25
