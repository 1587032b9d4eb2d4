"""The archive of packages that executors get."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import pytest

from bridge.spark.job import session
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


@pytest.mark.parametrize(
    ("master", "is_sent"), [("spark://far:7077", True), ("local-cluster[2,1,512]", True), ("local[2]", False)]
)
def test_a_session_whose_tasks_run_elsewhere_sends_it(
    master: str, is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    sent: list[str] = []
    context = SimpleNamespace(master=master, environment={"PYTHONPATH": "/theirs"}, addPyFile=sent.append)
    made = SimpleNamespace(
        sparkContext=context,
        conf=SimpleNamespace(set=lambda *_: None),
        dataSource=SimpleNamespace(register=lambda _: None),
    )
    monkeypatch.setattr(session, "_start", lambda *_: made)
    session.local_session("x", master=master)
    archive = [str(zipped_packages())] if is_sent else []
    assert sent == archive
    # The process that plans reads finds it by its path.
    assert context.environment["PYTHONPATH"].split(os.pathsep) == ["/theirs", *archive]
