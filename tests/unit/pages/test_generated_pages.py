"""The generated parts of the pages are up to date and complete."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The module ``docs/generate.py``, which is in no package."""
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_are_up_to_date(generate: ModuleType) -> None:
    old = [page.name for page in generate.pages() if generate.filled(page.read_text()) != page.read_text()]
    assert not old, f"{old}: run `make pages`"


def test_every_command_is_on_the_page(generate: ModuleType) -> None:
    page = (REFERENCE / "commands.md").read_text()
    shown = re.findall(r"<!-- generated: (bridge .+?) -->", page)
    # The jobs of Spark read their own options: spark-jobs.md.
    assert sorted(shown) == sorted(name for name in generate.commands() if not name.startswith("bridge spark"))
    assert all(f"\n## {name}\n" in page for name in shown)


def test_every_setting_key_and_error_is_on_its_page(generate: ModuleType) -> None:
    shown = {page.name for page in generate.pages()}
    assert shown == {
        *("commands.md", "settings.md", "http.md", "keys.md", "errors.md", "audit.md", "internals.md"),
        "chaos-benchmark.md",
    }
    settings = (REFERENCE / "settings.md").read_text()
    named = [name for model in generate.models() for name in model.model_fields if name != "lane"]
    assert len(named) > 20
    assert [name for name in named if f"`bridge_{name}`" not in settings] == []
    rows = [line for line in generate.settings().splitlines() if line.startswith("| `")]
    assert [row for row in rows if row.endswith("|  |")] == []  # a setting without a meaning


def test_a_block_that_is_out_of_date_is_noticed(generate: ModuleType) -> None:
    old = "<!-- generated: bridge run -->\nan older text\n<!-- end of bridge run -->\n"
    assert "bridge run [OPTIONS]" in generate.filled(old)
    assert generate.filled(generate.filled(old)) == generate.filled(old)
