"""The app `tests.apps.counter` with the configuration in ``ANYWHERE_CONF`` (JSON)."""

from __future__ import annotations

import json
import os

from tests.apps.counter import app

app.conf.update(json.loads(os.environ["ANYWHERE_CONF"]))
