"""`benchmarks.apps.bridged`, whose processes say on SIGUSR1 which threads they have: ``{name: id}`` in a file."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

from benchmarks.apps.bridged import app
from benchmarks.tally import FOLDER

__all__ = ["app"]


def _say(*_: object) -> None:
    folder = Path(os.environ[FOLDER])
    part = folder / f"threads.{os.getpid()}.part"
    part.write_text(json.dumps({thread.name: thread.native_id for thread in threading.enumerate()}))
    part.rename(folder / f"threads.{os.getpid()}")


signal.signal(signal.SIGUSR1, _say)
