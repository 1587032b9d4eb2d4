"""Which process takes which test file, when several take them side by side (``pytest -n``).

A file stays whole, and so do the files with the projects of adopters: each process that runs one of them builds the
wheel. Each process that runs a file with Spark starts a Java machine, which loads and compiles the same code for itself
as every other, for some 25 seconds of a processor. So one process takes those files first, and the others take what is
left of them at the end.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

#: Processes that take files with Spark first.
WITH_SPARK = 1
#: The folder whose files one process takes, all of them.
ADOPTERS = "tests/adopters/"


def starts_spark(file: str) -> bool:
    """Whether a file's tests share the Spark of their process."""
    return Path(file).name.startswith("test_spark_") and "/integration/" in f"/{file}"


class Scheduling(LoadFileScheduling):
    """Files in their order, but those with Spark for the first process, and the others for the rest."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return ADOPTERS if file.startswith(ADOPTERS) else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        spark = self.nodes.index(node) < WITH_SPARK
        fitting = [file for file in self.workqueue if starts_spark(file) == spark]
        if fitting:
            self.workqueue.move_to_end(fitting[0], last=False)
        super()._assign_work_unit(node)
