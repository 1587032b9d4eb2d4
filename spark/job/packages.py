"""The packages that executors of a cluster get from the driver, so that this project need not be installed there.

They are sent as one archive: Spark refuses a folder where executors are on other machines, and Python imports from an
archive. Executors import ``bridge.spark`` and ``bridge.routing``, and nothing else of ``bridge``. The same holds for
the process that plans reads and writes beside the driver: its Python is that of the executors.
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
#: The packages that an executor imports, and the files that it reads: modules, and Lua (``bridge.routing.scripts``).
PACKAGES = ("bridge.routing", "bridge.spark")
_KINDS = (".py", ".lua")
#: The time of every file in the archive, so that the same files make the same bytes. Earlier times are not possible.
_TIME = (1980, 1, 1, 0, 0, 0)


def send_packages(context: SparkContext) -> None:
    """Sends the packages to every process that Spark starts for this context from now on."""
    made = str(zipped_packages())
    context.addPyFile(made)
    # The process that plans the reads of a stream looks for sent files in a folder in which Spark has not put them. So
    # the archive is on its path. On another machine the path does not exist, and Python skips it.
    paths = context.environment.get("PYTHONPATH", "").split(os.pathsep)
    context.environment["PYTHONPATH"] = os.pathsep.join([*filter(None, paths), made])


@cache
def zipped_packages() -> Path:
    """The archive. It is made once, and removed when this process ends: executors may start late."""
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
    """The files below a folder with their names in the archive, sorted. The folder may be in an archive itself."""
    for entry in sorted(folder.iterdir(), key=lambda found: found.name):
        inside = f"{name}/{entry.name}"
        if entry.is_dir():
            yield from _files(entry, inside)
        elif entry.name.endswith(_KINDS):
            yield inside, entry
