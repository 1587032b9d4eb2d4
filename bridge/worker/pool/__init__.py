"""A pool process: it runs the messages of a bundle or a single one, and writes their outcomes.

Imports `bridge.worker.guard`, `bridge.consumer`, `bridge.app` and what is below. How messages come to the pool is in
`bridge.worker.main`; what a task sees of its ticket is in `bridge.app.context`.
"""
