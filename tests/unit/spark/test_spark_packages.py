"""The archive of packages that executors get."""

from __future__ import annotations

import subprocess
import sys
import zipfile

from bridge.spark.job.packages import zipped_packages
from bridge.testing.nodes.process import ROOT


def test_it_holds_the_modules_and_the_lua_of_two_packages_and_what_makes_them_parts_of_bridge() -> None:
    expected = {"bridge/__init__.py"} | {
        f"bridge/{path.relative_to(ROOT)}"
        for package in ("routing", "spark")
        for kind in ("*.py", "*.lua")
        for path in (ROOT / package).rglob(kind)
    }
    with zipfile.ZipFile(zipped_packages()) as archive:
        names = archive.namelist()
    assert set(names) == expected
    assert names == sorted(set(names), key=lambda name: name.split("/"))


def test_the_same_files_are_the_same_bytes() -> None:
    first = zipped_packages().read_bytes()
    zipped_packages.cache_clear()
    assert zipped_packages().read_bytes() == first


def test_the_modules_in_the_zip_work() -> None:
    """Lua is read out of it; a Python without this project runs it, and a transition is whole."""
    lua = min((ROOT / "routing" / "lua").glob("*.lua"))
    code = f"import sys, bridge.routing.scripts as s; print(s.__file__, len(s.Script({lua.stem!r}).text))"
    path = f"sys.path.insert(0, {str(zipped_packages())!r})"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {path}; {code}"], cwd="/", capture_output=True, text=True, check=True
    )
    place, length = done.stdout.split()
    assert place.startswith(str(zipped_packages()))
    assert int(length) == len(lua.read_text())
