"""The bridge, with its own defaults; the environment says how long a bundle lasts (0: none)."""

from __future__ import annotations

import os

from celery import Celery

import bridge
from benchmarks.apps.work import TASKS, configure

#: Environment variable with `bridge_bundle_ms`.
BUNDLE_MS = "BENCHMARK_BUNDLE_MS"

app = configure(bridge.install(Celery("bridged")))
app.conf.bridge_bundle_ms = float(os.environ[BUNDLE_MS])

for body in TASKS:
    app.task(name=body.__name__, ignore_result=True)(body)
