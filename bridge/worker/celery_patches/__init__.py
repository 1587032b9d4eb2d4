"""Changes to Celery where it would lose or delay a message: each module makes one change, and says why.

Imports `bridge.link` and what is below it. Remove a module when Celery no longer needs it. The bridge's own part of
a worker is in `bridge.worker.main`.
"""
