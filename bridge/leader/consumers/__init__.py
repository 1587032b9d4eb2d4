"""Consumers that come and go: their leases, their queues, and their tickets when they are gone.

Imports `bridge.leader.repair` and what is below it. A consumer's own side is in `bridge.consumer`.
"""
