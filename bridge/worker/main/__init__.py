"""A worker's main process: it joins the lane, takes messages to the pool, and says what became of them.

Imports the other rooms of `bridge.worker` and what is below. How a task is run is in `bridge.worker.pool`; `steps`
is where Celery begins and ends all this, and `member` holds it together.
"""
