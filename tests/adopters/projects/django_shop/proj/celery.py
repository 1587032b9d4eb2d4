"""As Celery's pages for Django show it, and the bridge."""

import os

from celery import Celery

import bridge

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "proj.settings")

app = Celery("proj")
bridge.install(app)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
