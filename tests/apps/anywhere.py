"""The app `tests.apps.counter` with whatever configuration a test wants: JSON in ``ANYWHERE_CONF``."""

from __future__ import annotations

import json
import os

from tests.apps.counter import app

app.conf.update(json.loads(os.environ["ANYWHERE_CONF"]))
