"""The leader's picture of its lane: tickets, messages and consumers, and the decisions that depend on them. No I/O.

`lane` holds the picture. `settling` takes outcomes into it. `planner` plans dispatches. This room imports
`bridge.protocol`, `bridge.app` and the rooms below them. The rooms above it read from Redis.
"""
