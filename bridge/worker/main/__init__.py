"""A worker's main process: it joins the lane, gives messages to the pool, and reports what the pool could not finish.

Imports `bridge.worker.pool` and the rooms below it. `steps` is where Celery starts and stops this part, and
`member` holds it together. A task runs in `bridge.worker.pool`.
"""
