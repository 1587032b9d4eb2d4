"""The audit: checks from the history that no message was lost, reordered, repeated or overlapped.

`audit` reads a lane and checks it. `auditor` checks rows and reads nothing. Imports `bridge.inspect` and the rooms
below it. How the history is written is in `bridge.routing.history`.
"""
