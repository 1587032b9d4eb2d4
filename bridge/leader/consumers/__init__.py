"""Consumers that come and go: their leases, their queues, and their tickets when they are gone.

This room imports `bridge.leader.step` and the rooms below it. `bridge.consumer` has the consumer's own side.
"""
