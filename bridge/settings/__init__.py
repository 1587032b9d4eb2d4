"""Settings: which there are, what they may be, and where in an app's configuration they stand.

Imports `bridge.routing` only. What a task may override is in `bridge.app.task_options`; connections that are made from
an address are in `bridge.link`.
"""
