"""What a program of this folder needs before its other imports. Each imports this module first, when it is started.

- A program that is started as a file (``spark-submit spark/push.py``) has its own folder first on the path, and imports
  this module from there. The project's folder must be there instead, where the packages are.
- Ctrl-C while modules are imported must end the program without a traceback. Later ``errors_in_one_line`` says in one
  line that it was stopped.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

if "." not in __name__:
    # `bridge` is above this folder once it is installed, and beside it in a checkout.
    sys.path[0] = str(next(folder for folder in Path(__file__).resolve().parents if (folder / "bridge").is_dir()))
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
