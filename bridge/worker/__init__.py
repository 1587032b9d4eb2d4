"""The consumer that is a Celery worker: `main` its main process, `pool` where tasks run, `guard` who ends both in time.

`celery_patches` has what Celery itself would do otherwise. Imports `bridge.consumer`, `bridge.app` and what is below
them; `main` imports `pool`, and both import `guard`. Who decides what a worker gets is `bridge.leader`.
"""
