"""Defects of the port: all are made in one copy of the product, and each has a test that fails there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.testing.nodes.process import ROOT
from tests.calibration.http_mutations import HTTP_MUTATIONS
from tests.calibration.mutation import Edit, Mutation, mutated, product

RUN_WITHIN_S = 240


@pytest.mark.slow
@pytest.mark.timeout(RUN_WITHIN_S + 20)
def test_each_defect_of_the_port_is_noticed(tmp_path: Path, valkey_binary: Path) -> None:
    del valkey_binary  # without a server there is nothing to see
    edits: tuple[Edit, ...] = tuple(edit for mutation in HTTP_MUTATIONS for edit in mutation.edits)
    copy = product(tmp_path / "product", Mutation("all", "the port", "", (), edits))
    for one in (ROOT / "tests").iterdir():
        if not (copy / "tests" / one.name).exists():
            (copy / "tests" / one.name).symlink_to(one)
    for name in ("pyproject.toml", "spark"):
        (copy / name).symlink_to(ROOT / name)
    nodes = [mutation.scenario for mutation in HTTP_MUTATIONS]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", "--timeout=30", *nodes]
    done = subprocess.run(command, cwd=copy, text=True, capture_output=True, timeout=RUN_WITHIN_S, check=False)
    failed = set(re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE))
    assert failed == set(nodes), done.stdout[-3000:] + done.stderr[-2000:]


@pytest.mark.parametrize("mutation", HTTP_MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_defect_can_still_be_made(mutation: Mutation) -> None:
    mutated(mutation)


def test_the_page_names_each_defect_and_no_other() -> None:
    page = (ROOT / "docs" / "explanation" / "calibration.md").read_text()
    rows = {
        tuple(cell.strip(" `") for cell in line.strip("|").split("|")[1:3])
        for line in page.splitlines()
        if line.startswith("| the port |")
    }
    assert rows == {(mutation.name, mutation.caught_by[0]) for mutation in HTTP_MUTATIONS}
