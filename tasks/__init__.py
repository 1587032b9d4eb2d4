"""The Celery app that ``celery -A tasks worker -n w1@%h`` starts: users replace it with their own app.

Its settings are in ``celeryconfig.py``, its tasks in the modules that ``imports`` names there.
"""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery

import bridge

app = Celery("tasks")
app.config_from_object("celeryconfig")
bridge.install(app)  # an existing app needs no more than this

if directory := os.environ.get("BRIDGE_LEDGER_DIR"):
    # Evidence for `bridge demo`: every start and end of an execution, in files.
    from tasks.ledger import keep_ledger

    keep_ledger(Path(directory))
