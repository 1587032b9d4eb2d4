"""One step of the leader: it settles outcomes, plans dispatches, and writes both with one script.

`term` is the frozen handle of a leader's term. `steps` does the step. `inbox` reads the entries of the outcome stream.
This room imports `bridge.leader.picture` and the rooms below it. The script is `bridge.routing.transitions.advance`.
"""
