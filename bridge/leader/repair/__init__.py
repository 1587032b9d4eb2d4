"""Finds changes to the group or the stream that were made by hand or by a restore, repairs them, counts and logs them.

This room imports `bridge.leader.stream` and the rooms below it. Lost Celery messages are handled in
`bridge.leader.consumers.lost_runs`.
"""
