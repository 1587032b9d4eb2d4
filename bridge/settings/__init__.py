"""The settings of an app and of a lane: names, types, limits, and where an app's configuration has them.

Imports `bridge.routing` only. What a task may override is in `bridge.app.task_options`; connections that are made from
an address are in `bridge.link`.
"""
