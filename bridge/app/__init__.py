"""What `bridge.install` adds to a Celery app: task classes, `self.ticket`, effects, eager pushes, names of results.

Imports `bridge.producer` and what is below it, and no worker module, so a process that only pushes loads no worker.
`bridge.worker.pool` runs the tasks; the settings are in `bridge.settings`.
"""
