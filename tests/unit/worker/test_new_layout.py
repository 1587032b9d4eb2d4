"""The command line with which a worker starts again."""

from __future__ import annotations

import itertools

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
