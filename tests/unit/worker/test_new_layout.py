"""The command line with which a worker starts again."""

from __future__ import annotations

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
def test_a_relative_folder_is_not_entered_twice(words: list[str], again: list[str]) -> None:
    assert command_line(words, "/srv/shop") == again
