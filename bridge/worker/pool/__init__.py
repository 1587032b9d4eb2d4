"""A pool process: it runs the messages of a bundle, or a single message, and writes their outcomes.

Imports `bridge.worker.guard`, `bridge.consumer`, `bridge.app` and the rooms below them. `bridge.worker.main` gives
messages to the pool; `self.ticket` of a task is in `bridge.app.context`.
"""
