"""What `bridge.install` makes of a Celery app: its tasks, their tickets and effects, eager pushes, results.

Imports `bridge.producer` and what is below it, and never a worker: a process that only pushes loads none. What runs
a task is in `bridge.worker.pool`; the settings are in `bridge.settings`.
"""
