"""The peer without order: Celery as it comes. Results are ignored, as the other peers ignore them."""

from __future__ import annotations

from celery import Celery

from benchmarks.apps.work import TASKS, configure

app = configure(Celery("plain"))

for body in TASKS:
    app.task(name=body.__name__, ignore_result=True)(body)
