"""The leader's duties that are not on the path of a message: operators' orders, unknown tasks, refills, intake.

This room imports `bridge.leader.consumers` and the rooms below it. `bridge.operate` has the operator's side of an
order.
"""
