"""The packages that the executors of a cluster get from the driver: they need not have this project installed.

They go as one archive. Spark refuses a folder wherever executors are on other machines, and an executor's Python
imports from an archive by itself. Executors import ``bridge.spark`` and ``bridge.routing``, and nothing else of
``bridge``.

So does the Python that plans reads and writes beside the driver, which is the executors' and not the driver's own.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

#: The folder that these packages are imported from.
HOME = Path(__file__).absolute().parents[__name__.count(".")]
#: What an executor imports, and the kinds of files that are read there: modules, and Lua by ``bridge.routing.scripts``.
PACKAGES = ("bridge.routing", "bridge.spark")
_KINDS = (".py", ".lua")
#: The time of every file in the archive; it can hold no earlier one. So the same files are the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


def send_packages(context: SparkContext) -> None:
    """Give them to all that Spark starts for this context from now on."""
    made = str(zipped_packages())
    context.addPyFile(made)
    # What plans the reads of a stream looks for sent files in a folder that Spark has not put them into. On another
    # machine nothing is there, and Python passes over it.
    paths = context.environment.get("PYTHONPATH", "").split(os.pathsep)
    context.environment["PYTHONPATH"] = os.pathsep.join([*filter(None, paths), made])


@cache
def zipped_packages() -> Path:
    """The archive, made when it is first asked for; removed when this process ends, since executors may come late."""
    folder = Path(tempfile.mkdtemp(prefix="ticket-bridge-packages-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = folder / "ticket_bridge.zip"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            zipfile.ZipInfo("bridge/__init__.py", _TIME), files("bridge").joinpath("__init__.py").read_bytes()
        )
        for package in PACKAGES:
            for name, file in _files(files(package), package.replace(".", "/")):
                archive.writestr(zipfile.ZipInfo(name, _TIME), file.read_bytes(), zipfile.ZIP_DEFLATED)
    return made


def _files(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    """Files below a folder with their names in the archive, in one order; the folder may be in an archive itself."""
    for entry in sorted(folder.iterdir(), key=lambda found: found.name):
        inside = f"{name}/{entry.name}"
        if entry.is_dir():
            yield from _files(entry, inside)
        elif entry.name.endswith(_KINDS):
            yield inside, entry
