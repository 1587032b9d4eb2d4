"""The leader and its stream: it reads what is new and what is pending, and removes what is done.

Imports `bridge.leader.step` and what is below it. What a new leader reads first is in `bridge.leader.takeover`; what
differs because somebody changed it by hand is in `bridge.leader.repair`.
"""
