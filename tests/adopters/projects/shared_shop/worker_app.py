"""The app of a project whose tasks are declared elsewhere, by `shared_task`, some of them before there is an app."""

import os

import stock  # noqa: F401 (a library's tasks, which knows nothing of this app)
from celery import Celery

import bridge

app = Celery("worker_app", broker=os.environ["REDIS_URL"], include=["orders"])
bridge.install(app)
app.set_default()
