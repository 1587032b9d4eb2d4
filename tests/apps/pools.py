"""Pools as existing apps make them: derived from Celery's, in modules of their own."""

from __future__ import annotations

from celery.concurrency import prefork, solo, thread
from celery.concurrency.base import BasePool


class Processes(prefork.TaskPool):
    """Celery's pool of processes, under another name."""


class MoreProcesses(Processes):
    """Derived from a derived one."""


class Threads(thread.TaskPool):
    """Celery's pool of threads."""


class Solo(solo.TaskPool):
    """Celery's pool without any."""


class Own(BasePool):
    """None of Celery's."""
