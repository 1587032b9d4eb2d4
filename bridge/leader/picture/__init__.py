"""What the leader knows of its lane: tickets, messages, consumers; and what follows from it. No I/O.

`lane` holds it together, `settling` takes outcomes, `planner` says what goes out. Imports `bridge.protocol`,
`bridge.app` and what is below them. What is read from Redis comes in by the rooms above.
"""
