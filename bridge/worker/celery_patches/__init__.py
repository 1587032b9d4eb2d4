"""Where Celery's own way would lose or delay a message: each module changes one thing, and says which.

Imports `bridge.protocol` and what is below it. Remove a module when Celery no longer needs it. What belongs to the
bridge itself is in `bridge.worker.main`.
"""
