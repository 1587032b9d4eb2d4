"""The pages on Spark name every option of the data source and of the jobs, and no other."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import click
import pytest

from bridge.spark.read.options import READ_OPTIONS
from bridge.spark.write.options import OPTIONS

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
SOURCE = (REFERENCE / "spark-source.md").read_text()
JOBS = (REFERENCE / "spark-jobs.md").read_text()
#: Options of all jobs, which the page explains once, above the jobs.
COMMON = {"--master", "--conf", "--progress", "--spark-log", "--help", "--url"}


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next one of its level."""
    level = heading.partition(" ")[0]
    return page.partition(f"\n{heading}\n")[2].partition(f"\n{level} ")[0]


def first_cells(text: str) -> set[str]:
    """What the first cells of the rows of its tables name."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name.split()[0] for row in rows for name in re.findall(r"`([^`]+)`", row)}


@pytest.mark.parametrize(
    ("heading", "options"), [("## Options of a write", OPTIONS), ("## Options of a read", READ_OPTIONS)]
)
def test_the_table_of_the_data_source_has_its_options(heading: str, options: dict[str, object]) -> None:
    assert first_cells(section(SOURCE, heading)) == set(options)


@pytest.mark.parametrize("job", ["push", "archive", "report", "replay"])
def test_the_section_of_a_job_has_its_options(job: str) -> None:
    command = importlib.import_module(f"bridge.spark.{job}").main
    assert isinstance(command, click.Command)
    taken = {name for one in command.params for name in (*one.opts, *one.secondary_opts) if name.startswith("--")}
    named = {name for name in first_cells(section(JOBS, f"## {job}")) if name.startswith("--")}
    assert named - COMMON == taken - COMMON
    assert all(f"`{name}" in JOBS for name in taken - {"--help"})
