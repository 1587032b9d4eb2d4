"""Which process takes which test file: files with Spark and files without processes have a process of their own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.scheduling import Scheduling, starts_processes, starts_spark

SPARK = [f"tests/integration/test_spark_{name}.py" for name in "abcdef"]
OTHERS = [f"tests/integration/test_{name}.py" for name in "abcdef"]
ALONE = [f"tests/unit/test_{name}.py" for name in "abcdef"]


class Node:
    """A process of xdist as a scheduler sees it: it gets the numbers of the tests to run."""

    def __init__(self, collection: list[str]) -> None:
        self.collection = collection
        self.asked: list[int] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="gw")

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.asked += numbers

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(self.collection[number].partition("::")[0] for number in self.asked))


def scheduled(files: list[str], busy: tuple[int, ...] = (), processes: int = 4, each: int = 3) -> list[Node]:
    """What each process ran. A process in ``busy`` never ends its first test."""
    config: Any = SimpleNamespace(
        getvalue=lambda _: ["popen"] * processes,
        option=SimpleNamespace(loadscopereorder=False),
    )
    scheduling = Scheduling(config, None)
    collection = [f"{file}::test_{number}" for file in files for number in range(each)]
    nodes: list[Any] = [Node(collection) for _ in range(processes)]
    for node in nodes:
        scheduling.add_node(node)
    for node in nodes:
        scheduling.add_node_collection(node, collection)
    scheduling.schedule()
    done = [0] * processes
    moved = True
    while moved:
        moved = False
        for place, node in enumerate(nodes):
            if place not in busy and done[place] < len(node.asked):
                if node in scheduling.nodes and node.shutting_down and done[place] == len(node.asked) - 1:
                    # As xdist does it: a process that was asked to end leaves with its last test.
                    scheduling.mark_test_complete(node, node.asked[done[place]])
                    scheduling.remove_node(node)
                    done[place] += 1
                    continue
                scheduling.mark_test_complete(node, node.asked[done[place]])
                done[place] += 1
                moved = True
    return nodes


def test_one_process_takes_the_files_with_spark() -> None:
    first, *rest = scheduled([*OTHERS[:2], *SPARK, *OTHERS[2:]], busy=(1, 2, 3))
    assert [starts_spark(file) for file in first.files[: len(SPARK)]] == [True] * len(SPARK)
    for node in rest:
        assert not any(map(starts_spark, node.files))


def test_of_many_processes_two_take_the_files_with_spark_and_the_others_all_else_before() -> None:
    first, second, *others, quiet = scheduled([*OTHERS, *SPARK, *ALONE], busy=(6,), processes=7)
    for node in (first, second):
        assert starts_spark(node.files[0])
    for node in others:
        spark = [starts_spark(file) for file in node.files]
        assert spark == sorted(spark)
    assert not any(map(starts_spark, quiet.files))
    # And while both are busy, the others run what has no processes, too
    *_, third, fourth, _, _, _ = scheduled([*OTHERS, *SPARK, *ALONE], busy=(0, 1, 4, 5, 6), processes=7)
    assert [starts_spark(file) for file in (third.files[-1], fourth.files[-1])] == [True, True]
    assert set(ALONE) & {*third.files, *fourth.files}


@pytest.mark.parametrize("busy", [(0, 1), (2, 3)])
def test_every_file_runs_in_one_process_whichever_is_slow(busy: tuple[int, ...]) -> None:
    files = [*OTHERS, *SPARK]
    nodes = scheduled(files, busy)
    assert sorted(file for node in nodes for file in node.files) == sorted(files)
    assert sorted(number for node in nodes for number in node.asked) == list(range(3 * len(files)))


def test_one_process_takes_the_projects_of_adopters() -> None:
    adopters = [f"tests/adopters/test_{name}.py" for name in "abc"]
    nodes = scheduled([adopters[0], *OTHERS, *adopters[1:]])
    assert sorted(set(adopters) & set(node.files) for node in nodes if set(adopters) & set(node.files)) == [
        set(adopters)
    ]


def test_a_process_without_files_of_its_own_takes_those_of_others() -> None:
    nodes = scheduled([*OTHERS, *SPARK], busy=(0,))
    assert len(nodes[1].files) > len(nodes[0].files)
    assert any(starts_spark(file) for node in nodes[1:] for file in node.files)
    assert any(map(starts_spark, scheduled(SPARK)[2].files))
    assert [starts_spark(file) for file in scheduled(OTHERS)[0].files] == [False] * len(scheduled(OTHERS)[0].files)


@pytest.mark.parametrize("busy", [(), (0,), (1, 2)])
def test_the_last_process_takes_the_files_without_processes_and_no_others(busy: tuple[int, ...]) -> None:
    *others, quiet = scheduled([*OTHERS, *SPARK, *ALONE], busy)
    assert quiet.files
    assert not any(map(starts_processes, quiet.files))
    assert not {file for node in others for file in node.files} & set(quiet.files)
    assert quiet.shutting_down
    # It leaves before the others, whose places stay.
    assert sorted(file for node in others for file in node.files if starts_spark(file)) == SPARK
    spark = [starts_spark(file) for file in others[0].files]
    assert spark[0]
    assert spark == sorted(spark, reverse=True)


def test_a_process_that_has_ended_changes_nothing_for_the_others() -> None:
    others = [*OTHERS, *(file.replace("/test_", "/test_more_") for file in OTHERS)]
    nodes = scheduled([*others, *SPARK, *ALONE[:2]])
    assert nodes[3].files == ALONE[:2]
    assert all(len(node.files) > len(SPARK) // 2 for node in nodes[:3])
    assert {file for node in nodes for file in node.files} == {*others, *SPARK, *ALONE[:2]}


def test_others_help_with_files_without_processes_at_the_end() -> None:
    *others, quiet = scheduled([*ALONE, *OTHERS], busy=(3,))
    for node in others:
        kinds = [starts_processes(file) for file in node.files]
        assert kinds == sorted(kinds, reverse=True)
    assert sorted(file for node in (*others, quiet) for file in node.files) == sorted([*ALONE, *OTHERS])


def test_a_run_without_files_for_the_last_process_goes_without_it() -> None:
    assert [bool(node.files) for node in scheduled(OTHERS)] == [True, True, True, False]


def test_two_processes_share_all_files() -> None:
    for files in ([*OTHERS, *ALONE], OTHERS, ALONE):
        nodes = scheduled(files, processes=2)
        assert all(node.files for node in nodes)
        assert sorted(file for node in nodes for file in node.files) == sorted(files)


@pytest.mark.parametrize(
    ("file", "does"),
    [
        ("tests/integration/spark/test_spark_jobs.py", True),
        ("tests/integration/spark/test_source_reader.py", False),
        ("tests/integration/leader/test_recovery.py", False),
        ("tests/unit/spark/test_spark_page.py", False),
    ],
)
def test_files_that_share_a_spark_are_known_by_their_names(file: str, does: bool) -> None:
    assert starts_spark(file) is does
