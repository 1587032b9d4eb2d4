"""One step of the leader: what came in is settled, what can go out is planned, one script writes both.

`term` is the frozen handle of a leader's term; `steps` is the step; `inbox` reads the outcome stream's entries. Imports
`bridge.leader.picture` and what is below it. The script is `bridge.routing.transitions.advance`.
"""
