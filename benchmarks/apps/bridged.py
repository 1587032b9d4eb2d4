"""The bridge, with its own defaults; the environment says how long a bundle lasts (0: none)."""

from __future__ import annotations

import json
import os

from celery import Celery

import bridge
from benchmarks.apps.work import TASKS, configure

#: Environment variable with `bridge_bundle_ms`.
BUNDLE_MS = "BENCHMARK_BUNDLE_MS"

#: The same with `bridge_history`, if it is there.
HISTORY = "BENCHMARK_HISTORY"

#: The same with other settings, as JSON.
CONF = "BENCHMARK_CONF"

app = configure(bridge.install(Celery("bridged")))
app.conf.bridge_bundle_ms = float(os.environ[BUNDLE_MS])
if HISTORY in os.environ:
    app.conf.bridge_history = int(os.environ[HISTORY])

app.conf.update(json.loads(os.environ.get(CONF, "{}")))

for body in TASKS:
    app.task(name=body.__name__, ignore_result=True)(body)
