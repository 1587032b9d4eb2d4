"""The wheel of this checkout, as `pip install .` makes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The folders that the one package `bridge` is made of.
FOLDERS = ("bridge", "routing", "spark")


def build_wheel(folder: Path, *, links: bool = True) -> Path:
    """Builds the wheel into ``folder``, from a copy of what git knows: a build writes into the folder of its source.

    ``links``: with `bridge/routing` and `bridge/spark` as a checkout has them. Some ways to copy a tree lose links.
    """
    source = folder / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "pyproject.toml", *FOLDERS, "tests", "tasks"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
        if (ROOT / name).is_symlink():
            if links:
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                (source / name).symlink_to((ROOT / name).readlink())
        elif (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*build, str(source)], check=True, timeout=90)
    return next(folder.glob("ticket_bridge-*.whl"))
