"""The app of the chaos runs, in a process that gets a mutation before anything else (`tests.calibration.in_place`)."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.calibration.in_place import TEXTS, make
from tests.chaos.app import app

__all__ = ["app"]

make(json.loads(Path(os.environ[TEXTS]).read_text(encoding="utf-8")))
