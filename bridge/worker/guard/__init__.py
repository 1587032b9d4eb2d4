"""Makes sure that no task runs under a lease that is over: the shared page, the watcher, the fencing.

Imports `bridge.consumer` and what is below it. The watcher is a small process and loads no Celery. The lease itself is
in `bridge.consumer.lease`.
"""
