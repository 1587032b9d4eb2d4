"""The consumer that is a Celery worker: `main` is its main process, `pool` runs tasks, `guard` stops both in time.

`celery_patches` changes Celery where it would lose or delay a message. Imports `bridge.consumer`, `bridge.app` and the
rooms below them; `main` imports `pool`, and both import `guard`. `bridge.leader` decides what a worker gets.
"""
