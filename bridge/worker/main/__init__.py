"""A worker's main process: it joins the lane, gives messages to the pool, and reports what the pool could not finish.

Imports the other rooms of `bridge.worker` and the rooms below them. `steps` is where Celery starts and stops this part,
and `member` holds it together. A task runs in `bridge.worker.pool`.
"""
