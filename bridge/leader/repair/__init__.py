"""What somebody changed by hand, or a restore did, in the group or the stream: found, put right, counted, said.

Imports `bridge.leader.stream` and what is below it. Lost Celery messages are in `bridge.leader.consumers.lost_runs`.
"""
