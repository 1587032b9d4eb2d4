"""Which process takes which test file, when several take them side by side (``pytest -n``).

A file stays whole, and so do the files with the projects of adopters: each process that runs one of them builds the
wheel.

- **The first process takes the files with Spark first; of `MANY` or more, the first two do.** The others take these
  last of all. Each process that runs one starts a Java machine, which loads and compiles the same code for itself as
  every other, for some 25 seconds of a processor. One machine alone would have the longest way to go.
- **The last of three or more takes the files outside of `WITH_PROCESSES`, and no others.** They need a processor (some
  also the server of their process), while most others wait for leases, starts and ends. It has a lower priority
  (`QUIET_NICENESS`). So it takes the time that the others leave, instead of a time of its own behind them.
- The others take what is left, in the order of the files, those with processes first.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

#: The folder whose files one process takes, all of them.
ADOPTERS = "tests/adopters/"
#: The folders whose tests start masters, workers and commands. (Elsewhere few do, and they wait little.)
WITH_PROCESSES = (ADOPTERS, "tests/adversary/", "tests/calibration/", "tests/chaos/", "tests/integration/")
#: So many processes are enough for two that begin with Spark.
MANY = 5
#: By how much the priority of the quiet process is lower (`os.nice`). Some tests give others a time limit, so it must
#: get its share of two busy processors: about a third of what each of the others gets.
QUIET_NICENESS = 5


def starts_spark(file: str) -> bool:
    """Whether a file's tests share the Spark of their process."""
    return Path(file).name.startswith("test_spark_") and "/integration/" in f"/{file}"


def starts_processes(file: str) -> bool:
    """Whether a file is in a folder whose tests start processes. ``file``: its path, or its folder's, from the root."""
    return file.startswith(WITH_PROCESSES)


def is_quiet(place: int, count: int) -> bool:
    """Whether that of ``count`` processes is the one that takes files of no such folder."""
    return place == count - 1 >= 2


def begins_with_spark(place: int, count: int) -> bool:
    """Whether that of ``count`` processes takes the files with Spark first."""
    return place < (2 if count >= MANY else 1)


class Scheduling(LoadFileScheduling):
    """Files in their order, but for the first processes and for the quiet one."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: Processes that have ended leave `nodes`, so places are looked at in the beginning only.
        self._places: dict[WorkerController, int] = {}

    def schedule(self) -> None:
        self._places = {node: place for place, node in enumerate(self.nodes)}
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return ADOPTERS if file.startswith(ADOPTERS) else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        place = self._places[node]
        quiet = is_quiet(place, len(self._places))
        spark = begins_with_spark(place, len(self._places))
        order = sorted(self.workqueue, key=lambda file: self._comes_for(file, spark=spark, quiet=quiet))
        if quiet and starts_processes(order[0]):
            node.shutdown()
            return
        self.workqueue.move_to_end(order[0], last=False)
        super()._assign_work_unit(node)

    @staticmethod
    def _comes_for(file: str, *, spark: bool, quiet: bool) -> tuple[bool, bool]:
        # False comes first.
        if quiet:
            return starts_processes(file), False
        return starts_spark(file) is not spark, not starts_processes(file)
