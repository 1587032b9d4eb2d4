"""How a worker starts again: its command line, and its script."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from bridge.worker.main.new_layout import command_line


@pytest.mark.parametrize(
    ("words", "again"),
    [
        (["-m", "celery", "-A", "shop", "worker"], ["-m", "celery", "-A", "shop", "worker"]),
        (["celery", "--workdir", "shop", "-A", "app"], ["celery", "--workdir", "/srv/shop", "-A", "app"]),
        (["celery", "--workdir=shop", "worker"], ["celery", "--workdir=/srv/shop", "worker"]),
    ],
    ids=["without a folder", "a word", "one word"],
)
@pytest.mark.parametrize("is_root", [True, False])
def test_a_relative_folder_is_not_entered_twice(words: list[str], again: list[str], is_root: bool) -> None:
    assert command_line(words, "/srv/shop", is_root=is_root) == again


#: A program that follows --workdir, as Celery does, before it knows the bridge.
PROGRAM = """
import os, sys
if "BRIDGE_STARTED_AGAIN" in os.environ:
    print("again in", os.path.basename(os.getcwd()), sys.argv[1:])
    sys.exit()
os.chdir(sys.argv[2])
from bridge.worker.main import new_layout
new_layout.start_again_at_end()
new_layout.start_again()
"""


@pytest.mark.parametrize("options", [[], ["-X", "dev"]], ids=["alone", "options"])
@pytest.mark.parametrize(
    ("script", "folder"),
    [("bin/celery", "work"), ("./bin/celery", "work"), ("bin/../bin/celery", "work"), ("app.pyz", "."), ("shop", ".")],
)
def test_a_program_starts_again_whatever_folder_its_script_is_relative_to(
    script: str, folder: str, options: list[str], tmp_path: Path
) -> None:
    for made in ("bin", "work", "shop"):
        (tmp_path / made).mkdir()
    (tmp_path / "bin/celery").write_text(PROGRAM)
    (tmp_path / "shop/__main__.py").write_text(PROGRAM)
    with ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", PROGRAM)
    program = [sys.executable, *options, script, "--workdir", folder]
    env = {"PYTHONPATH": str(Path.cwd())}
    ended = subprocess.run(program, check=False, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    entered = tmp_path / folder
    assert ended.stdout == f"again in {entered.name} {['--workdir', str(entered)]}\n", ended.stderr


@pytest.mark.parametrize("user", [["--uid", "shop"], ["--uid=shop"]], ids=" ".join)
@pytest.mark.parametrize("group", [["--gid", "shop"], ["--gid=shop"]], ids=" ".join)
@pytest.mark.parametrize("folder", [["--workdir", "/srv"], ["--workdir=/srv"]], ids=" ".join)
def test_a_process_that_is_not_root_any_more_does_not_change_its_user_again(
    user: list[str], group: list[str], folder: list[str]
) -> None:
    # Each order, and other words before, between and after them
    for one, two, three in itertools.permutations([user, group, folder]):
        words = ["celery", *one, "worker", *two, "-l", "INFO", *three]
        assert command_line(words, "/srv", is_root=True) == words
        first, second, third = (option if option is folder else [] for option in (one, two, three))
        kept = ["celery", *first, "worker", *second, "-l", "INFO", *third]
        assert command_line(words, "/srv", is_root=False) == kept
