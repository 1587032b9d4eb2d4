"""Producers: add messages to the stream, one by one, many at once, or from the rows of a file.

Imports `bridge.link` and what is below it. `task.push` is in `bridge.app.task`; Spark's way into the stream is
`bridge.spark`.
"""
