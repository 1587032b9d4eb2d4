"""The leader's access to its stream: it reads new and pending entries, and removes done ones.

This room imports `bridge.leader.step` and the rooms below it. `bridge.leader.takeover` has what a new leader reads
first. `bridge.leader.repair` handles changes that were made by hand.
"""
