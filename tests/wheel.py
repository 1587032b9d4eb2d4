"""The wheel of this checkout, as `pip install .` makes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("bridge", "routing", "spark")


def build_wheel(folder: Path) -> Path:
    """Builds the wheel into ``folder``, from a copy of what git knows: a build writes into the folder of its source."""
    source = folder / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "pyproject.toml", *PACKAGES, "tests", "tasks"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*build, str(source)], check=True, timeout=90)
    return next(folder.glob("ticket_bridge-*.whl"))
