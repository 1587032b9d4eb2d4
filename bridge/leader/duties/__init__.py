"""What the leader does beside the path of messages: operators' orders, unknown tasks, refills, intake.

Imports `bridge.leader.consumers` and what is below it. An operator's side of an order is in `bridge.operate`.
"""
